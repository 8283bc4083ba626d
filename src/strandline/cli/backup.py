"""Copy the lake to another place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.answer import Answer, Part, counted, size
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.jobs.backup import BackupReport


def backup(
    call: Call,
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="An empty folder or s3://bucket/prefix, or an earlier backup.")
    ],
) -> Answer:
    """Copy the lake to another place, while others write it. Into an earlier backup goes only what is new."""
    lake = call.lake()
    with progress_bar("Copying") as progress:
        report = lake.backup(dest, progress=progress)
    return Answer(report, _tell(report, dest))


def _tell(report: BackupReport, dest: str) -> Iterator[Part]:
    if report.files_copied:
        yield f"Copied {describe_copy(report)}."
    else:
        there = counted(report.files_skipped, "file is", "files are")
        yield f"Nothing is new: {there} in {report.uri} already."
    yield f"The backup is a lake: strandline --lake {shlex.quote(dest)} status"


def describe_copy(report: BackupReport) -> str:
    """What a copy did, in words."""
    tables = counted(len(report.tables), "table")
    done = f"{counted(report.files_copied, 'file')}, {size(report.bytes_copied)}"
    there = counted(report.files_skipped, "file was", "files were")
    skipped = f"; {there} there already" if report.files_skipped else ""
    return f"{tables} to {report.uri}: {done}, {report.seconds:.1f} s{skipped}"
