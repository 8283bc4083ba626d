"""Parquet files, read a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import Invalid, NotFound
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.bad_rows import BadRow, sift
from strandline.jobs.ingest.source import Source
from strandline.model.arrow_check import python_value
from strandline.model.names import require_utf8_names
from strandline.model.rows import check_rows, may_hold
from strandline.storage.parquet import reader


def open_parquet(source: Source) -> pq.ParquetFile:
    try:
        with require_utf8_names():
            return reader.open_file(source.storage, source.path)
    except FileNotFoundError as error:
        raise NotFound(f"{source.uri} is gone", file=source.uri) from error
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"{source.uri} is not a Parquet file: {str(error).splitlines()[0]}", file=source.uri) from error


def read_parquet(source: Source, schema: pa.Schema, names: ColumnMatcher) -> Iterator[tuple[pa.Table, int] | BadRow]:
    """Tables of good rows, each with the bytes of the file that are done, and bad rows."""
    with open_parquet(source) as file:
        columns = names.require(file.schema_arrow.names, source.uri, file=source.uri)
        for field, column in zip(file.schema_arrow, columns, strict=True):
            kind = schema.field(column).type
            # The column is wrong, not a row.
            if not may_hold(field.type, kind):
                raise Invalid(
                    f"{source.uri}: column {field.name!r}: {field.type} is not {kind}",
                    file=source.uri,
                    column=field.name,
                )
        row, count = 0, max(1, file.metadata.num_rows)
        try:
            for batch in reader.batches(file):
                rows = pa.Table.from_batches([batch]).rename_columns(columns)
                for found in _sift_rows(rows, schema):
                    if isinstance(found, pa.Table):
                        yield found, source.size * (row + rows.num_rows) // count
                    else:
                        bad, reason = _explain_row(rows.slice(found, 1), schema)
                        values = {name: python_value(rows.column(name)[found]) for name in rows.column_names}
                        text = json.dumps(values, default=str, ensure_ascii=False)
                        yield BadRow(row + found + 1, bad, reason, text)
                row += rows.num_rows
        except (pa.ArrowException, OSError) as error:
            raise Invalid(
                f"{source.uri} is damaged after row {row}: {str(error).splitlines()[0]}", file=source.uri
            ) from error


def _sift_rows(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.Table | int]:
    return sift(rows.num_rows, lambda start, stop: next(check_rows(rows.slice(start, stop - start), schema)))


def _explain_row(row: pa.Table, schema: pa.Schema) -> tuple[str | None, str]:
    try:
        next(check_rows(row, schema))
    except Invalid as error:
        column = error.fields.get("column")
        return column, error.message.partition(": ")[2]
    return None, "the row does not fit the table"
