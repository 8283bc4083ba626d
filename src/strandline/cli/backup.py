"""Copy the lake to another place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.answer import Answer, Part, counted, size, warning
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
    """Copy the lake to another place, while others write it. A second backup to the same place copies only new files.

    Sinks, marks, dead letters and tokens are kept beside the copy, for a restore; the copy itself sends nothing."""
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
    yield from describe_state(report, "Took along")
    yield f"The backup is a lake: strandline --lake {shlex.quote(dest)} status"


def describe_state(report: BackupReport, verb: str) -> Iterator[Part]:
    """What a copy took of the state, and what it left out."""
    state = report.state
    counts = ((state.sinks, "sink"), (state.letters, "dead letter"), (state.tokens, "token"))
    if taken := [counted(count, noun) for count, noun in counts if count]:
        yield f"{verb}: {', '.join(taken)}{', with marks' if state.marks else ''}."
    for what in state.left_out:
        yield warning(f"Left out: {what}.")


def describe_copy(report: BackupReport) -> str:
    """What a copy did, in words."""
    tables = counted(len(report.tables), "table")
    done = f"{counted(report.files_copied, 'file')}, {size(report.bytes_copied)}"
    there = counted(report.files_skipped, "file was", "files were")
    skipped = f"; {there} there already" if report.files_skipped else ""
    return f"{tables} to {report.uri}: {done}, {report.seconds:.1f} s{skipped}"
