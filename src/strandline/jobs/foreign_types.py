"""The types of other people's files, and the type that a table stores for each: one mapping for import and for ingest.

A stored type holds every value of the file's type exactly. Where no stored type does, the column is refused by name, or
left out. Values change their form, never their meaning: a time of day becomes its text, a duration its microseconds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.names import join_names, require_utf8_names
from strandline.model.rows import first_failing
from strandline.model.types import JSON, canonical_type, is_json

_DAY_NS = 24 * 60 * 60 * 10**9
_MOST_DIGITS = 38
# Where the 32 hexadecimal digits of a UUID stand in its text of 36 characters.
_UUID_DIGITS = [at for at in range(36) if at not in (8, 13, 18, 23)]


def unify_files(
    schemas: Sequence[pa.Schema], kept: Collection[str], folders: Sequence[pa.Field], where: str
) -> pa.Schema:
    """The columns `kept` that a table stores for files of these schemas, each with a type that holds the values of all
    files. `folders` are the partition columns, for those that no file has."""
    replaced = [
        pa.schema([pa.field(f.name, _replace_type(f.type), f.nullable) for f in schema if f.name in kept])
        for schema in schemas
    ]
    try:
        schema = pa.unify_schemas(replaced, promote_options="permissive")
    except pa.ArrowException as error:
        raise Invalid(f"{where}: its files have columns of different types: {error}", path=where) from error
    # A column that some file lacks is null there.
    everywhere = set(kept).intersection(*(schema.names for schema in replaced))
    found = [field.with_nullable(field.nullable or field.name not in everywhere) for field in schema]
    more = [field for field in folders if field.name in kept and field.name not in schema.names]
    return stored_schema(pa.schema([*found, *more]))


@require_utf8_names()
def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a table stores for a file's; `Invalid` names all columns that have no stored type."""
    fields, unfit = [], []
    for field in schema:
        kind = stored_type(field.type)
        try:
            canonical_type(kind, field.name)
        except Invalid as error:
            unfit.append((field.name, error.message))
        fields.append(pa.field(field.name, kind, field.nullable))
    if unfit:
        raise Invalid(
            "; ".join(message for _, message in unfit),
            hint=skip_hint([name for name, _ in unfit]),
            column=unfit[0][0],
            columns=[name for name, _ in unfit],
        )
    return pa.schema(fields)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that a table stores for a file's type; the type itself when there is none."""
    return _fill_null_types(_replace_type(kind))


def skip_hint(names: Iterable[str]) -> str:
    """How to load without these columns."""
    return f"Leave such columns out: add --skip {shlex.quote(join_names(names))}, or skip=[…] in Python."


def leave_out(names: Collection[str], skip: Collection[str], where: str) -> list[str]:
    """The columns that stay; `Invalid` when `skip` names one that is not there."""
    unknown = sorted(set(skip) - set(names))
    if unknown:
        raise Invalid(
            f"{where} has no column {unknown[0]!r} to skip", hint=f"Columns: {', '.join(names)}", column=unknown[0]
        )
    return [name for name in names if name not in skip]


def convert_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The values in their stored type. `pa.ArrowException` when one of them does not fit."""
    if column.type == kind:
        return column
    return pa.chunked_array([convert_array(chunk, kind) for chunk in column.chunks], type=kind)


def convert_rows(rows: pa.RecordBatch | pa.Table, schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    """The rows with the columns and types of `schema`; a column that they lack becomes null. `Invalid` names a value
    that does not fit. Rows count from `first_row`."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    columns = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        columns.append(_convert_or_name(table.column(at), field, first_row))
    return pa.record_batch(columns, schema=schema)


def _convert_or_name(column: pa.ChunkedArray, field: pa.Field, first_row: int) -> pa.Array:
    try:
        return convert_column(column, field.type).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = first_row + first_failing(len(column), lambda at, n: convert_column(column.slice(at, n), field.type))
        raise Invalid(
            f"row {row}, column {field.name!r}: {str(error).splitlines()[0]}",
            hint=skip_hint([field.name]),
            row=row,
            column=field.name,
        ) from error


