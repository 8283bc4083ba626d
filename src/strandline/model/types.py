"""Column types: which Arrow types a table may hold, and how they look to Delta and Spark.

A table's schema is stored as Arrow, which knows JSON and nullability; Delta gets the same columns in its own types.
Types that Delta cannot hold are replaced by a type that holds every value (unsigned by the next wider signed, large
and dictionary types by plain ones, times by UTC microseconds) or refused by name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.names import check_columns, check_fields, name_list, require_utf8_names

JSON = pa.json_(pa.string())

_PLAIN = {
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), JSON,
}  # fmt: skip
_REPLACED = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32(),
    pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "int": pa.int64(), "float32": pa.float32(), "float64": pa.float64(), "double": pa.float64(),
    "float": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "json": JSON,
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_NAMES = {kind: name for name, kind in reversed(TYPES.items())}
# DuckDB's time doubles with every level of lists: 20 levels take a second, 30 take for ever.
_DEPTH = 16
KEY_TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
)  # fmt: skip
VERSION_TYPES = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
)  # fmt: skip
TIME_TYPES = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))


def is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


def type_text(kind: pa.DataType) -> str:
    """The text of a type, as `parse_schema` reads it where it can."""
    if is_json(kind):
        return "json"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    return _NAMES.get(kind, str(kind))


def canonical_type(kind: pa.DataType, column: str, depth: int = 0) -> pa.DataType:
    """The type that a table stores for `kind`; `Invalid` when none holds every value."""
    if depth > _DEPTH:
        raise Invalid(f"column {column.partition('.')[0]!r} is nested deeper than {_DEPTH} levels", column=column)
    if kind in _PLAIN or (pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision):
        return kind
    if kind in _REPLACED:
        return _REPLACED[kind]
    if is_json(kind):
        return JSON
    if pt.is_dictionary(kind):
        return canonical_type(kind.value_type, column, depth)
    if pt.is_nested(kind) and "extension<arrow.json>" in str(kind):
        raise Invalid(
            f"column {column!r} holds JSON inside {kind}, which a table cannot hold",
            hint="Make the whole column JSON, or the inner values strings.",
            column=column,
        )
    if pt.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(canonical_type(kind.value_type, f"{column}[]", depth + 1))
    if pt.is_struct(kind) and kind.num_fields:
        check_fields((field.name for field in kind), column)
        return pa.struct([_inner_field(field, f"{column}.{field.name}", depth + 1) for field in kind])
    if pt.is_map(kind):
        return pa.map_(
            canonical_type(kind.key_type, f"{column} (map key)", depth + 1),
            canonical_type(kind.item_type, f"{column} (map value)", depth + 1),
        )
    raise Invalid(
        f"column {column!r} is {kind}, which a table cannot hold",
        hint="Use one of: bool, int8-int64, float32/64, decimal128, string, binary, date32, timestamp, json,"
        " list, struct, map.",
        column=column,
    )


def _inner_field(field: pa.Field, column: str, depth: int) -> pa.Field:
    if not field.nullable:
        raise Invalid(
            f"field {column!r} is declared not null: only whole columns can be required",
            hint="Declare it nullable. Where the struct itself is null, the field has no value.",
            column=column,
        )
    return pa.field(field.name, canonical_type(field.type, column, depth))


@require_utf8_names()
def relax_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with nullable fields inside its columns: for schemas that were not declared for a table."""
    return pa.schema([field.with_type(_relax_type(field.type)) for field in schema])


def _relax_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _relax_type(field.type)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_relax_type(kind.value_type))
    if pt.is_large_list(kind):
        return pa.large_list(_relax_type(kind.value_type))
    if pt.is_map(kind):
        return pa.map_(_relax_type(kind.key_type), _relax_type(kind.item_type))
    return kind


def canonical_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, canonical_type(field.type, field.name), field.nullable)


@require_utf8_names()
def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a table stores for a declared one, its names checked."""
    check_columns(schema.names)
    if not len(schema):
        raise Invalid("a table needs at least one column")
    return pa.schema([canonical_field(field) for field in schema])


def storage_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with JSON as string: the type that Delta, Spark and DuckDB return."""
    if is_json(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, storage_type(f.type), f.nullable) for f in kind])
    if pt.is_map(kind):
        return pa.map_(storage_type(kind.key_type), storage_type(kind.item_type))
    return kind


def storage_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, storage_type(f.type), f.nullable) for f in schema])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns, order and exact types of `schema`; columns it lacks become nulls."""
    places = {name: at for at, name in enumerate(table.column_names)}
    columns = [
        conform_column(table.column(places[field.name]), field.type)
        if field.name in places
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def conform_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from conform(pa.Table.from_batches([batch]), schema).to_batches()


def conform_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pt.is_dictionary(column.type):
        values = storage_type(kind)
        column = pa.chunked_array([c.dictionary.cast(values).take(c.indices) for c in column.chunks], type=values)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([c.storage for c in column.chunks], type=column.type.storage_type)
    if is_json(kind):
        return pa.chunked_array(
            [pa.ExtensionArray.from_storage(kind, c) for c in column.cast(pa.string()).chunks], type=kind
        )
    return column.cast(kind)


def wider_types(kind: pa.DataType) -> tuple[pa.DataType, ...]:
    """The types to which a column of `kind` may be widened, narrowest first."""
    return _WIDER.get(kind, ())


def evolve_schema(current: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """`current` with the new nullable columns and the widened numbers of `wanted`; `Invalid` for any other change."""
    wanted = canonical_schema(wanted)
    fields = list(current)
    for field in wanted:
        at = current.get_field_index(field.name)
        if at < 0:
            if not field.nullable:
                raise Invalid(
                    f"new column {field.name!r} must be nullable: existing rows have no value for it",
                    column=field.name,
                )
            fields.append(field)
            continue
        if current.field(at).nullable and not field.nullable:
            raise Invalid(f"column {field.name!r} cannot become required: rows may lack it", column=field.name)
        if field.type != current.field(at).type:
            if field.type not in wider_types(current.field(at).type):
                was = type_text(current.field(at).type)
                raise Invalid(
                    f"column {field.name!r} is {was} and cannot become {type_text(field.type)}",
                    hint="A table may gain nullable columns and widen numbers (int8→int64, float32→float64).",
                    column=field.name,
                )
            fields[at] = current.field(at).with_type(field.type)
    check_columns(field.name for field in fields)
    return pa.schema(fields)


def delta_json(schema: pa.Schema) -> str:
    """The schema as Delta writes it in a metaData action."""
    # Loaded late: Spark tasks use this module and need not have the library.
    from deltalake import Schema as DeltaSchema

    return str(DeltaSchema.from_arrow(storage_schema(schema)).to_json())


def needs_ntz(schema: pa.Schema) -> bool:
    """Whether a column holds local times, which Delta lists as a table feature."""
    return "timestamp_ntz" in json.dumps(json.loads(delta_json(schema)))


def to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def names_of(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The wanted column names, checked; all of them by default."""
    if columns is None:
        return list(schema.names)
    columns = name_list("columns", columns)
    for name in columns:
        if name not in schema.names:
            raise Invalid(f"no column {name!r}", hint=f"Columns: {', '.join(schema.names)}", column=str(name))
    if len(set(columns)) != len(columns):
        raise Invalid(f"columns names a column twice: {', '.join(columns)}")
    if not columns:
        raise Invalid("columns is an empty list; leave it out for all columns")
    return list(columns)
