"""Show what the lake holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, counted, fault, moment, note, size, warning
from strandline.cli.broken import broken_parts, degraded_parts
from strandline.cli.verb import Call
from strandline.tables.broken import BrokenTable

if TYPE_CHECKING:
    from strandline.pipeline.status import ConsumerStatus, Status, TableStatus


def status(
    call: Call,
    exact: Annotated[bool, typer.Option("--exact", help="Count rows where statistics only give a bound.")] = False,
) -> Answer:
    """Show what the lake holds: rows, seqs, files, changes that are not folded yet; and how far its sinks are.

    Ends with 1 when something is wrong."""
    found = call.lake().status(exact=exact)
    return Answer(found, _tell(call, found), is_well=found.is_healthy)


def _tell(call: Call, found: Status) -> Iterator[Part]:
    yield f"Lake {found.uri}, {counted(len(found.tables), 'table')}"
    good = [table for table in found.tables if not isinstance(table, BrokenTable)]
    if good:
        columns = ("TABLE", "KEY", "ROWS", "OLDEST", "HEAD", "FOLDED TO", "LOG", "BASELINE", "LAG", "LAST COMMIT (UTC)")
        yield Rows(columns, [_make_row(table) for table in good], numbers=("ROWS", "LOG", "BASELINE"))
    if any(not table.is_exact for table in good):
        yield note("≤ is an upper bound from statistics; --exact counts.")
    for table in good:
        if table.rejects:
            see = call.command(f"rejects {table.name}")
            yield f"{table.name}: {counted(table.rejects, 'row was', 'rows were')} refused. See: {see}"
        if table.pins:
            yield f"{table.name}: {counted(table.pins, 'pin')}. See: {call.command(f'table pins {table.name}')}"
        if table.hidden_rows and table.hidden_before is not None:
            are = counted(table.hidden_rows, "row has expired and is", "rows have expired and are")
            yield f"{table.name}: {are} hidden, from before {moment(table.hidden_before)} UTC."
        if table.expiring_rows:
            hides = f"about {counted(table.expiring_rows, 'row')} that are past their retention"
            yield warning(f"{table.name}: the next tick hides {hides}.")
        if table.waits_for:
            yield warning(f"{table.name}: rows past their retention stay, because of {table.waits_for}")
    for table in good:
        yield from degraded_parts(call, table.name, table.degraded)
    yield from broken_parts(call, found.tables)
    if not found.tables:
        yield f"Load files into a new table: {call.command('ingest NAME FILES --key COLUMN')}"
    if found.marked:
        yield ""
        rows = [_make_consumer_row(each) for each in found.marked]
        yield Rows(("CONSUMER", "TABLE", "DESTINATION", "LAG", "LAST (UTC)", "STATE"), rows)
    for each in found.marked:
        yield from _tell_problems(call, each)
    if found.state_fault:
        yield fault("state: ", call.for_lake(found.state_fault))


def _make_row(table: TableStatus) -> tuple[object, ...]:
    lag = f"{counted(table.lag_commits, 'commit')}, {counted(table.lag_rows, 'row')}" if table.lag_commits else "none"
    return (
        table.name,
        ",".join(table.key) or "(append-only)",
        f"{'' if table.is_exact else '≤ '}{table.rows:,}",
        table.oldest_seq,
        table.head,
        table.folded_to,
        f"{table.log_files:,} / {size(table.log_bytes)}",
        f"{table.baseline_files:,} / {size(table.baseline_bytes)}",
        lag,
        table.last_commit_at,
    )


def _make_consumer_row(each: ConsumerStatus) -> tuple[str, ...]:
    lag = "" if each.is_retired else sinks.lag_text(each.lag)
    return each.name, each.table, each.destination, lag, sinks.last_text(each.last), sinks.state_text(each)


def _tell_problems(call: Call, each: ConsumerStatus) -> Iterator[Part]:
    name = each.name
    if each.error is not None:
        yield fault(f"{name}: " if each.is_retired else f"{name} failed: ", each.error)
        if each.is_retired:
            yield f"  {call.command(f'mark reset {name}')}, or {call.command(f'mark retire {name}')}"
    if each.letters:
        see = call.command(f"deadletter list {name}")
        yield f"{name}: {counted(each.letters, 'dead letter')}. See: {see}"
