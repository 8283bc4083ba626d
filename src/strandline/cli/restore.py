"""Make a lake from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, warning
from strandline.cli.backup import describe_copy, describe_state
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call
from strandline.errors import NotFound


def restore(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The backup: a folder or s3://bucket/prefix.")],
) -> Answer:
    """Copy a backup to the lake's place, which must hold nothing. Its sinks wait until doctor --adopt-state.

    To set one table back to an earlier seq: strandline table restore."""
    call.check_folder()
    try:
        with progress_bar("Copying") as progress:
            report = sl.Lake.restore_backup(source, call.path, state=call.state, progress=progress)
    except NotFound as error:
        hint = "Name the place that a backup was made to: strandline backup DEST"
        raise NotFound(f"{error.message}; nothing was restored", hint=hint, path=source) from error

    def tell() -> Iterator[Part]:
        yield f"Restored {describe_copy(report)}."
        yield from describe_state(report, "Restored")
        if report.state.is_fenced:
            yield warning("Nothing is sent yet: the original may still run, and destinations may have newer rows.")
            yield f"When it has stopped, ask them how far they are: {call.command('doctor --adopt-state')}"
        yield f"See: {call.command('status')}"

    return Answer(report, tell())
