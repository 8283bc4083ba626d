"""Show the rows that an ingest refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, cut
from strandline.cli.verb import Call


def rejects(
    call: Call,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table that was loaded.")],
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show the last N of them.")] = 20,
) -> Answer:
    """Show the rows that an ingest refused, with the reason."""
    kept = call.table(table).rejects()
    count, rows = kept.count(), kept.latest(limit)
    return Answer({"table": table, "count": count, "rejects": rows}, _tell(table, count, rows))


def _tell(table: str, count: int, rows: list[dict[str, Any]]) -> Iterator[Part]:
    if not count:
        yield f"No row of {table} was refused."
        return
    shown = [
        (row["file"].rsplit("/", 1)[-1], row["line"], row["column"], row["reason"], cut(row["text"], 80), row["at"])
        for row in rows
    ]
    yield Rows(("FILE", "LINE", "COLUMN", "WHY", "TEXT", "AT (UTC)"), shown)
    yield f"{counted(count, 'row')} refused in all{f', the last {len(rows):,} shown' if count > len(rows) else ''}."
