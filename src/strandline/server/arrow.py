"""An Arrow IPC stream from outside: decoded only when what it becomes is known to be small enough.

A few bytes can stand for very many: compressed buffers, dictionaries, views that share a text, columns of nulls. What
compressed buffers hold is summed up from the messages before any is decoded; the others are weighed afterwards, when
they are still small, before anything unfolds them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.server.errors import malformed, too_large

_SLOT_BYTES = 8
_VIEWS = (pa.string_view(), pa.binary_view())


def read_stream(data: bytes, *, most: int) -> pa.Table:
    """The rows of a stream, sound and at most `most` bytes large once they are unfolded."""
    try:
        _check_buffers(data, most)
        batches = []
        weight = 0
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _check_names(reader.schema.names)
            for batch in reader:
                batch.validate(full=True)
                weight += sum(weigh(column) for column in batch.columns)
                check_weight(weight, most)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise malformed(f"the body is not an Arrow IPC stream: {str(error).splitlines()[0]}") from error


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise malformed(f"the body has more than one column {name!r}", column=name)


def check_weight(weight: int, most: int) -> None:
    if weight > most:
        raise too_large(f"the rows take {weight} bytes or more in memory; at most {most} are taken", limit=most)


def missing_weight(rows: int, columns: int) -> int:
    """What so many columns take that a request leaves out: they become nulls."""
    return rows * columns * _SLOT_BYTES


def weigh(array: pa.Array) -> int:
    """What an array takes when each value stands for itself."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return weigh(array.storage)
    if pt.is_null(kind):
        return len(array) * _SLOT_BYTES
    if pt.is_dictionary(kind):
        sizes = _sizes(array.dictionary)
        return int(pc.sum(sizes.take(array.indices), min_count=0).as_py())
    if kind in _VIEWS:
        return int(pc.sum(_sizes(array), min_count=0).as_py())
    if pt.is_struct(kind):
        return sum(weigh(array.field(at)) for at in range(kind.num_fields))
    if pt.is_map(kind):
        return len(array) * _SLOT_BYTES + weigh(array.keys) + weigh(array.items)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return len(array) * _SLOT_BYTES + weigh(array.values)
    return int(array.nbytes)


def _sizes(values: pa.Array) -> pa.Array:
    """The bytes of each of some texts or plain values."""
    kind = values.type
    if kind in _VIEWS:
        # A view begins with the length of its text.
        views = np.frombuffer(values.buffers()[1], np.int32).reshape(-1, 4)
        lengths = pa.array(views[values.offset : values.offset + len(values), 0].astype(np.int64) + _SLOT_BYTES)
        return pc.if_else(values.is_valid(), lengths, pa.scalar(_SLOT_BYTES, pa.int64()))
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return pc.add(pc.fill_null(pc.binary_length(values), 0).cast(pa.int64()), pa.scalar(_SLOT_BYTES, pa.int64()))
    if pt.is_nested(kind) or pt.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise malformed(f"the body has dictionaries of {kind}, which are not taken; send them as plain columns")
    return pa.array(np.full(len(values), 2 * _SLOT_BYTES, np.int64))


def _check_buffers(data: bytes, most: int) -> None:
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type not in ("record batch", "dictionary"):
            continue
        header = _Table.root(memoryview(message.metadata)).table(2)
        batch = header.table(1) if message.type == "dictionary" else header
        if batch.at(3) is None:
            continue
        body = memoryview(message.body)
        for offset, length in batch.pairs(2):
            if length:
                (size,) = struct.unpack_from("<q", body, offset)
                total += length if size == -1 else size
                if size < -1:
                    raise malformed("the body is not an Arrow IPC stream: a buffer of negative size")
                check_weight(total, most)


class _Table:
    """A flatbuffers table, of which only a few fields are looked at: see Message.fbs of the Arrow format."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - struct.unpack_from("<i", data, place)[0]
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    @staticmethod
    def root(data: memoryview) -> _Table:
        return _Table(data, struct.unpack_from("<I", data, 0)[0])

    def at(self, field: int) -> int | None:
        """Where a field's value stands; None when it is left out."""
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + entry)[0] if entry < self._size else 0
        return self._place + offset if offset else None

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two int64."""
        if self.at(field) is None:
            return []
        start = self._target(field)
        (count,) = struct.unpack_from("<I", self._data, start)
        return list(struct.iter_unpack("<qq", self._data[start + 4 : start + 4 + 16 * count]))

    def _target(self, field: int) -> int:
        place = self.at(field)
        if place is None:
            raise malformed("the body is not an Arrow IPC stream: a message without content")
        return place + int(struct.unpack_from("<I", self._data, place)[0])
