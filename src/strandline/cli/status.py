"""Show what the lake holds, and whether all is well."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, counted, fault, moment, note, size, warning, wrap
from strandline.cli.broken import broken_parts, degraded_parts
from strandline.cli.options import ShowAll
from strandline.cli.verb import Call
from strandline.tables.broken import BrokenTable

if TYPE_CHECKING:
    from strandline.pipeline.status import Attention, ConsumerStatus, Status, TableStatus


def status(
    call: Call,
    exact: Annotated[bool, typer.Option("--exact", help="Count rows where statistics only give a bound.")] = False,
    is_all: ShowAll = False,
) -> Answer:
    """Show what the lake holds, how far its sinks are, and at the end whether all is well, or what to type.

    Ends with 1 when something needs attention: damage, a failed sink, refused rows, dead letters."""
    found = call.lake().status(exact=exact)
    return Answer(found, _tell(call, found, is_all), is_well=found.is_healthy)


def _tell(call: Call, found: Status, is_all: bool) -> Iterator[Part]:
    yield f"Lake {found.uri}, {counted(len(found.tables), 'table')}"
    good = [table for table in found.tables if not isinstance(table, BrokenTable)]
    if good:
        columns = ("TABLE", "ROWS", "SEQ", "SIZE", "TO COMPACT", "LAST COMMIT (UTC)")
        yield Rows(
            columns, [_make_row(table) for table in good], numbers=("ROWS", "SIZE", "TO COMPACT"), cut=("TABLE",)
        )
    if any(not table.is_exact for table in good):
        yield note("≤ is an upper bound from statistics; --exact counts.")
    for table in good:
        yield from _tell_table(call, table)
        yield from degraded_parts(call, table.name, table.degraded)
    yield from broken_parts(call, found.tables)
    if not found.tables:
        yield f"Load files into a new table: {call.command('ingest NAME FILES --key COLUMN')}"
    yield from _tell_consumers(call, found, is_all)
    if found.state_fault and (way_on := found.state_fault.partition("\n")[2]):
        yield fault("state: ", call.for_lake(way_on))
    yield ""
    yield from tell_verdict(call, found.attention)


def _tell_consumers(call: Call, found: Status, is_all: bool) -> Iterator[Part]:
    shown = [each for each in found.marked if is_all or not each.is_retired or each.error]
    if shown:
        yield ""
        columns = ("CONSUMER", "TABLE", "DESTINATION", "LAG", "LAST (UTC)", "CONDITION")
        yield Rows(columns, [_make_consumer_row(each) for each in shown], cut=("DESTINATION", "TABLE", "CONSUMER"))
    yield from sinks.tell_hidden(len(found.marked) - len(shown))


def tell_verdict(call: Call, attention: Sequence[Attention]) -> Iterator[Part]:
    """The last lines: all is well, or each thing that needs attention with the command to type."""
    if not attention:
        yield Text("All is well.", "green")
        return
    yield fault(f"{counted(len(attention), 'thing needs', 'things need')} attention:")
    for each in attention:
        yield Text(wrap(each.what, "  "), "yellow" if each.cause in ("letters", "rejects") else "red")
        yield f"    {call.command(each.command)}"
        if each.command.startswith("mark reset"):
            yield f"    or give it up: {call.command(f'mark retire {each.consumer}')}"


def _make_row(table: TableStatus) -> tuple[object, ...]:
    return (
        table.name,
        f"{'' if table.is_exact else '≤ '}{table.rows:,}",
        table.head,
        size(table.log_bytes + table.baseline_bytes),
        counted(table.lag_commits, "commit") if table.lag_commits else "none",
        _minute(table.last_commit_at),
    )


def _tell_table(call: Call, table: TableStatus) -> Iterator[Part]:
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


def _make_consumer_row(each: ConsumerStatus) -> tuple[object, ...]:
    lag = "" if each.is_retired else sinks.short_lag_text(each.lag)
    last = "" if each.last is None else _minute(dt.datetime.fromtimestamp(each.last.at_s, dt.UTC))
    return each.name, each.table, each.destination, lag, last, sinks.coloured_state(each)


def _minute(at: dt.datetime) -> str:
    return moment(at)[:16]
