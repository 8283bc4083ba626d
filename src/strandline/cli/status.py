"""Show what the lake holds."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted, moment, show_rows, size
from strandline.cli.broken import show_broken, show_degraded
from strandline.cli.verb import Call, verb
from strandline.status import BrokenTable, Status, TableStatus

_NUMBERS = ("ROWS", "OLDEST", "HEAD", "FOLDED TO", "LOG", "BASELINE")


def register(app: typer.Typer) -> None:
    verb(app, "status")(status)


def status(
    call: Call,
    exact: Annotated[bool, typer.Option("--exact", help="Count rows where statistics only give a bound.")] = False,
) -> Answer:
    """Show what the lake holds: rows, seqs, files, what is not folded yet.

    Ends with 1 when something is wrong."""
    found = call.lake().status(exact=exact)
    return Answer(found.to_dict(), lambda out: _show(out, call, found), 0 if found.is_healthy else 1)


def _show(out: Console, call: Call, found: Status) -> None:
    out.print(f"Lake {found.uri}, {counted(len(found.tables), 'table')}")
    good = [table for table in found.tables if isinstance(table, TableStatus)]
    if good:
        columns = ("TABLE", "KEY", *_NUMBERS, "LAG", "LAST COMMIT (UTC)")
        show_rows(out, columns, [_row(table) for table in good], numbers=_NUMBERS)
    if any(not table.is_exact for table in good):
        out.print(Text("≤ is an upper bound from statistics; --exact counts.", "dim"))
    for table in good:
        if table.rejects:
            see = call.command(f"rejects {table.name}")
            out.print(f"{table.name}: {counted(table.rejects, 'row was', 'rows were')} refused. See: {see}")
        if table.pins:
            out.print(f"{table.name}: {counted(table.pins, 'pin')}. See: {call.command(f'table pins {table.name}')}")
    for table in good:
        show_degraded(out, call, table.name, table.degraded)
    show_broken(out, call, (table for table in found.tables if isinstance(table, BrokenTable)))
    if not found.tables:
        out.print(f"Load files into a new table: {call.command('ingest NAME FILES --key COLUMN')}")


def _row(table: TableStatus) -> list[str]:
    lag = f"{counted(table.lag_commits, 'commit')}, {counted(table.lag_rows, 'row')}" if table.lag_commits else "none"
    return [
        table.name,
        ",".join(table.key) or "(append-only)",
        f"{'' if table.is_exact else '≤ '}{table.rows:,}",
        f"{table.oldest_seq:,}",
        f"{table.head:,}",
        f"{table.folded_to:,}",
        f"{table.log_files:,} / {size(table.log_bytes)}",
        f"{table.baseline_files:,} / {size(table.baseline_bytes)}",
        lag,
        moment(table.last_commit_at),
    ]
