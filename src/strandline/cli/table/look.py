"""Look at tables: `table list`, `table show`, `table history`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, Rows, counted, facts, moment
from strandline.cli.broken import degraded_parts
from strandline.cli.options import TableName, list_names
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.pipeline.status import TableStatus


def list_(call: Call) -> Answer:
    """List the lake's tables."""
    tables = call.lake().tables()
    return Answer({"tables": tables}, tables or "There are no tables yet.")


def show(call: Call, name: TableName) -> Answer:
    """Show a table's columns, key and numbers."""
    table = call.table(name)
    found = table.status()
    data = {**found.to_dict(), **table.describe()}
    return Answer(data, _tell(call, table, found))


def _tell(call: Call, table: sl.Table, found: TableStatus) -> Iterator[Part]:
    definition = table.definition
    bound = "" if found.is_exact else "at most "
    yield f"{found.name}: {bound}{counted(found.rows, 'row')}, seq {found.head}, {moment(found.last_commit_at)} UTC"
    see = call.command(f"table pins {found.name}")
    yield from facts(
        (
            ("key", ", ".join(definition.key) or "none: append-only"),
            ("cluster by", ", ".join(definition.cluster_by) or "none"),
            ("version column", definition.version or "none"),
            ("time column", definition.time or "none"),
            ("vnodes", definition.vnodes),
            ("compacted to", f"seq {found.compacted_to}; {counted(found.lag_commits, 'commit')} after it"),
            ("readable from", f"seq {found.oldest_seq}"),
            ("pins", f"{found.pins}, see: {see}" if found.pins else "none"),
            ("settings", ", ".join(f"{key} {value}" for key, value in definition.settings.shown().items())),
            ("folder", table.entry.folder),
        )
    )
    yield from degraded_parts(call, found.name, found.degraded)
    yield ""
    columns = table.describe()["columns"]
    yield Rows(("COLUMN", "TYPE", ""), [(c["name"], c["type"], "" if c["nullable"] else "required") for c in columns])
    if definition.names.renamed:
        yield ""
        yield from list_names(definition.names.renamed)


def history(
    call: Call,
    name: TableName,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show the last N commits.")] = 50,
) -> Answer:
    """List a table's commits, the latest last."""
    entries = call.table(name).history()
    last = entries[-limit:] if limit else []
    rows = [(entry.seq, entry.at, entry.operation, entry.rows, entry.files) for entry in last]
    parts: list[Part] = [Rows(("SEQ", "AT (UTC)", "OPERATION", "ROWS", "FILES"), rows)]
    if len(last) < len(entries):
        parts.append(f"{counted(len(entries), 'commit')}, the last {len(last):,} shown.")
    return Answer({"table": name, "commits": [asdict(entry) for entry in last], "count": len(entries)}, parts)
