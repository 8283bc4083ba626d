"""How a table's columns are read from text: as which type first, and what to say of a value that does not fit."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pt

from strandline.model.types import is_json, storage_type


def read_type(kind: pa.DataType) -> pa.DataType:
    """The type to parse as. Times and binary are parsed from text by one cast later, the same for every format: the
    readers of the formats differ in which times they take."""
    kind = storage_type(kind)
    if pt.is_temporal(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, read_type(f.type), f.nullable) for f in kind])
    return kind


def typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the storage types of its columns in `schema`, times parsed from text."""
    columns = [column.cast(storage_type(schema.field(name).type)) for name, column in _named(table)]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _named(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(table.column_names, table.columns, strict=True))


def unfit(value: object, field: pa.Field) -> str:
    """Why `value` cannot stand in the column."""
    if value is None:
        return "a value is required, found none"
    shown = str(value) if isinstance(value, str | Decimal) else json.dumps(value, ensure_ascii=False, default=_shown)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    shown = f"'{shown}'" if isinstance(value, str) else shown
    return f"{shown} is not {_expected(field.type)}"


def _shown(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else str(value)


def _expected(kind: pa.DataType) -> str:
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
    return str(kind)
