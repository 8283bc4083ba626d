"""Make an empty lake."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.verb import Call, verb
from strandline.lake import Lake


def register(app: typer.Typer) -> None:
    verb(app, "init")(init)


def init(
    call: Call,
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="Where: a folder or s3://bucket/prefix.")] = None,
) -> Answer:
    """Make an empty lake."""
    if path is not None and call.is_lake_given:
        raise typer.BadParameter("give the lake as PATH or with --lake, not both")
    call = replace(call, path=path or call.path)
    call.check_folder()
    lake = Lake(call.path)
    existed = lake.exists
    state = lake.catalog.ensure_lake()
    data = {"lake": lake.storage.uri, "lake_id": state.lake_id, "format": state.format, "created": not existed}

    def show(out: Console) -> None:
        if existed:
            out.print(f"There is a lake at {lake.storage.uri} already, with {counted(len(state.tables), 'table')}.")
            out.print(f"See: {call.command('status')}")
            return
        out.print(f"Made an empty lake at {lake.storage.uri}")
        out.print("Next, load files into a new table:")
        out.print(f"  {call.command('ingest NAME FILES --key COLUMN')}", soft_wrap=True)
        out.print("or see it all on made-up data:")
        out.print("  strandline demo")

    return Answer(data, show)
