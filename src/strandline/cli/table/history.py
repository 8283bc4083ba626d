"""List a table's commits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, moment, show_rows
from strandline.cli.options import TableName
from strandline.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    verb(app, "history")(history)


def history(
    call: Call,
    name: TableName,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show the last N commits.")] = 50,
) -> Answer:
    """List a table's commits, the latest last."""
    entries = call.lake().table(name).history()
    last = entries[-limit:] if limit else []

    def show(out: Console) -> None:
        rows = [
            (f"{entry.seq:,}", moment(entry.at), entry.operation, f"{entry.rows:,}", f"{entry.files:,}")
            for entry in last
        ]
        show_rows(out, ("SEQ", "AT (UTC)", "OPERATION", "ROWS", "FILES"), rows, numbers=("SEQ", "ROWS", "FILES"))
        if len(last) < len(entries):
            out.print(f"{counted(len(entries), 'commit')}, the last {len(last):,} shown.")

    return Answer({"table": name, "commits": [asdict(entry) for entry in last], "count": len(entries)}, show)
