"""Turn a caller's data into rows of a table's exact schema, or name the row and column that is wrong.

Accepted: Arrow tables, batches and readers, pandas, polars, anything else with an Arrow stream, and lists of
dicts. A value is taken when the column's type holds it exactly; text is never parsed into numbers or times here.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model import json_text, moments
from strandline.model.arrow_check import Fault, find_invalid, find_unreadable, python_value
from strandline.model.checked_rows import CheckedRows, Mask
from strandline.model.json_text import JsonText
from strandline.model.names import require_utf8_names
from strandline.model.types import conform_column, is_json, storage_type, type_text
from strandline.model.values import first_unfit

_DICTS_AT_ONCE = 10_000


def is_spark(data: object) -> bool:
    """Whether `data` is a Spark DataFrame, classic or Connect, without importing PySpark."""
    return any(base.__module__.startswith("pyspark.sql") for base in type(data).__mro__)


def check_rows(
    data: object, schema: pa.Schema, *, required: Sequence[str] | None = None, first_row: int = 0
) -> Iterator[pa.Table]:
    """The rows of `data` in pieces, each with exactly the columns and types of `schema`.

    Values that the data lacks become nulls where the schema allows. `required` names the columns that must have
    values, by default the not-null ones of the schema. Errors count rows from `first_row` on."""
    return (piece.table for piece in check_given(data, schema, required=required, first_row=first_row))


def check_given(
    data: object, schema: pa.Schema, *, required: Sequence[str] | None = None, first_row: int = 0
) -> Iterator[CheckedRows]:
    """The rows as `check_rows` gives them, and which values the data lacks."""
    needed = [f.name for f in schema if not f.nullable] if required is None else list(required)
    offset = first_row
    for piece in _split_data(data, schema):
        if isinstance(piece, pa.Table):
            with require_utf8_names():
                _raise_fault(find_invalid(piece), offset)
                table = _cast_table(piece, schema, offset)
            present = set(piece.column_names)
            given = CheckedRows.of_columns(table, [name for name in schema.names if name not in present])
        else:
            table = _table_from_dicts(piece, schema, offset)
            given = CheckedRows(table, _find_lacking(piece, schema.names), by_row=True)
        table = drop_json_nulls(table, schema)
        _raise_fault(find_unreadable(table), offset)
        check_required(table, needed, offset)
        check_json(table, offset)
        yield replace(given, table=table)
        offset += table.num_rows


def _find_lacking(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Mask]:
    """Which dicts lack which columns. A dict has no name twice and none that is not a column."""
    if all(len(row) == len(names) for row in rows):
        return {}
    masks = {name: np.fromiter((name not in row for row in rows), np.bool_, len(rows)) for name in names}
    return {name: mask for name, mask in masks.items() if mask.any()}


def _raise_fault(fault: Fault | None, offset: int) -> None:
    if fault is not None:
        raise fault.error(offset)


def _split_data(data: object, schema: pa.Schema) -> Iterator[pa.Table | Sequence[Any]]:
    if isinstance(data, pa.Table):
        yield data
    elif isinstance(data, pa.RecordBatch):
        yield pa.Table.from_batches([data])
    elif type(data).__module__.startswith("pandas.") and hasattr(data, "to_dict") and hasattr(data, "columns"):
        try:
            table = pa.Table.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError):
            # Going row by row finds the value that Arrow could not take.
            yield _mark_texts(data.to_dict("records"), schema)
        else:
            yield _check_moments(table, data, schema)
    elif hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise _not_rows_error(data) from error
        for batch in reader:
            yield pa.Table.from_batches([batch])
    elif isinstance(data, Mapping | str | bytes):
        raise _not_rows_error(data)
    elif isinstance(data, Sequence):
        for at in range(0, len(data), _DICTS_AT_ONCE):
            yield data[at : at + _DICTS_AT_ONCE]
    elif isinstance(data, Iterable):
        for item in data:
            if isinstance(item, pa.RecordBatch):
                yield pa.Table.from_batches([item])
            elif isinstance(item, pa.Table):
                yield item
            else:
                yield [item]
    else:
        raise _not_rows_error(data)


def _mark_texts(rows: list[dict[Any, Any]], schema: pa.Schema) -> list[dict[Any, Any]]:
    """The rows of a frame, in which a text for a JSON column is JSON text, as in every column."""
    names = {field.name for field in schema if is_json(field.type)}
    return [
        {name: JsonText(value) if name in names and isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]


def _check_moments(table: pa.Table, frame: Any, schema: pa.Schema) -> pa.Table:
    """The rows of a pandas frame. Arrow cuts moments that the frame holds as objects, so they are checked here."""
    for at, field in enumerate(table.schema):
        if frame.dtypes.iloc[at].kind != "O" or field.name not in schema.names:
            continue
        column = frame.iloc[:, at]
        if pt.is_date(field.type) or pt.is_timestamp(field.type):
            values = column.where(column.notna(), None).tolist()
            table = table.set_column(at, field.name, _build_column(values, schema.field(field.name), 0))
        elif "timestamp" in str(field.type):
            found = next(((row, v) for row, v in enumerate(column) if moments.has_nanoseconds(v)), None)
            if found is not None:
                raise _unfit_error(found[0], schema.field(field.name), found[1], moments.MICROSECONDS)
    return table


def _not_rows_error(data: object) -> Invalid:
    return Invalid(f"rows are a {type(data).__name__}; expected a list of dicts, an Arrow table or a DataFrame")


def _cast_table(table: pa.Table, schema: pa.Schema, offset: int) -> pa.Table:
    places = {name: at for at, name in enumerate(table.column_names)}
    if len(places) != table.num_columns:
        raise Invalid(f"a column name occurs twice: {', '.join(table.column_names)}")
    known = set(schema.names)
    for name in places:
        if name not in known:
            raise _unknown_column_error(name, schema, offset)
    columns = []
    for field in schema:
        at = places.get(field.name)
        if at is None:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            columns.append(_cast_column(table.column(at), field, offset))
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))


def _unknown_column_error(name: str, schema: pa.Schema, row: int) -> Invalid:
    return Invalid(
        f"row {row}: no column {name!r} in the table",
        hint=f"Columns: {', '.join(schema.names)}. New nullable columns are added with evolve().",
        row=row,
        column=name,
    )


def may_hold(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of type `found` may go into a column of type `wanted`, each if it fits."""
    return found == wanted or _is_time_for_date(found, wanted) or _may_cast(found, wanted)


