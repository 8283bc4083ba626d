"""The rows of a chunk as the bytes of a request, in the two formats of the forward protocol.

The same rows give the same bytes with the same versions of the libraries. JSON keeps every value exactly: decimals, NaN
and Infinity are texts, bytes are base64, times are ISO 8601, with a `Z` unless the column has no zone. JSON columns are
the values themselves."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from strandline.model.change import ROW
from strandline.model.types import is_json
from strandline.sinks.forward.protocol import ARROW_TYPE, NDJSON_TYPE

ARROW = "arrow"
NDJSON = "ndjson"
FORMATS = (ARROW, NDJSON)

_GZIP_LEVEL = 2
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
_Encoder = Callable[[Any], Any]


def encode(rows: pa.RecordBatch, format: str) -> tuple[bytes, Mapping[str, str]]:
    """The body and the headers that describe it."""
    if ROW in rows.schema.names:
        rows = rows.drop_columns([ROW])
    if format == ARROW:
        return arrow_stream(rows), {"Content-Type": ARROW_TYPE}
    body = gzip.compress(_json_lines(rows), _GZIP_LEVEL, mtime=0)
    return body, {"Content-Type": NDJSON_TYPE, "Content-Encoding": "gzip"}


def arrow_stream(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream."""
    # Copied: a slice would be written together with the rows around it.
    rows = pa.RecordBatch.from_arrays([pa.concat_arrays([each]) for each in rows.columns], schema=rows.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_ZSTD) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def _json_lines(rows: pa.RecordBatch) -> bytes:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    plain, others = {}, {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if is_json(column.type):
            others[encode(name)] = [_to_one_line(text) for text in column.storage.to_pylist()]
        else:
            plain[name] = _json_values(column)
    lines = (encode(dict(zip(plain, row, strict=True))) for row in zip(*plain.values(), strict=True))
    if not others:
        return "".join(f"{line}\n" for line in lines).encode()
    # The values of JSON columns are JSON already. A row always has other columns, such as `_op`.
    parts = (
        ",".join(f"{name}:{text}" for name, text in zip(others, texts, strict=True))
        for texts in zip(*others.values(), strict=True)
    )
    return "".join(f"{line[:-1]},{part}}}\n" for line, part in zip(lines, parts, strict=True)).encode()


def _to_one_line(text: str | None) -> str:
    """A JSON text without line breaks, which stand only between its values."""
    return "null" if text is None else text.replace("\r", " ").replace("\n", " ")


def _json_values(column: pa.Array) -> list[Any]:
    say = _json_encoder(column.type)
    # Times become texts in Arrow: Python does not support every year that a column may hold.
    values = column.cast(_times_as_text(column.type)).to_pylist()
    return values if say is None else [None if value is None else say(value) for value in values]


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if pt.is_temporal(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(each.name, _times_as_text(each.type), each.nullable) for each in kind])
    if pt.is_map(kind):
        return pa.map_(_times_as_text(kind.key_type), _times_as_text(kind.item_type))
    return kind


def _json_encoder(kind: pa.DataType) -> _Encoder | None:
    """The function that makes JSON values of a type; None when values stay unchanged."""
    if pt.is_timestamp(kind):
        return lambda text: text.replace(" ", "T", 1)
    if pt.is_decimal(kind):
        return lambda number: format(number, "f")
    if pt.is_binary(kind):
        return lambda data: base64.b64encode(data).decode()
    if pt.is_floating(kind):
        return _encode_float
    if pt.is_list(kind):
        return _list_encoder(_json_encoder(kind.value_type) or _keep_value)
    if pt.is_struct(kind):
        return _struct_encoder({each.name: _json_encoder(each.type) or _keep_value for each in kind})
    if pt.is_map(kind):
        return _map_encoder(
            _json_encoder(kind.key_type) or _keep_value,
            _json_encoder(kind.item_type) or _keep_value,
            pt.is_string(kind.key_type),
        )
    return None


def _keep_value(value: Any) -> Any:
    return value


def _encode_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _list_encoder(say: _Encoder) -> _Encoder:
    return lambda values: [None if value is None else say(value) for value in values]


def _struct_encoder(says: Mapping[str, _Encoder]) -> _Encoder:
    return lambda fields: {n: None if value is None else says[n](value) for n, value in fields.items()}


def _map_encoder(say_key: _Encoder, say: _Encoder, is_object: bool) -> _Encoder:
    """An object where the keys are texts, else a list of pairs."""

    def encode_pairs(pairs: list[tuple[Any, Any]]) -> Any:
        encoded = [(say_key(key), None if value is None else say(value)) for key, value in pairs]
        return dict(encoded) if is_object else [list(pair) for pair in encoded]

    return encode_pairs
