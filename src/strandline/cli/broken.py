"""Tables that a verb could not do, beside those that it did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from strandline.cli.verb import Call
from strandline.tables.broken import BrokenTable


def broken_data(table: BrokenTable) -> dict[str, Any]:
    return {"table": table.name, "error": {"kind": table.kind, "message": table.message}}


def show_broken(out: Console, call: Call, tables: Iterable[BrokenTable]) -> None:
    """What is wrong with each, then what to do about it, each way once."""
    found = list(tables)
    for table in found:
        out.print(Text.assemble((f"{table.name}: {table.kind}: ", "bold red"), table.message), soft_wrap=True)
    for way in dict.fromkeys(_way(table) for table in found):
        out.print(call.for_lake(way), soft_wrap=True)


def _way(table: BrokenTable) -> str:
    """Where a store cannot be reached or written, doctor finds nothing wrong; of damage it tells everything."""
    return table.hint if table.kind == "Unavailable" and table.hint else "See: strandline doctor"


def show_degraded(out: Console, call: Call, table: str, degraded: Iterable[str]) -> None:
    """Vnodes that compaction had to leave alone, each with the file at fault, and the way on."""
    found = list(degraded)
    for each in found:
        out.print(Text.assemble((f"{table}: not folded: ", "bold red"), each), soft_wrap=True)
    if found:
        again = call.command(f"compact {table} --all")
        out.print(f"Put that file back from a backup, then: {again}", soft_wrap=True)
