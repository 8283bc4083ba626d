"""Show what the lake holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted, moment, show_rows, size
from strandline.cli.broken import show_broken, show_degraded
from strandline.cli.verb import Call, verb
from strandline.pipeline.status import ConsumerStatus, Status, TableStatus
from strandline.tables.broken import BrokenTable

_NUMBERS = ("ROWS", "OLDEST", "HEAD", "FOLDED TO", "LOG", "BASELINE")


def register(app: typer.Typer) -> None:
    verb(app, "status")(status)


def status(
    call: Call,
    exact: Annotated[bool, typer.Option("--exact", help="Count rows where statistics only give a bound.")] = False,
) -> Answer:
    """Show what the lake holds: rows, seqs, files, what is not folded yet; and how far its sinks are.

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
        if table.waits_for:
            said = f"{table.name}: rows past their retention stay, because of {table.waits_for}"
            out.print(Text(said, "yellow"), soft_wrap=True)
    for table in good:
        show_degraded(out, call, table.name, table.degraded)
    show_broken(out, call, (table for table in found.tables if isinstance(table, BrokenTable)))
    if not found.tables:
        out.print(f"Load files into a new table: {call.command('ingest NAME FILES --key COLUMN')}")
    if found.marked:
        _show_consumers(out, call, found.marked)
    if found.state_fault:
        out.print(Text.assemble(("state: ", "bold red"), call.for_lake(found.state_fault)), soft_wrap=True)


def _show_consumers(out: Console, call: Call, found: Sequence[ConsumerStatus]) -> None:
    out.print()
    rows = [
        (
            sink.name,
            sink.table,
            sink.destination,
            "" if sink.is_retired else sinks.lag_text(sink.lag),
            sinks.last_text(sink.last),
            sinks.state_text(sink),
        )
        for sink in found
    ]
    show_rows(out, ("CONSUMER", "TABLE", "DESTINATION", "LAG", "LAST (UTC)", "STATE"), rows)
    for sink in found:
        if sink.error is not None:
            said = f"{sink.name}: " if sink.is_retired else f"{sink.name} failed: "
            out.print(Text.assemble((said, "bold red"), sink.error), soft_wrap=True)
        if sink.error is not None and sink.is_retired:
            out.print(f"  {call.command(f'mark reset {sink.name}')}, or {call.command(f'mark retire {sink.name}')}")
        if sink.letters:
            see = call.command(f"deadletter list {sink.name}")
            out.print(f"{sink.name}: {counted(sink.letters, 'dead letter')}. See: {see}", soft_wrap=True)


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
