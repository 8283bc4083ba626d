"""Lines of JSON from outside, as the forward protocol writes them: as `ingest` reads them, with binary in base64."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.ingest.jsonl import JsonLines
from strandline.ingest.sift import UNFIT, sift
from strandline.server.errors import malformed


def count_lines(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line.strip())


def read_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of `data` with the columns of `schema`; `Invalid` names the row and the column that do not fit."""
    lines = JsonLines(pa.schema([field.with_type(_texts(field.type)) for field in schema]))
    try:
        table = lines.convert(data)
    except UNFIT as error:
        raise _fault(lines, data) from error
    for at, field in enumerate(schema):
        if field.type != _texts(field.type):
            table = table.set_column(at, field, _binary(table.column(at), field))
    return table


def _fault(lines: JsonLines, data: bytes) -> Exception:
    """Which row it was: the first of those that do not fit even alone."""
    records = [record for _, record in lines.records(data)]
    found = sift(len(records), lambda start, stop: lines.convert(b"".join(records[start:stop])))
    row = next((place for place in found if isinstance(place, int)), None)
    if row is None:
        return malformed("the body is not lines of JSON objects")
    column, reason = lines.explain(records[row])
    if column is None:
        return malformed(f"row {row}: {reason}", row=row)
    return Invalid(f"row {row}, column {column!r}: {reason}", row=row, column=column)


def _texts(kind: pa.DataType) -> pa.DataType:
    """`kind` with texts for what is base64 in JSON."""
    if pt.is_binary(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_texts(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_texts(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_texts(kind.key_type), _texts(kind.item_type))
    return kind


def _binary(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    values = []
    for row, value in enumerate(column.to_pylist()):
        try:
            values.append(_decoded(value, field.type))
        except ValueError as error:
            raise Invalid(
                f"row {row}, column {field.name!r}: not base64: {error}", row=row, column=field.name
            ) from error
    return pa.chunked_array([pa.array(values, field.type)])


def _decoded(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if pt.is_list(kind):
        return [_decoded(each, kind.value_type) for each in value]
    if pt.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        return [(_decoded(key, kind.key_type), _decoded(item, kind.item_type)) for key, item in value]
    return value
