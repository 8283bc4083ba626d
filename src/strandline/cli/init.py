"""Make an empty lake."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

import strandline as sl
from strandline.cli.answer import Answer, counted
from strandline.cli.verb import Call


def init(
    call: Call,
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="Where: a folder or s3://bucket/prefix.")] = None,
) -> Answer:
    """Make an empty lake."""
    if path is not None and call.is_lake_given:
        raise typer.BadParameter("give the lake as PATH or with --lake, not both")
    call = replace(call, path=path or call.path)
    call.check_folder()
    lake = sl.Lake(call.path)
    existed = lake.exists
    state = lake.catalog.ensure_lake()
    data = {"lake": lake.storage.uri, "lake_id": state.lake_id, "format": state.format, "is_created": not existed}
    if existed:
        there = f"There is a lake at {lake.storage.uri} already, with {counted(len(state.tables), 'table')}."
        return Answer(data, [there, f"See: {call.command('status')}"])
    return Answer(
        data,
        [
            f"Made an empty lake at {lake.storage.uri}",
            "Next, load files into a new table:",
            f"  {call.command('ingest NAME FILES --key COLUMN')}",
            "or see it all on made-up data:",
            "  strandline demo",
        ],
    )
