"""Tables that a verb could not do, beside those that it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.cli.answer import Part, fault
from strandline.cli.verb import Call
from strandline.tables.broken import BrokenTable


def broken_data(table: Any) -> dict[str, Any]:
    """The report of a table, or what is wrong with it."""
    if not isinstance(table, BrokenTable):
        return dict(table.to_dict())
    return {"table": table.name, "error": {"kind": table.kind, "message": table.message}}


def broken_parts(call: Call, tables: Iterable[object]) -> Iterator[Part]:
    """What is wrong with each table that is broken, then what to do about it, each way once."""
    found = [table for table in tables if isinstance(table, BrokenTable)]
    for table in found:
        yield fault(f"{table.name}: {table.kind}: ", table.message)
    yield from dict.fromkeys(call.for_lake(_way(table)) for table in found)


def _way(table: BrokenTable) -> str:
    """Where a store cannot be reached or written, doctor finds nothing wrong; of damage it tells everything."""
    return table.hint if table.kind == "Unavailable" and table.hint else "See: strandline doctor"


def degraded_parts(call: Call, table: str, degraded: Iterable[str]) -> Iterator[Part]:
    """Vnodes that compaction had to leave alone, each with the file at fault, and the way on."""
    found = list(degraded)
    for each in found:
        yield fault(f"{table}: not folded: ", each)
    if found:
        yield f"Put that file back from a backup, then: {call.command(f'compact {table} --all')}"
