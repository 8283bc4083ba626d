"""How columns are read from text: the type to parse, and the reason why a value does not fit."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pt

from strandline.model.types import is_json, storage_type, type_text


def read_type(kind: pa.DataType) -> pa.DataType:
    """The type to parse. Times and binary stay text; one cast converts them later, the same for every format. The
    parsers of the formats accept different times."""
    kind = storage_type(kind)
    if pt.is_temporal(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, read_type(f.type), f.nullable) for f in kind])
    return kind


def cast_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the storage types of its columns in `schema`, times parsed from text."""
    columns = [table.column(name).cast(storage_type(schema.field(name).type)) for name in table.column_names]
    return pa.Table.from_arrays(columns, names=table.column_names)


def misfit_reason(value: object, field: pa.Field) -> str:
    """Why `value` does not fit the column."""
    if value is None:
        return "a value is required, found none"
    shown = str(value) if isinstance(value, str | Decimal) else json.dumps(value, ensure_ascii=False, default=_to_json)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    shown = f"'{shown}'" if isinstance(value, str) else shown
    return f"{shown} is not {_describe_type(field.type)}"


def _to_json(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else str(value)


def _describe_type(kind: pa.DataType) -> str:
    if is_json(kind):
        return "JSON"
    if pt.is_timestamp(kind):
        if kind.tz:
            return "a time with its zone, such as 2024-01-31T12:00:00.123456Z"
        return "a time without a zone, such as 2024-01-31T12:00:00.123456"
    if pt.is_date(kind):
        return "a date, such as 2024-01-31"
    if pt.is_boolean(kind):
        return "true or false"
    return type_text(kind)
