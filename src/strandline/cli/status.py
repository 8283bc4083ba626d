"""Show what the lake holds."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted, moment, show_rows, size
from strandline.cli.verb import Call, verb
from strandline.status import BrokenTable, Status, TableStatus

_NUMBERS = ("ROWS", "HEAD", "COMMITS", "LOG", "BASELINE", "FOLDED TO", "REJECTS")


def register(app: typer.Typer) -> None:
    verb(app, "status")(status)


def status(
    call: Call,
    exact: Annotated[bool, typer.Option("--exact", help="Count rows where statistics only give a bound.")] = False,
) -> Answer:
    """Show what the lake holds: rows, commits, files, and what is not folded yet."""
    found = call.lake().status(exact=exact)
    return Answer(found.to_dict(), lambda out: _show(out, call, found), 0 if found.is_healthy else 1)


def _show(out: Console, call: Call, found: Status) -> None:
    out.print(f"Lake {found.uri}, {counted(len(found.tables), 'table')}")
    good = [table for table in found.tables if isinstance(table, TableStatus)]
    broken = [table for table in found.tables if isinstance(table, BrokenTable)]
    if good:
        columns = ("TABLE", "KEY", *_NUMBERS[:6], "LAG", "REJECTS", "LAST COMMIT (UTC)")
        show_rows(out, columns, [_row(table) for table in good], numbers=_NUMBERS)
    if any(not table.is_exact for table in good):
        out.print(Text("≤ is an upper bound from statistics; --exact counts.", "dim"))
    for each in broken:
        out.print(Text.assemble((f"{each.name}: {each.kind}: ", "bold red"), each.message))
    if broken:
        out.print(f"See: {call.command('doctor')}")
    if not found.tables:
        out.print(f"Load files into a new table: {call.command('ingest NAME FILES --key COLUMN')}")


def _row(table: TableStatus) -> list[str]:
    lag = f"{counted(table.lag_commits, 'commit')}, {counted(table.lag_rows, 'row')}" if table.lag_commits else "none"
    return [
        table.name,
        ",".join(table.key) or "(append-only)",
        f"{'' if table.is_exact else '≤ '}{table.rows:,}",
        f"{table.head:,}",
        f"{table.commits:,}",
        f"{table.log_files:,} / {size(table.log_bytes)}",
        f"{table.baseline_files:,} / {size(table.baseline_bytes)}",
        f"{table.folded_to:,}",
        lag,
        f"{table.rejects:,}",
        moment(table.last_commit_at),
    ]
