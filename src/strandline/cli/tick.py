"""Send what is new, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted, size
from strandline.cli.broken import show_broken, show_degraded
from strandline.cli.plan import planned
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.consumers.compaction import CompactReport
from strandline.lake import Lake
from strandline.pipeline.plan import Plan, sink_plans
from strandline.pipeline.runner import SinkReport, TickReport
from strandline.tables.broken import BrokenTable


def register(app: typer.Typer) -> None:
    verb(app, "tick")(tick)


def tick(
    call: Call,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="SINK", help="The sinks; without a name all of them, and then the tables' care."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do; write nothing.")] = False,
) -> Answer:
    """Send what is new to every sink, then fold what is due and let rows expire.

    Ends with 1 when a sink or a table could not be done, a sink that is named is retired, or a destination took nothing
    and refused rows."""
    lake = call.lake()
    chosen = sinks.named(call, lake, names) if names else None
    if dry_run:
        sinks.check_state(lake)
        return planned(call, lake, lake.plan() if chosen is None else Plan(tuple(sink_plans(lake, chosen))))
    with progress_bar("Sending") as progress:
        report = lake.tick(only=chosen, progress=progress)
    retired = _retired(lake, chosen or (), report)
    data = {**report.to_dict(), "retired": retired}
    is_well = report.is_well and not retired
    return Answer(data, lambda out: _show(out, call, lake, report, retired), 0 if is_well else 1)


def _retired(lake: Lake, chosen: Sequence[str], report: TickReport) -> list[str]:
    """The sinks that were named and are retired, so that nothing was done for them."""
    reported = {sink.name for sink in report.sinks}
    left = [name for name in chosen if name not in reported]
    return [plan.name for plan in sink_plans(lake, left) if plan.is_retired] if left else []


def _show(out: Console, call: Call, lake: Lake, report: TickReport, retired: Sequence[str]) -> None:
    for sink in report.sinks:
        _show_sink(out, call, sink)
    for name in retired:
        again = call.command(f"mark reset {name}")
        out.print(Text(f"{name} is retired; to use it again: {again}", "yellow"), soft_wrap=True)
    for line in table_lines(report):
        out.print(f"{line}.", soft_wrap=True)
    for each in report.compacted:
        if isinstance(each, CompactReport):
            show_degraded(out, call, each.table, (f"vnode {d.vnode}: {d.message}: {d.path}" for d in each.degraded))
    show_broken(out, call, (each for each in report.compacted if isinstance(each, BrokenTable)))
    if report.is_idle and not retired:
        out.print("Everything is up to date.")
        if not sinks.named(call, lake, None):
            out.print(f"There are no sinks. Add one: {sinks.adding(call)}")


def _show_sink(out: Console, call: Call, sink: SinkReport) -> None:
    if sink.is_busy:
        out.print(Text(f"{sink.name}: left to another runner: {sink.why}", "yellow"), soft_wrap=True)
        return
    what = f"sent {'the table' if sink.is_full else 'changes of'} {sink.table} to {sink.destination}: "
    done = did(sink, what)
    if done:
        out.print(f"{sink.name}: {done}.", soft_wrap=True)
    if sink.error is not None:
        sinks.show_failure(out, call, sink.name, sink.error)
    if sink.why and not done and sink.error is None:
        out.print(Text(f"{sink.name}: {sink.why}", "yellow"), soft_wrap=True)
    elif sink.why:
        out.print(Text(f"  {'new: ' if sink.is_new else ''}{sink.why}", "yellow"), soft_wrap=True)
    if sink.lost:
        columns = ", ".join(sink.lost)
        out.print(
            Text(f"  Its condition needs {columns}, which {sink.table} has no more: no row leaves.", "yellow"),
            soft_wrap=True,
        )
    if sink.is_all_refused:
        out.print(Text("  The destination took nothing: is it the right one?", "bold red"), soft_wrap=True)
    if sink.dead:
        out.print(f"  See: {call.command(f'deadletter list {sink.name}')}", soft_wrap=True)


def did(sink: SinkReport, what: str = "") -> str:
    """What a sink did in a tick, in words; empty when it did nothing. `what` stands before how much it sent."""
    if sink.after is None or sink.upto is None:
        return ""
    extras = [
        *([f"{counted(sink.withheld, 'row')} withheld"] if sink.withheld else []),
        *([f"{counted(sink.dead, 'row')} refused"] if sink.dead else []),
        *([f"repeated {counted(sink.replays, 'batch', 'batches')} begun earlier"] if sink.replays else []),
    ]
    if sink.rows or sink.is_full or extras:
        seqs = f"seq {sink.after:,} → {sink.upto:,}"
        much = f"{counted(sink.rows, 'row')}, {size(sink.bytes)}, {seqs}, {sink.seconds:.1f} s"
        return what + "; ".join([much, *extras])
    return "" if sink.error is not None else f"at seq {sink.upto:,}; nothing had to be sent"


def table_lines(report: TickReport) -> Iterator[str]:
    """What a tick did for the tables, in words."""
    for each in report.compacted:
        if isinstance(each, CompactReport) and each.vnodes:
            rows = f"{counted(each.rows, 'row')}, {each.seconds:.1f} s"
            yield f"{each.table}: folded {counted(each.vnodes, 'vnode')} up to seq {each.upto}: {rows}"
    for table in report.expired:
        yield f"{table}: rows past their time are hidden"
