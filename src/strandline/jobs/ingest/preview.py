"""What an ingest would do with its files: read them all, write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strandline.errors import StrandlineError
from strandline.jobs.ingest.bad_rows import BadRow
from strandline.jobs.ingest.file_reader import FileReader
from strandline.jobs.ingest.plan import Step
from strandline.model.arrow_check import python_value
from strandline.model.schema_text import type_text

_FIRST_ROWS = 5
_BAD_ROWS = 20


@dataclass(frozen=True)
class ColumnPreview:
    """A column of the table: its type, a value of the files, and the number of rows without one."""

    column: str
    type: str
    example: Any
    nulls: int


@dataclass(frozen=True)
class BadRowPreview:
    """A row that would be refused."""

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True)
class FilePreview:
    """What one file has: rows that fit, rows that do not, or an error for which nothing of it would be loaded."""

    rows: int = 0
    rejects: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Preview:
    """The columns, the first rows and the first bad rows of the files that would be loaded."""

    columns: tuple[ColumnPreview, ...]
    first_rows: tuple[dict[str, Any], ...]
    bad_rows: tuple[BadRowPreview, ...]
    files: dict[str, FilePreview] = field(default_factory=dict)


def preview(steps: Sequence[Step], schema: pa.Schema, reader: FileReader) -> Preview:
    """Read the files of these steps to their ends."""
    nulls = dict.fromkeys(schema.names, 0)
    examples: dict[str, Any] = dict.fromkeys(schema.names)
    first: list[dict[str, Any]] = []
    bad: list[BadRowPreview] = []
    files = {}
    for step in steps:
        uri, rows, rejects, fault = step.source.uri, 0, 0, None
        try:
            for found in reader.read(step):
                if isinstance(found, BadRow):
                    rejects += 1
                    if len(bad) < _BAD_ROWS:
                        bad.append(BadRowPreview(uri, found.line, found.column, found.reason, found.text))
                    continue
                table = found.table
                rows += table.num_rows
                first += _show_rows(table.slice(0, _FIRST_ROWS - len(first)))
                for name in table.column_names:
                    column = table.column(name)
                    nulls[name] += column.null_count
                    if examples[name] is None and column.null_count < len(column):
                        examples[name] = python_value(column.drop_null()[0])
        except StrandlineError as error:
            fault = str(error)
        files[uri] = FilePreview(rows, rejects, fault)
    columns = (ColumnPreview(each.name, type_text(each.type), examples[each.name], nulls[each.name]) for each in schema)
    return Preview(tuple(columns), tuple(first), tuple(bad), files)


def _show_rows(rows: pa.Table) -> list[dict[str, Any]]:
    return [{name: python_value(rows.column(name)[at]) for name in rows.column_names} for at in range(rows.num_rows)]
