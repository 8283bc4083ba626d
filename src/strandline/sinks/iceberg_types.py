"""Columns of a batch as columns of an Iceberg table.

Iceberg has no 8 and 16 bit integers and no JSON: these become `int` and `string`. A table gains missing
columns and widens its numbers; a column that does not fit is refused before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.types import is_json, type_text

_FIELD_ID = "PARQUET:field_id"


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of `kind` in an Iceberg table's Parquet files; parts of nested values are nullable."""
    if pt.is_integer(kind):
        return pa.int64() if kind.bit_width > 32 else pa.int32()
    if is_json(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(stored_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(part.name, stored_type(part.type)) for part in kind])
    if pt.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    return kind


def stored_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of a new table, all nullable, since a delete has only its key."""
    return pa.schema([pa.field(field.name, stored_type(field.type)) for field in columns])


def with_field_ids(columns: pa.Schema, table: Any) -> pa.Schema:
    """The columns with the ids that a pyiceberg table gives them and all their parts. A file with ids is read by ids:
    nested values are found everywhere, also after a rename."""
    known = {column.name: column for column in table.schema().fields}
    return pa.schema([_number_field(column, known[column.name]) for column in columns])


def _number_field(column: pa.Field, known: Any) -> pa.Field:
    return pa.field(
        column.name, _number_parts(column.type, known.field_type), column.nullable, {_FIELD_ID: str(known.field_id)}
    )


def _number_parts(kind: pa.DataType, known: Any) -> pa.DataType:
    if pt.is_struct(kind):
        parts = {part.name: part for part in known.fields}
        return pa.struct([_number_field(part, parts[part.name]) for part in kind])
    if pt.is_list(kind):
        return pa.list_(_number_field(kind.value_field.with_name("element"), known.element_field))
    if pt.is_map(kind):
        return pa.map_(
            _number_field(kind.key_field, known.key_field), _number_field(kind.item_field, known.value_field)
        )
    return kind


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether Iceberg can read files of the narrow type as the wide one."""
    if pt.is_decimal128(narrow) and pt.is_decimal128(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return (narrow, wide) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


@dataclass(frozen=True)
class TableFit:
    """How a batch's columns fit a table: the columns that the table lacks, and the columns for its files."""

    lacking: pa.Schema
    files: pa.Schema


def fit_columns(columns: pa.Schema, table: Any, destination: str) -> TableFit:
    """Fit columns to a pyiceberg table at its newest version; `Invalid` when one does not fit."""
    there = table.schema().as_arrow()
    lacking, files = [], []
    for field in stored_schema(columns):
        at = there.get_field_index(field.name)
        if at < 0:
            _check_not_renamed(table, field.name, destination)
            lacking.append(field)
            files.append(field)
            continue
        found = stored_type(there.field(at).type)
        is_wider = widens(found, field.type)
        if found != field.type and not is_wider and not widens(field.type, found):
            raise Invalid(
                f"column {field.name!r} is {type_text(field.type)} here and {found} in {destination}",
                hint="Leave the column out (columns=[…]), or send to another table.",
                column=field.name,
            )
        field = pa.field(field.name, field.type if is_wider else found, there.field(at).nullable)
        files.append(field)
        if is_wider:
            lacking.append(field)
    for field in there:
        if not field.nullable and field.name not in columns.names:
            raise Invalid(
                f"{destination} requires a value in the column {field.name!r}, and the sink has no such column",
                hint="Make the column optional there, or send to another table.",
                column=field.name,
            )
    return TableFit(pa.schema(lacking), pa.schema(files))


def _check_not_renamed(table: Any, name: str, destination: str) -> None:
    """Refuse the old name of a renamed column. Files identify columns by name, so the old files still use that name; a
    new column with it would take their values over."""
    for mapped in table.name_mapping() or ():
        if name in mapped.names and mapped.field_id in table.schema().field_ids:
            now = table.schema().find_column_name(mapped.field_id)
            raise Invalid(
                f"column {name!r} was renamed to {now!r} in {destination}",
                hint=f"Rename it back to {name!r}, or send to another table.",
                column=name,
            )
