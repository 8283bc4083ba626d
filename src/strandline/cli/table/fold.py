"""Fold a table's log into its baseline."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, size
from strandline.cli.verb import Call, verb
from strandline.status import table_status


def register(app: typer.Typer) -> None:
    verb(app, "fold")(fold)


def fold(call: Call, name: Annotated[str, typer.Argument(metavar="NAME", help="The table.")]) -> Answer:
    """Fold a table's log into its baseline, so that reads have less to merge. The log stays."""
    table = call.lake().table(name)
    before = table_status(table)
    started_s = time.monotonic()
    seq = table.fold()
    seconds = time.monotonic() - started_s
    after = table_status(table)
    data = {"table": name, "folded_to": seq, "commits": before.lag_commits, "rows": after.rows, "seconds": seconds}

    def show(out: Console) -> None:
        if not before.lag_commits:
            out.print(f"Nothing to fold: {name} is folded to seq {seq}.")
            return
        files = f"{counted(after.baseline_files, 'file')}, {size(after.baseline_bytes)}"
        out.print(f"Folded {counted(before.lag_commits, 'commit')} of {name} up to seq {seq} in {seconds:.1f} s.")
        out.print(f"The baseline holds {counted(after.rows, 'row')} in {files}.")

    return Answer(data, show)
