"""How a table grows with a sender's: columns that it lacks, and numbers that have become wider there.

Nothing grows before its request is applied. A request is checked against the table as it would be; its commit first
makes the table so. Values are never cut to fit: a chunk whose numbers need more room than a column that cannot be
widened is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.definition import TableDef
from strandline.model.types import canonical_type, relax_schema, wider_types
from strandline.sinks.forward.refusal import Refusal, unprepared

_EVOLVE = "Add or widen the column here with evolve(); a sender that sends Arrow does it by itself if it may."
_LEAVE_OUT = "The table cannot have it: leave the column out where it is sent, or give it another name there."


@dataclass(frozen=True)
class Growth:
    """What a request needs of a table: `columns` that are new or wider. A table gets no more than `most` so."""

    columns: pa.Schema
    most: int

    def applied(self, definition: TableDef) -> TableDef:
        """The table as the request needs it. `Invalid` names a column that the table cannot get."""
        lacking = [field for field in self.columns if not _is_held(field, definition)]
        if not lacking:
            return definition
        grown = definition.evolve(pa.schema(lacking))
        count = len(grown.schema)
        if count > self.most and count > len(definition.schema):
            raise Invalid(
                f"the table would have {count} columns; by requests it gets {self.most} at most",
                hint="Raise --table-columns where the server is started.",
                column=grown.schema.names[-1],
            )
        return grown


def grown(definition: TableDef, growth: Growth) -> TableDef:
    """The table as a request needs it; 412 when it can never be so."""
    try:
        return growth.applied(definition)
    except Invalid as never:
        raise unprepared(never, never.hint or _LEAVE_OUT) from never


def lacking(error: Invalid, definition: TableDef) -> Refusal:
    """412 for rows with a column that a table lacks and does not get by itself."""
    name = error.fields["column"]
    if name not in definition.schema.names:
        try:
            definition.evolve(pa.schema([(name, pa.string())]))
        except Invalid as never:
            return unprepared(never, never.hint or _LEAVE_OUT)
    return unprepared(error, _EVOLVE)


def _is_held(field: pa.Field, definition: TableDef) -> bool:
    """Whether a table has a column already, or in the meantime an even wider one."""
    at = definition.schema.get_field_index(field.name)
    if at < 0:
        return False
    kind, has = canonical_type(field.type, field.name), definition.schema.field(at).type
    return bool(kind == has or has in wider_types(kind))


def growth_of(rows: pa.Table, definition: TableDef, hidden: Collection[str], most: int) -> Growth | None:
    """What a table lacks for rows that come in these types; None when it lacks nothing."""
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


def widest(definition: TableDef) -> list[pa.Field]:
    """The columns of a table with all the room that numbers from outside may need: JSON does not tell their types."""
    return [
        f if f.name in definition.key else f.with_type((f.type, *wider_types(f.type))[-1]) for f in _exact(definition)
    ]


def _exact(definition: TableDef) -> list[pa.Field]:
    return [field.with_type(_doubled(field.type)) for field in definition.schema]


def _doubled(kind: pa.DataType) -> pa.DataType:
    """A type whose floats have 64 bits, at all depths."""
    if pt.is_float32(kind):
        return pa.float64()
    if pt.is_list(kind):
        return pa.list_(_doubled(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_doubled(field.type)) for field in kind])
    return pa.map_(_doubled(kind.key_type), _doubled(kind.item_type)) if pt.is_map(kind) else kind


def narrowed(rows: pa.Table, definition: TableDef) -> pa.Table:
    """Rows that were read with the most room, each column in the narrowest type that holds its values."""
    for at, field in enumerate(rows.schema):
        place = definition.schema.get_field_index(field.name)
        if place >= 0:
            column = _narrowed(rows.column(at), definition.schema.field(place).type)
            rows = rows.set_column(at, field.with_type(column.type), column)
    return rows


def _narrowed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    for candidate in (kind, *wider_types(kind)):
        if column.type == candidate:
            break
        if not is_cut(column, candidate):
            try:
                return column.cast(candidate)
            except pa.ArrowInvalid:
                continue
    return column


def check_cuts(rows: pa.Table, definition: TableDef) -> None:
    """No number of `rows` is rounded in the table; 412 names the column."""
    for field in definition.schema:
        at = rows.schema.get_field_index(field.name)
        if at >= 0 and is_cut(rows.column(at), field.type):
            said = f"column {field.name!r} is {field.type} here and {rows.schema.field(at).type} in the body"
            raise unprepared(Invalid(f"{said}: numbers would be rounded", column=field.name), _EVOLVE)


def is_cut(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether a float of 64 bits, at any depth, is more than the 32 bits hold that it has in `kind`."""
    if isinstance(column, pa.ChunkedArray):
        return _holds_float32(kind) and any(is_cut(chunk, kind) for chunk in column.chunks)
    found = column.type
    if isinstance(found, pa.BaseExtensionType):
        return is_cut(column.storage, kind)
    if pt.is_dictionary(found):
        return is_cut(column.dictionary, kind)
    if pt.is_float64(found) and pt.is_float32(kind):
        is_same = pc.or_(pc.equal(column.cast(kind).cast(found), column), pc.is_nan(column))
        return not pc.all(is_same, min_count=0).as_py()
    if pt.is_struct(found) and pt.is_struct(kind):
        return any(
            kind.get_field_index(found.field(at).name) >= 0
            and is_cut(column.field(at), kind.field(found.field(at).name).type)
            for at in range(found.num_fields)
        )
    if pt.is_map(found) and pt.is_map(kind):
        return is_cut(column.keys, kind.key_type) or is_cut(column.items, kind.item_type)
    if (pt.is_list(found) or pt.is_large_list(found) or pt.is_fixed_size_list(found)) and pt.is_list(kind):
        return is_cut(column.values, kind.value_type)
    return False


def _holds_float32(kind: pa.DataType) -> bool:
    return bool(pt.is_float32(kind)) or any(_holds_float32(kind.field(at).type) for at in range(kind.num_fields))
