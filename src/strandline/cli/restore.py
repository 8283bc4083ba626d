"""Make a lake from a backup."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer
from strandline.cli.backup import copied
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.errors import NotFound
from strandline.jobs.backup import restore as copy_back


def register(app: typer.Typer) -> None:
    verb(app, "restore")(restore)


def restore(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The backup: a folder or s3://bucket/prefix.")],
) -> Answer:
    """Copy a backup to the lake's place, which must hold nothing.

    (To make one table again what it was: strandline table restore.)"""
    call.check_folder()
    try:
        with progress_bar("Copying") as progress:
            report = copy_back(source, call.path, progress=progress)
    except NotFound as error:
        hint = "Name the place that a backup was made to: strandline backup DEST"
        raise NotFound(f"{error.message}; nothing was restored", hint=hint, path=source) from error

    def show(out: Console) -> None:
        out.print(f"Restored {copied(report)}.", soft_wrap=True)
        out.print(f"See: {call.command('status')}", soft_wrap=True)

    return Answer(report.to_dict(), show)
