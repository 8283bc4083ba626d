"""A table grows with the table of its sender: it gets missing columns and wider_types number types.

A request is checked against the table with the new columns. The table gets them just before the commit of the request.
Values are never rounded to fit: a chunk with numbers that a column cannot hold is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.definition import TableDef
from strandline.model.types import canonical_type, relax_schema, type_text, wider_types
from strandline.sinks.forward.refusal import Refusal, unprepared

_EVOLVE = (
    "Add or widen the column here with evolve(). For a sender of Arrow the server does it, unless that is turned off."
)
_LEAVE_OUT = "The table cannot have this column: leave it out at the sender, or rename it there."


@dataclass(frozen=True)
class Growth:
    """The new or wider_types `columns` that a request needs. Requests add columns to a table up to `most`."""

    columns: pa.Schema
    most: int

    def apply_to(self, definition: TableDef) -> TableDef:
        """The table as the request needs it. `Invalid` names a column that the table cannot get."""
        lacking = [field for field in self.columns if not _has_column(field, definition)]
        if not lacking:
            return definition
        grown = definition.evolve(pa.schema(lacking))
        count = len(grown.schema)
        if count > self.most and count > len(definition.schema):
            raise Invalid(
                f"the table would have {count} columns; requests may bring it to {self.most} at most",
                hint="Raise --table-columns where the server is started.",
                column=grown.schema.names[-1],
            )
        return grown


def grow_table(definition: TableDef, growth: Growth) -> TableDef:
    """The table as a request needs it; 412 when it cannot get these columns."""
    try:
        return growth.apply_to(definition)
    except Invalid as never:
        raise unprepared(never, never.hint or _LEAVE_OUT) from never


def missing_column(error: Invalid, definition: TableDef) -> Refusal:
    """412 for rows with a column that a table lacks and cannot get from a request."""
    name = error.fields["column"]
    if name not in definition.schema.names:
        try:
            definition.evolve(pa.schema([(name, pa.string())]))
        except Invalid as never:
            return unprepared(never, never.hint or _LEAVE_OUT)
    return unprepared(error, _EVOLVE)


def _has_column(field: pa.Field, definition: TableDef) -> bool:
    """Whether a table already has a column, or a wider_types one."""
    at = definition.schema.get_field_index(field.name)
    if at < 0:
        return False
    kind, has = canonical_type(field.type, field.name), definition.schema.field(at).type
    return bool(kind == has or has in wider_types(kind))


def find_growth(rows: pa.Table, definition: TableDef, hidden: Collection[str], most: int) -> Growth | None:
    """The columns that a table needs for these rows; None when it needs nothing."""
    fields = []
    for field in rows.schema if rows.num_rows else []:
        at = definition.schema.get_field_index(field.name)
        if at < 0 and field.name not in hidden:
            fields.append(pa.field(field.name, field.type, True))
        elif at >= 0 and field.name not in definition.key:
            has = definition.schema.field(at)
            if _number_type(field.type) in wider_types(has.type):
                fields.append(has.with_type(_number_type(field.type)))
    return Growth(relax_schema(pa.schema(fields)), most) if fields else None


def _number_type(kind: pa.DataType) -> pa.DataType | None:
    if pt.is_dictionary(kind):
        return _number_type(kind.value_type)
    if pt.is_uint64(kind) or not (pt.is_integer(kind) or pt.is_floating(kind)):
        return None
    return canonical_type(kind, "")


def widest_fields(definition: TableDef) -> list[pa.Field]:
    """The columns of a table with the widest number types: JSON does not give the types of numbers."""
    fields = [field.with_type(_with_float64(field.type)) for field in definition.schema]
    return [f if f.name in definition.key else f.with_type((f.type, *wider_types(f.type))[-1]) for f in fields]


def _with_float64(kind: pa.DataType) -> pa.DataType:
    """The type with 64-bit floats, at all depths."""
    if pt.is_float32(kind):
        return pa.float64()
    if pt.is_list(kind):
        return pa.list_(_with_float64(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_with_float64(field.type)) for field in kind])
    return pa.map_(_with_float64(kind.key_type), _with_float64(kind.item_type)) if pt.is_map(kind) else kind


def narrow_rows(rows: pa.Table, definition: TableDef) -> pa.Table:
    """Rows that were read in the widest types, each column in the narrowest type that holds its values."""
    for at, field in enumerate(rows.schema):
        place = definition.schema.get_field_index(field.name)
        if place >= 0:
            column = _narrow_column(rows.column(at), definition.schema.field(place).type)
            rows = rows.set_column(at, field.with_type(column.type), column)
    return rows


def _narrow_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    for candidate in (kind, *wider_types(kind)):
        if column.type == candidate:
            break
        if not is_rounded(column, candidate):
            try:
                return column.cast(candidate)
            except pa.ArrowInvalid:
                continue
    return column


def check_rounding(rows: pa.Table, definition: TableDef) -> None:
    """412 when the table would round a number of `rows`."""
    for field in definition.schema:
        at = rows.schema.get_field_index(field.name)
        if at >= 0 and is_rounded(rows.column(at), field.type):
            sent = type_text(rows.schema.field(at).type)
            said = f"column {field.name!r} is {type_text(field.type)} here and {sent} in the body"
            raise unprepared(Invalid(f"{said}: numbers would be rounded", column=field.name), _EVOLVE)


def is_rounded(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether a 64-bit float, at any depth, would be rounded to the 32 bits that it has in `kind`."""
    if isinstance(column, pa.ChunkedArray):
        return _holds_float32(kind) and any(is_rounded(chunk, kind) for chunk in column.chunks)
    found = column.type
    if isinstance(found, pa.BaseExtensionType):
        return is_rounded(column.storage, kind)
    if pt.is_dictionary(found):
        return is_rounded(column.dictionary, kind)
    if pt.is_float64(found) and pt.is_float32(kind):
        is_same = pc.or_(pc.equal(column.cast(kind).cast(found), column), pc.is_nan(column))
        return not pc.all(is_same, min_count=0).as_py()
    if pt.is_struct(found) and pt.is_struct(kind):
        return any(
            kind.get_field_index(found.field(at).name) >= 0
            and is_rounded(column.field(at), kind.field(found.field(at).name).type)
            for at in range(found.num_fields)
        )
    if pt.is_map(found) and pt.is_map(kind):
        return is_rounded(column.keys, kind.key_type) or is_rounded(column.items, kind.item_type)
    if (pt.is_list(found) or pt.is_large_list(found) or pt.is_fixed_size_list(found)) and pt.is_list(kind):
        return is_rounded(column.values, kind.value_type)
    return False


def _holds_float32(kind: pa.DataType) -> bool:
    return bool(pt.is_float32(kind)) or any(_holds_float32(kind.field(at).type) for at in range(kind.num_fields))