def _is_time_for_date(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(pt.is_date(wanted) and pt.is_timestamp(found) and found.tz is None)


def _cast_column(column: pa.ChunkedArray, field: pa.Field, offset: int) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if column.null_count == len(column):
        # The type of a column without values means nothing: an empty pandas frame has floats or objects everywhere.
        return pa.chunked_array([pa.nulls(len(column), field.type)])
    if not may_hold(column.type, field.type):
        row = offset + _find_mismatch(column, field.type)
        raise Invalid(
            f"row {row}, column {field.name!r}: {type_text(column.type)} is not {type_text(field.type)}",
            hint=moments.hint(python_value(column[row - offset]), field.type),
            row=row,
            column=field.name,
        )
    try:
        typed = conform_column(column, field.type)
        if pt.is_float32(field.type) and pt.is_floating(column.type):
            _refuse_overflow(column, typed)
        is_time = _is_time_for_date(column.type, field.type)
        if is_time and pc.any(pc.not_equal(typed.cast(column.type), column), min_count=0).as_py():
            raise pa.ArrowInvalid("its time is not midnight")
        return typed
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        at = first_failing(len(column), lambda a, n: _cast_column(column.slice(a, n), field, 0))
        value = python_value(column[at])
        raise Invalid(
            f"row {offset + at}, column {field.name!r}: {_show_value(value)} does not fit {type_text(field.type)}"
            f"{_explain_cast(error)}",
            hint=moments.hint(value, field.type),
            row=offset + at,
            column=field.name,
        ) from error


def _explain_cast(error: Exception) -> str:
    """Why Arrow refuses a value, in words of ours or not at all."""
    text = str(error).splitlines()[0]
    if "would lose data" in text:
        return " (a part of it would be lost)"
    return "" if re.search(r"[a-z]+\[|\bcast", text, re.I) else f" ({text})"


def _refuse_overflow(column: pa.ChunkedArray, typed: pa.ChunkedArray) -> None:
    if pc.any(pc.and_(pc.is_inf(typed), pc.is_finite(column)), min_count=0).as_py():
        raise pa.ArrowInvalid("a number is too large for 32 bits")


def _find_mismatch(column: pa.ChunkedArray, kind: pa.DataType) -> int:
    """The first row with a value that `kind` cannot hold."""
    if pt.is_struct(column.type) and pt.is_struct(kind):
        names = {field.name for field in kind}
        for field in column.type:
            if field.name not in names:
                return _first_true(pc.is_valid(pc.struct_field(column, [field.name])))
    return _first_true(pc.is_valid(column))


def _may_cast(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether some values of type `found` fit type `wanted`; each is checked later."""
    if pt.is_null(found) or found == storage_type(wanted):
        return True
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    if pt.is_dictionary(found):
        found = found.value_type
    if is_json(wanted):
        wanted = pa.string()
    if pt.is_timestamp(found) and pt.is_timestamp(wanted):
        return bool((found.tz is None) == (wanted.tz is None))
    if pt.is_decimal(wanted):
        return bool(pt.is_decimal(found) or pt.is_integer(found))
    if pt.is_struct(found) and pt.is_struct(wanted):
        fields = {field.name: field.type for field in wanted}
        return all(f.name in fields and _may_cast(f.type, fields[f.name]) for f in found)
    if _is_list(found) and _is_list(wanted):
        return _may_cast(found.value_type, wanted.value_type)
    if pt.is_map(found) and pt.is_map(wanted):
        return _may_cast(found.key_type, wanted.key_type) and _may_cast(found.item_type, wanted.item_type)
    families: tuple[Callable[[pa.DataType], bool], ...] = (
        lambda t: pt.is_integer(t) or pt.is_floating(t),
        lambda t: pt.is_string(t) or pt.is_large_string(t) or t == pa.string_view(),
        lambda t: pt.is_binary(t) or pt.is_large_binary(t) or t == pa.binary_view() or pt.is_fixed_size_binary(t),
        pt.is_date,
        pt.is_boolean,
    )
    return any(family(found) and family(wanted) for family in families)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _table_from_dicts(piece: Sequence[Any], schema: pa.Schema, offset: int) -> pa.Table:
    known = set(schema.names)
    for at, row in enumerate(piece):
        if not isinstance(row, Mapping):
            raise Invalid(f"row {offset + at} is a {type(row).__name__}; expected a dict", row=offset + at)
        for name in row:
            if name not in known:
                raise _unknown_column_error(str(name), schema, offset + at)
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in piece]
        if is_json(field.type):
            values = [_to_json_text(value, offset + at, field.name) for at, value in enumerate(values)]
        columns.append(_build_column(values, field, offset))
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))


def _build_column(values: list[Any], field: pa.Field, offset: int) -> pa.ChunkedArray:
    kind = storage_type(field.type)
    if pt.is_date(kind) or pt.is_timestamp(kind):
        values = moments.to_python(values, kind)
    at = first_unfit(values, kind)
    if at is None:
        try:
            return conform_column(pa.chunked_array([pa.array(values, kind)]), field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            at = first_failing(len(values), lambda a, n: pa.array(values[a : a + n], kind))
    raise _unfit_error(offset + at, field, values[at], moments.hint(values[at], kind))


def _unfit_error(row: int, field: pa.Field, value: Any, hint: str | None) -> Invalid:
    shown = f"{_show_value(value)} ({type(value).__name__})"
    return Invalid(
        f"row {row}, column {field.name!r}: {shown} does not fit {type_text(field.type)}",
        hint=hint,
        row=row,
        column=field.name,
    )


def _to_json_text(value: Any, row: int, column: str) -> str | None:
    try:
        return json_text.to_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"row {row}, column {column!r}: {_show_value(value)} is not JSON ({error})", row=row, column=column
        ) from error


def _show_value(value: Any) -> str:
    """A value for a message: short and printable."""
    shown = value.isoformat(" ") if isinstance(value, dt.datetime) else repr(value)
    return shown[:80].encode("utf-8", "backslashreplace").decode()


def first_failing(count: int, attempt: Callable[[int, int], object]) -> int:
    """The first row for which `attempt(at, 1)` raises, by halving; 0 when only the whole range fails."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(low, middle - low)
            low = middle
        except (Invalid, pa.ArrowException, OverflowError, TypeError, ValueError):
            high = middle
    return low


def _first_true(mask: pa.ChunkedArray) -> int:
    return max(0, int(pc.index(mask, pa.scalar(True)).as_py()))


def check_required(table: pa.Table, needed: Sequence[str], offset: int) -> None:
    """`Invalid` when one of these columns has a null."""
    for name in needed:
        column = table.column(name)
        if column.null_count:
            row = offset + _first_true(pc.is_null(column))
            raise Invalid(f"row {row}, column {name!r}: a value is required, found null", row=row, column=name)


def drop_json_nulls(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with null for the JSON text `null`: a JSON column has no other null."""
    for field in schema:
        if is_json(field.type) and field.name in table.column_names:
            at = table.column_names.index(field.name)
            texts = conform_column(table.column(at), pa.string())
            is_null = pc.match_substring_regex(texts, r"^[ \t\r\n]*null[ \t\r\n]*$")
            if pc.any(is_null, min_count=0).as_py():
                kind = table.column(at).type
                table = table.set_column(at, field.name, conform_column(pc.if_else(is_null, None, texts), kind))
    return table


def check_json(table: pa.Table, offset: int) -> None:
    """`Invalid` when a JSON column holds other text. Each distinct value is parsed once."""
    for field in table.schema:
        if not is_json(field.type):
            continue
        texts = pa.chunked_array([c.storage for c in table.column(field.name).chunks], type=pa.string())
        for found in pc.unique(texts).drop_null():
            text = found.as_py()
            try:
                json_text.check(text)
            except (ValueError, RecursionError) as error:
                row = offset + _first_true(pc.equal(texts, pa.scalar(text)))
                why = str(error).splitlines()[0] if isinstance(error, json.JSONDecodeError) else type(error).__name__
                raise Invalid(
                    f"row {row}, column {field.name!r}: {_show_value(text)} is not JSON ({why})",
                    hint="A column of strings for a JSON column holds JSON texts. For a column of values:"
                    " sl.json_values([…])",
                    row=row,
                    column=field.name,
                ) from error