def convert_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    found = array.type
    if found == kind:
        return array
    if pt.is_null(found):
        return pa.nulls(len(array), kind)
    if is_json(kind):
        texts = array.storage if isinstance(found, pa.BaseExtensionType) else array
        return pa.ExtensionArray.from_storage(kind, convert_array(texts, kind.storage_type))
    if not _needs_care(found):
        return array.cast(kind)
    if isinstance(found, pa.BaseExtensionType):
        if isinstance(found, pa.UuidType) and pt.is_string(kind):
            return _write_uuids(array.storage)
        return convert_array(array.storage, kind)
    if pt.is_dictionary(found):
        return convert_array(array.dictionary_decode(), kind)
    if pt.is_run_end_encoded(found):
        return convert_array(pc.run_end_decode(array), kind)
    if pt.is_struct(found) and pt.is_struct(kind):
        return _convert_struct(array, kind)
    if pt.is_map(found) and pt.is_map(kind):
        keys, items = convert_array(array.keys, kind.key_type), convert_array(array.items, kind.item_type)
        # A copy of the offsets: Arrow takes no mask over a slice.
        return pa.MapArray.from_arrays(pc.add(array.offsets, 0), keys, items, type=kind, mask=array.is_null())
    if _is_any_list(found) and pt.is_list(kind):
        # Not by Arrow's cast: it loses the values of a list view after a null.
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        values = convert_array(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pt.is_time(found) and pt.is_string(kind):
        return _write_times(array)
    if pt.is_duration(found) and pt.is_int64(kind):
        return array.cast(pa.duration("us")).cast(kind)
    return array.cast(kind)


def _replace_type(kind: pa.DataType, is_inner: bool = False) -> pa.DataType:
    """`kind` by the mapping, with nullable fields inside, and null types as they are."""
    if isinstance(kind, pa.BaseExtensionType):
        return _replace_extension(kind, is_inner)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _replace_type(kind.value_type, is_inner)
    if pt.is_decimal(kind):
        return _replace_decimal(kind)
    if pt.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pt.is_map(kind):
        return pa.map_(_replace_type(kind.key_type, True), _replace_type(kind.item_type, True))
    if _is_any_list(kind):
        return pa.list_(_replace_type(kind.value_type, True))
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _replace_type(field.type, True)) for field in kind])
    for is_kind, stored in _STORED:
        if is_kind(kind):
            return stored
    return kind


_STORED: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pt.is_uint8, pa.int16()),
    (pt.is_uint16, pa.int32()),
    (pt.is_uint32, pa.int64()),
    (pt.is_uint64, pa.decimal128(20, 0)),
    (pt.is_float16, pa.float32()),
    (lambda kind: pt.is_large_string(kind) or kind == pa.string_view(), pa.string()),
    (
        lambda kind: pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or kind == pa.binary_view(),
        pa.binary(),
    ),
    (pt.is_date64, pa.date32()),
    (pt.is_time, pa.string()),
    (pt.is_duration, pa.int64()),
)


_CAREFUL: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_dictionary, pt.is_run_end_encoded, pt.is_list_view, pt.is_large_list_view, pt.is_time, pt.is_duration,
)  # fmt: skip


def _replace_extension(kind: pa.BaseExtensionType, is_inner: bool) -> pa.DataType:
    if is_json(kind):
        return pa.string() if is_inner else JSON
    if isinstance(kind, pa.UuidType):
        return pa.string()
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    # A variant's bytes mean nothing without a reader for them, so it stays and is refused.
    return kind if "variant" in kind.extension_name else _replace_type(kind.storage_type, is_inner)


def _replace_decimal(kind: pa.DataType) -> pa.DataType:
    scale = max(0, kind.scale)
    digits = max(kind.precision - kind.scale + scale, scale)
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else pa.string()


def _fill_null_types(kind: pa.DataType) -> pa.DataType:
    """`kind` with text where a file has the type of no values, as text files have for a column without values."""
    if pt.is_null(kind):
        return pa.string()
    if pt.is_map(kind):
        return pa.map_(_fill_null_types(kind.key_type), _fill_null_types(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(_fill_null_types(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_fill_null_types(field.type)) for field in kind])
    return kind


def _needs_care(kind: pa.DataType) -> bool:
    """Whether Arrow's cast cannot be used for these values, or for values inside of them."""
    if isinstance(kind, pa.BaseExtensionType) or any(is_kind(kind) for is_kind in _CAREFUL):
        return True
    return any(_needs_care(kind.field(at).type) for at in range(kind.num_fields))


def _is_any_list(kind: pa.DataType) -> bool:
    is_plain = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return bool(is_plain or pt.is_list_view(kind) or pt.is_large_list_view(kind))


def _convert_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The fields by their names; a field that the array lacks becomes null."""
    inner = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [
        convert_array(inner[field.name], field.type) if field.name in inner else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _write_times(array: pa.Array) -> pa.Array:
    """Times of day as ISO text, each with as many digits as Python's `isoformat` writes, or nine."""
    fine = array.cast(pa.time64("ns"))
    ends = pc.min_max(fine.cast(pa.int64()))
    for end in (ends["min"], ends["max"]):
        if end.is_valid and not 0 <= end.as_py() < _DAY_NS:
            raise pa.ArrowInvalid(f"{end.as_py()} ns after midnight are no time of the day")
    return pc.replace_substring_regex(fine.cast(pa.string()), r"\.0{9}$|0{3}$", "")


def _write_uuids(array: pa.Array) -> pa.Array:
    """UUIDs as text, such as 0f8fad5b-d9cb-469f-a165-70867728950e."""
    filled = pc.fill_null(array, pa.scalar(bytes(16), array.type))
    start = filled.offset * 16
    digits = filled.buffers()[1].to_pybytes()[start : start + len(array) * 16].hex().encode()
    texts = np.full((len(array), 36), ord("-"), np.uint8)
    texts[:, _UUID_DIGITS] = np.frombuffer(digits, np.uint8).reshape(-1, 32)
    written = pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), len(array), [None, pa.py_buffer(texts.tobytes())])
    return pc.if_else(array.is_valid(), written.cast(pa.binary()).cast(pa.string()), pa.scalar(None, pa.string()))
