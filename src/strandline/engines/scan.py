"""The SQL of DuckDB and Spark for types and names, and the scan of files of several schemas in DuckDB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.names import backticked, caseless_name
from strandline.model.stored_names import stored_name
from strandline.model.types import is_json

_RUNS = 64
_FILE = "_sl_file"
PLACE, PLACE_ROW = "_sl_place", "_sl_row"
"""The place of a row: the number of its file, as the caller counts, and the row's own number in there."""
_DUCKS_OWN = frozenset({"file_index", "file_row_number"})
_DUCK = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER",
    pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR",
    pa.binary(): "BLOB", pa.date32(): "DATE", pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}  # fmt: skip
_SPARK = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
    pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.string(): "string",
    pa.binary(): "binary", pa.date32(): "date", pa.timestamp("us"): "timestamp_ntz",
    # Not "timestamp": its meaning depends on a setting of the session.
    pa.timestamp("us", tz="UTC"): "timestamp_ltz",
}  # fmt: skip
_DTYPES = {**_SPARK, pa.timestamp("us", tz="UTC"): "timestamp"}


def duck_type(kind: pa.DataType) -> str:
    if is_json(kind):
        return "VARCHAR"
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pt.is_list(kind):
        return f"{duck_type(kind.value_type)}[]"
    if pt.is_struct(kind):
        return f"STRUCT({', '.join(f'{quoted(f.name)} {duck_type(f.type)}' for f in kind)})"
    if pt.is_map(kind):
        return f"MAP({duck_type(kind.key_type)}, {duck_type(kind.item_type)})"
    return _DUCK[kind]


def spark_type(kind: pa.DataType) -> str:
    return _spark_type(kind, lambda field: f"{backticked(field.name)}: {spark_type(field.type)}", ", ", _SPARK)


def spark_dtype(kind: pa.DataType) -> str:
    """The type as `DataFrame.dtypes` writes it, without quotes."""
    return _spark_type(kind, lambda field: f"{field.name}:{spark_dtype(field.type)}", ",", _DTYPES)


def _spark_type(
    kind: pa.DataType, name: Callable[[pa.Field], str], comma: str, plain: Mapping[pa.DataType, str]
) -> str:
    def inner(kind: pa.DataType) -> str:
        return _spark_type(kind, name, comma, plain)

    if is_json(kind):
        return "string"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_list(kind):
        return f"array<{inner(kind.value_type)}>"
    if pt.is_struct(kind):
        return f"struct<{comma.join(map(name, kind))}>"
    if pt.is_map(kind):
        return f"map<{inner(kind.key_type)}{comma}{inner(kind.item_type)}>"
    return plain[kind]


def spark_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{backticked(field.name)} {spark_type(field.type)}" for field in schema)


def quoted(name: str) -> str:
    """A name in DuckDB's quotes."""
    if not name or "\0" in name:
        raise Invalid(
            f"DuckDB cannot read a field with the name {name!r}, which an earlier version allowed",
            hint="Its rows are in Parquet files of the table's folder, which pyarrow reads.",
        )
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str], prefix: str = "") -> str:
    """Column names for a SELECT list or USING clause."""
    return ", ".join(prefix + quoted(name) for name in names)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Inside:
    """The column of a file that holds the number of each row, and the range of the rows to read, `(after, upto]`;
    without a range all of them."""

    column: str
    after: int | None = None
    upto: int | None = None

    @property
    def condition(self) -> str | None:
        """SQL for the rows to read, for DuckDB and Spark."""
        return None if self.after is None else f"{self.column} > {self.after} AND {self.column} <= {self.upto}"


@dataclass(frozen=True)
class ScanFile:
    """A file to read, with its schema. `number` comes from the commit and holds for all its rows: the seq of a log
    file, the vnode of a baseline file. In a file with `inside`, each row has a number of its own."""

    url: str
    path: str
    schema_id: int
    number: int
    size: int
    inside: Inside | None = None


def by_schema(files: Iterable[ScanFile]) -> list[tuple[int, list[ScanFile]]]:
    """Files grouped by schema, and those with numbers inside by the range to read: each group is one scan with known
    columns and one condition."""
    groups: dict[tuple[int, Inside | None], list[ScanFile]] = defaultdict(list)
    for file in files:
        groups[file.schema_id, file.inside].append(file)
    return sorted(((schema_id, group) for (schema_id, _), group in groups.items()), key=lambda pair: pair[0])


