"""Show the rows that an ingest refused."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, cast

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, moment, show_rows
from strandline.cli.verb import Call, verb
from strandline.tables.rejects import Rejects

_TEXT_CHARS = 80


def register(app: typer.Typer) -> None:
    verb(app, "rejects")(rejects)


def rejects(
    call: Call,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table that was loaded.")],
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show the last N of them.")] = 20,
) -> Answer:
    """Show the rows that an ingest refused, with the reason."""
    lake = call.lake()
    kept = Rejects(lake.storage, lake.table(table).entry)
    count, rows = kept.count(), kept.latest(limit)

    def show(out: Console) -> None:
        if not count:
            out.print(f"No row of {table} was refused.")
            return
        shown = [
            (
                str(row["file"]).rsplit("/", 1)[-1],
                f"{row['line']:,}",
                str(row["column"] or ""),
                str(row["reason"]),
                _cut(str(row["text"])),
                moment(cast(dt.datetime, row["at"])),
            )
            for row in rows
        ]
        show_rows(out, ("FILE", "LINE", "COLUMN", "WHY", "TEXT", "AT (UTC)"), shown, numbers=("LINE",))
        note = f", the last {len(rows):,} shown" if count > len(rows) else ""
        out.print(f"{counted(count, 'row')} refused in all{note}.")

    return Answer({"table": table, "count": count, "rejects": rows}, show)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else text[: _TEXT_CHARS - 1] + "…"
