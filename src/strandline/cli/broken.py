"""Tables that failed, beside those that a verb could work on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.cli.answer import Part, fault
from strandline.cli.verb import Call
from strandline.tables.broken import BrokenTable


def broken_data(table: Any) -> dict[str, Any]:
    """The report of a table, or its error."""
    if not isinstance(table, BrokenTable):
        return dict(table.to_dict())
    return {"table": table.name, "error": {"kind": table.kind, "message": table.message}}


def broken_parts(call: Call, tables: Iterable[object]) -> Iterator[Part]:
    """The error of each broken table, then what to do, each advice once."""
    found = [table for table in tables if isinstance(table, BrokenTable)]
    for table in found:
        yield fault(f"{table.name}: {table.kind}: ", table.message)
    yield from dict.fromkeys(call.for_lake(_find_way(table)) for table in found)


def _find_way(table: BrokenTable) -> str:
    """`doctor` explains damage. It cannot explain a store that is out of reach: that error has its own hint."""
    return table.hint if table.kind == "Unavailable" and table.hint else "See: strandline doctor"


def degraded_parts(call: Call, table: str, degraded: Iterable[str]) -> Iterator[Part]:
    """The vnodes that compaction could not fold, each with the file at fault, and what to do."""
    found = list(degraded)
    for each in found:
        yield fault(f"{table}: not compacted: ", each)
    if found:
        yield f"Put that file back from a backup, then: {call.command(f'compact {table} --all')}"