def _number_sql(numbers: Sequence[int]) -> str:
    """SQL for the number of a row's file.

    Numbers are mostly consecutive, and arithmetic is several times quicker than indexing a list."""
    starts: list[tuple[int, int, int]] = []
    for at, number in enumerate(numbers):
        if starts:
            first, base, step = starts[-1]
            if number == base + step * (at - first):
                continue
            if at == first + 1 and number in (base, base + 1):
                starts[-1] = (first, base, number - base)
                continue
        starts.append((at, number, 1))
    if len(starts) > _RUNS:
        return f"[{','.join(map(str, numbers))}][CAST(file_index AS BIGINT) + 1]"
    exprs = [f"file_index + {base - first}" if step else str(base) for first, base, step in starts]
    cases = "".join(f"WHEN file_index < {end} THEN {e} " for e, (end, _, _) in zip(exprs, starts[1:], strict=False))
    return f"CASE {cases}ELSE {exprs[-1]} END" if cases else exprs[-1]


def has_places(schemas: Iterable[pa.Schema]) -> bool:
    """Whether DuckDB tells the places of rows in files of these schemas: a column of the name hides its own."""
    names = {name for columns in schemas for name in (*columns.names, *map(stored_name, columns))}
    return _DUCKS_OWN.isdisjoint(map(caseless_name, names))


def duck_scan(
    files: Sequence[ScanFile],
    schemas: Sequence[pa.Schema],
    columns: Sequence[str],
    *,
    number_as: str | None = None,
    places: Mapping[str, int] | None = None,
) -> str:
    """SQL that reads `columns` of the newest of `schemas` from files written under any of them.

    `schemas[i]` are the columns inside files of schema id i. Columns that a file lacks are null, narrower ones are
    cast. `number_as` names a column for the number of each row: its file's, or its own (see `Inside`). `places`, which
    numbers the files by their URLs, adds the place of each row; the files must allow that (see `has_places`)."""
    wanted = [schemas[-1].field(name) for name in columns]
    parts = []
    for schema_id, group in by_schema(files):
        inside = schemas[schema_id]
        exprs = []
        for field in wanted:
            at = inside.get_field_index(field.name)
            stored = quoted(stored_name(field))
            if at < 0:
                exprs.append(f"CAST(NULL AS {duck_type(field.type)}) AS {quoted(field.name)}")
            elif inside.field(at).type != field.type or is_json(field.type):
                exprs.append(f"CAST({stored} AS {duck_type(field.type)}) AS {quoted(field.name)}")
            else:
                exprs.append(stored if stored == quoted(field.name) else f"{stored} AS {quoted(field.name)}")
        urls = ", ".join(literal(file.url) for file in group)
        options = "hive_partitioning = false"
        own = group[0].inside
        numbers = [file.number for file in group]
        names = [*inside.names, *map(stored_name, inside)]
        if number_as and own is not None:
            exprs.append(f"{own.column} AS {number_as}")
        elif number_as and "file_index" in map(caseless_name, names):
            # The table's own column hides DuckDB's number of a file.
            options += f", filename = '{_FILE}'"
            exprs.append(f"map([{urls}], CAST([{','.join(map(str, numbers))}] AS BIGINT[]))[{_FILE}] AS {number_as}")
        elif number_as:
            exprs.append(f"CAST({_number_sql(numbers)} AS BIGINT) AS {number_as}")
        if places is not None:
            exprs.append(f"CAST({_number_sql([places[file.url] for file in group])} AS BIGINT) AS {PLACE}")
            exprs.append(f"file_row_number AS {PLACE_ROW}")
        where = f" WHERE {own.condition}" if own is not None and own.condition else ""
        parts.append(f"SELECT {', '.join(exprs)} FROM read_parquet([{urls}], {options}){where}")
    if not parts:
        empty = [f"CAST(NULL AS {duck_type(field.type)}) AS {quoted(field.name)}" for field in wanted]
        if number_as:
            empty.append(f"CAST(NULL AS BIGINT) AS {number_as}")
        if places is not None:
            empty += [f"CAST(NULL AS BIGINT) AS {name}" for name in (PLACE, PLACE_ROW)]
        parts.append(f"SELECT {', '.join(empty)} WHERE false")
    return " UNION ALL ".join(parts)
