"""An Arrow IPC stream from a client: it is decoded only when its decoded size is known to be small enough.

Rows, fields and buffers are counted from the messages before any is decoded. The unfolded size of dictionaries and
views is counted after decoding, before anything unfolds them or reads their texts.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.model.arrow_check import find_invalid
from strandline.server.arrow_messages import FlatTable, schema_size, texts_size
from strandline.server.memory_cost import COPIES, ROW_BYTES, SLOT_BYTES, Weight
from strandline.sinks.forward.refusal import malformed, too_wide

_SCHEMA_BYTES = 4 << 20
_ARRAY_BYTES = 1024
_BUFFER_BYTES = 128
_MOST_LENGTH = 1 << 40
_VIEWS = (pa.string_view(), pa.binary_view())
_UNKNOWN = (pt.is_union, pt.is_run_end_encoded, pt.is_list_view, pt.is_large_list_view)


def read_stream(data: bytes | bytearray, weight: Weight) -> pa.Table:
    """The rows of a stream, checked, their memory counted."""
    try:
        _weigh_messages(data, weight)
        batches: list[pa.RecordBatch] = []
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _check_columns(reader.schema)
            for batch in reader:
                batch.validate()
                weight.add(COPIES * sum(_unfolded_bytes(column) for column in batch.columns))
                _check_sound(batch, sum(each.num_rows for each in batches))
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        raise malformed(f"the body is not an Arrow IPC stream: {_first_line(error)}") from error


def _check_sound(batch: pa.RecordBatch, before: int) -> None:
    fault = find_invalid(pa.Table.from_batches([batch]))
    if fault is not None:
        error = fault.error(before)
        raise malformed(error.message, **error.fields)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_columns(schema: pa.Schema) -> None:
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise malformed(f"the body has more than one column {field.name!r}", column=field.name)
        seen.add(field.name)
        if _holds_unknown(field.type):
            raise malformed(
                f"column {field.name!r} is {field.type!s:.200}, which is not supported; send it as a plain column",
                column=field.name,
            )


def _holds_unknown(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_unknown(kind.storage_type)
    if pt.is_dictionary(kind):
        values = _storage_type(kind.value_type)
        return bool(pt.is_nested(values) or pt.is_dictionary(values)) or _holds_unknown(values)
    return any(is_such(kind) for is_such in _UNKNOWN) or any(
        _holds_unknown(kind.field(at).type) for at in range(kind.num_fields)
    )


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _weigh_messages(data: bytes | bytearray, weight: Weight) -> None:
    dictionaries: dict[int, int] = {}
    rows = work = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        weight.add(COPIES * texts_size(FlatTable.message(message.metadata), 4, weight.most_bytes))
        if message.type == "schema":
            _weigh_schema(message.metadata, weight)
            continue
        header = FlatTable.header(message.metadata)
        if message.type == "record batch":
            rows += _count_rows(header)
            weight.check_rows(rows)
            weight.add(ROW_BYTES * _count_rows(header) + COPIES * _batch_bytes(header, message.body, weight))
            # Each batch reads its dictionaries again, and joins them again after a delta.
            work += sum(dictionaries.values())
            weight.check_work(work)
        elif message.type == "dictionary":
            size = _batch_bytes(header.table(1), message.body, weight)
            weight.add(size)
            place = header.number(0, "<q")
            dictionaries[place] = size + (dictionaries.get(place, 0) if header.number(2, "<B") else 0)


def _weigh_schema(metadata: Any, weight: Weight) -> None:
    fields, size = schema_size(metadata, most_fields=weight.most_columns, most_bytes=_SCHEMA_BYTES)
    if fields > weight.most_columns:
        raise too_wide(
            f"the body has more than {weight.most_columns} columns and fields of columns",
            hint="Raise --body-columns where the server is started.",
            limit=weight.most_columns,
        )
    if size > _SCHEMA_BYTES:
        raise too_wide(
            f"the names of the body's columns take more than {_SCHEMA_BYTES} bytes",
            hint="Send fewer columns, or shorter names.",
            limit=_SCHEMA_BYTES,
        )
    weight.add(_ARRAY_BYTES * fields + size)


def _count_rows(batch: FlatTable) -> int:
    length = batch.number(0, "<q")
    if not 0 <= length < _MOST_LENGTH:
        raise malformed("the body is not an Arrow IPC stream: a batch has no sensible length")
    return length


def _batch_bytes(batch: FlatTable, body: Any, weight: Weight) -> int:
    """The memory of a batch's values, from the description of its arrays and buffers."""
    arrays, buffers = batch.pairs(1), batch.pairs(2)
    size = _ARRAY_BYTES * len(arrays) + _BUFFER_BYTES * len(buffers)
    lengths = np.concatenate([arrays[:, 0], buffers[:, 1]])
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() < _MOST_LENGTH:
        raise malformed("the body is not an Arrow IPC stream: a column or a buffer has no sensible length")
    weight.check_work(size)
    size += SLOT_BYTES * int(arrays[:, 0].sum())
    if not batch.has(3):
        return size + int(buffers[:, 1].sum())
    content = memoryview(body)
    for offset, length in buffers.tolist():
        if length:
            (unfolded,) = struct.unpack_from("<q", content, offset)
            if unfolded < -1:
                raise malformed("the body is not an Arrow IPC stream: a buffer of negative size")
            size += length if unfolded == -1 else unfolded
    return size


def _unfolded_bytes(array: pa.Array) -> int:
    """The memory of an array beyond its buffers, when dictionaries and views are unfolded."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _unfolded_bytes(array.storage)
    if pt.is_dictionary(kind):
        sizes = _value_sizes(array.dictionary)
        return _sum(sizes) + _sum(sizes.take(array.indices))
    if kind in _VIEWS:
        return _sum(_value_sizes(array))
    if pt.is_struct(kind):
        return sum(_unfolded_bytes(array.field(at)) for at in range(kind.num_fields))
    if pt.is_map(kind):
        return _unfolded_bytes(array.keys) + _unfolded_bytes(array.items)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _unfolded_bytes(array.values)
    return 0


def _sum(sizes: pa.Array) -> int:
    return int(pc.sum(sizes, min_count=0).as_py())


def _value_sizes(values: pa.Array) -> pa.Array:
    """The bytes of each value."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _value_sizes(values.storage)
    if kind in _VIEWS:
        # A view begins with the length of its text.
        views = np.frombuffer(values.buffers()[1] or b"", np.int32).reshape(-1, 4)
        return pa.array(views[values.offset : values.offset + len(values), 0].astype(np.int64).clip(0))
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())
        return pc.max_element_wise(lengths, pa.scalar(0, pa.int64()))
    width = kind.bit_width // 8 if pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) else 0
    return pa.array(np.full(len(values), max(width, SLOT_BYTES), np.int64))
