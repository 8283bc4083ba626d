"""Parquet files, read a batch at a time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.foreign_types import convert_rows, leave_out, stored_type, unify_files
from strandline.jobs.ingest.bad_rows import BadRow, sift
from strandline.jobs.ingest.source import Source
from strandline.jobs.parquet_files import ForeignParquet, open_parquet
from strandline.jobs.partitions import add_partitions, partition_fields
from strandline.model.arrow_check import python_value
from strandline.model.names import join_names
from strandline.model.rows import check_rows, may_hold
from strandline.model.schema_text import type_text


def infer_parquet(sources: Sequence[Source]) -> pa.Schema:
    """The columns of a new table for these files, in stored types, with the columns that their folders hold."""
    schemas = []
    for source in sources:
        with open_parquet(source.storage, source.path, source.skip) as file:
            schemas.append(file.schema)
    folders = partition_fields(source.partitions for source in sources)
    names = dict.fromkeys(field.name for schema in [*schemas, pa.schema(folders)] for field in schema)
    where = sources[0].uri
    return unify_files(schemas, leave_out(list(names), sources[0].skip, where), folders, where)


def read_parquet(source: Source, schema: pa.Schema, names: ColumnMatcher) -> Iterator[tuple[pa.Table, int] | BadRow]:
    """Tables of good rows, each with the bytes of the file that are done, and bad rows."""
    with open_parquet(source.storage, source.path, source.skip) as file:
        kept = [name for name in file.schema.names if name not in source.skip]
        parts = {name: text for name, text in source.partitions.items() if name not in source.skip}
        given = list(dict.fromkeys([*kept, *parts]))
        columns = dict(zip(given, names.require(given, source.uri, file=source.uri), strict=True))
        found = [_choose_type(file, name, schema.field(columns[name])) for name in kept]
        partitions = {columns[name]: text for name, text in parts.items()}
        row, count = 0, max(1, file.rows)
        for batch in file.batches(kept):
            rows = pa.Table.from_batches([batch]).rename_columns([field.name for field in found])
            rows = add_partitions(rows, partitions, schema, source.uri)
            target = pa.schema([*found, *list(rows.schema)[len(found) :]])
            for piece in _sift_rows(rows, target, schema):
                if isinstance(piece, pa.Table):
                    yield piece, source.size * (row + rows.num_rows) // count
                else:
                    column, reason = _explain_row(rows.slice(piece, 1), target, schema)
                    values = {name: python_value(rows.column(name)[piece]) for name in rows.column_names}
                    text = json.dumps(values, default=str, ensure_ascii=False)
                    yield BadRow(row + piece + 1, column, reason, text)
            row += rows.num_rows


def _choose_type(file: ForeignParquet, name: str, column: pa.Field) -> pa.Field:
    """The type in which the table takes a column of the file: the file's own where the table may hold it, else the
    stored type for it. `Invalid` when the table holds neither: the column is wrong, not a row."""
    found = file.schema.field(name).type
    for candidate in (found, stored_type(found)):
        if may_hold(candidate, column.type):
            return pa.field(column.name, candidate)
    raise Invalid(
        f"{file.uri}: column {name!r}: {type_text(found)} is not {type_text(column.type)}",
        hint=f"Leave it out: --skip {shlex.quote(join_names([name]))}",
        file=file.uri,
        column=name,
    )


def _convert(rows: pa.Table, target: pa.Schema, schema: pa.Schema) -> pa.Table:
    return next(check_rows(convert_rows(rows, target, 0), schema))


def _sift_rows(rows: pa.Table, target: pa.Schema, schema: pa.Schema) -> Iterator[pa.Table | int]:
    return sift(rows.num_rows, lambda start, stop: _convert(rows.slice(start, stop - start), target, schema))


def _explain_row(row: pa.Table, target: pa.Schema, schema: pa.Schema) -> tuple[str | None, str]:
    try:
        _convert(row, target, schema)
    except Invalid as error:
        column = error.fields.get("column")
        return column, error.message.partition(": ")[2]
    return None, "the row does not fit the table"
