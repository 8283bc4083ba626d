"""What a dry run of an ingest shows: how the files are written, their columns, first rows and bad rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strandline.cli.answer import Part, Rows, counted, cut, fault, note, size, warning
from strandline.cli.options import list_names

if TYPE_CHECKING:
    from strandline.jobs.ingest.job import IngestReport
    from strandline.jobs.ingest.preview import Preview

_CELL_CHARS = 30
_SIGNS = {"\t": "tab", " ": "space", "\x1f": "none", ",": "comma", ";": "semicolon", "|": "bar"}


def tell_preview(report: IngestReport, preview: Preview) -> Iterator[Part]:
    """The parts of a dry run after the list of its files."""
    moved = [file for file in report.files if file.action != "skip"]
    for text, files in _group_dialects(report).items():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        yield note(f"{files[0]}{more}: {text}")
    yield from list_names(report.names)
    if moved:
        columns = [(each.column, each.type, _show(each.example), each.nulls) for each in preview.columns]
        yield Rows(("COLUMN", "TYPE", "EXAMPLE", "NULLS"), columns)
    if preview.first_rows:
        names = list(preview.first_rows[0])
        yield "First rows:"
        yield Rows(names, [[_show(row[name]) for name in names] for row in preview.first_rows])
    if preview.bad_rows:
        yield warning(f"{counted(report.rejects, 'row')} would be refused:")
        bad = [(shorten(each.file), each.line, each.column, each.reason, _show(each.text)) for each in preview.bad_rows]
        yield Rows(("FILE", "LINE", "COLUMN", "WHY", "TEXT"), bad)
        if report.rejects > len(bad):
            yield f"… and {report.rejects - len(bad):,} more"
    for uri, file in preview.files.items():
        if file.error is not None:
            yield fault(f"{shorten(uri)} would not be loaded: ", file.error)
    made = f"make the table {report.table} and " if report.is_created else ""
    rows, skipped = counted(report.rows, "row"), report.count("skip")
    total = size(sum(file.bytes for file in moved))
    yield (
        f"Would {made}load {counted(len(moved), 'file')}, {rows}, {total}, and skip {skipped:,}. All rows were read,"
        " nothing was written."
    )
    if report.rejects:
        yield "Without --rejects a bad row fails the load; with it the good rows are loaded, the bad ones kept aside."


def _group_dialects(report: IngestReport) -> dict[str, list[str]]:
    """The files of each dialect, in words."""
    said: dict[str, list[str]] = {}
    for file in report.files:
        if file.dialect is not None:
            said.setdefault(_describe(file.dialect), []).append(shorten(file.file))
    return said


def _describe(dialect: dict[str, Any]) -> str:
    parts = [
        f"delimiter {_SIGNS.get(dialect['delimiter'], dialect['delimiter'])}",
        f"quote {dialect['quote'] or 'none'}",
        "a header" if dialect["has_header"] else "no header",
        dialect["encoding"],
    ]
    parts += ["spaces before quotes"] if dialect["spaced_quotes"] else []
    for word in ("escape", "comment"):
        parts += [f"{word} {dialect[word]}"] if dialect[word] else []
    if dialect["skipped_lines"]:
        parts.append(f"{counted(dialect['skipped_lines'], 'line')} before the table")
    return ", ".join(parts)


def _show(value: object) -> str | None:
    return None if value is None else cut(" ".join(str(value).split()), _CELL_CHARS)


def shorten(file: str) -> str:
    """A path as a person would type it from here."""
    relative = os.path.relpath(file) if file.startswith("/") else file
    return file if relative.startswith("../..") else relative
