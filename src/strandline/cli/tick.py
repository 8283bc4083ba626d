"""Send what is new, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted, size
from strandline.cli.broken import show_broken
from strandline.cli.plan import planned
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.consumers.compaction import Compaction
from strandline.consumers.contract import ConsumerReport
from strandline.consumers.retention import Retention
from strandline.lake import Lake
from strandline.pipeline.plan import marked_plans, plan_of
from strandline.pipeline.runner import TickReport
from strandline.sinks.definition import KINDS


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
        return planned(call, lake, plan_of(lake, chosen))
    with progress_bar("Sending") as progress:
        report = lake.tick(only=chosen, progress=progress)
    retired = _retired(lake, chosen or (), report)
    data = {**report.to_dict(), "retired": retired}
    is_well = report.is_well and not retired
    return Answer(data, lambda out: _show(out, call, lake, report, retired), 0 if is_well else 1)


def _retired(lake: Lake, chosen: Sequence[str], report: TickReport) -> list[str]:
    """The sinks that were named and are retired, so that nothing was done for them."""
    reported = {each.name for each in report.consumers}
    left = [name for name in chosen if name not in reported]
    return [plan.name for plan in marked_plans(lake, left) if plan.is_retired] if left else []


def _show(out: Console, call: Call, lake: Lake, report: TickReport, retired: Sequence[str]) -> None:
    for each in report.consumers:
        _show_consumer(out, call, each)
    for name in retired:
        again = call.command(f"mark reset {name}")
        out.print(Text(f"{name} is retired; to use it again: {again}", "yellow"), soft_wrap=True)
    show_broken(out, call, report.broken)
    if report.is_idle and not retired:
        out.print("Everything is up to date.")
        if not sinks.named(call, lake, None):
            out.print(f"There are no sinks. Add one: {sinks.adding(call)}")


def _show_consumer(out: Console, call: Call, report: ConsumerReport) -> None:
    if report.is_busy:
        out.print(Text(f"{report.name}: left to another runner: {report.why}", "yellow"), soft_wrap=True)
        return
    what = f"sent {'the table' if report.is_full else 'changes of'} {report.table} to {report.destination}: "
    done = did(report, what if report.kind in KINDS else "")
    if done:
        out.print(f"{report.name}: {done}.", soft_wrap=True)
    if report.error is not None:
        sinks.show_failure(out, call, report.name, report.error)
    if report.why and not done and report.error is None:
        out.print(Text(f"{report.name}: {report.why}", "yellow"), soft_wrap=True)
    elif report.why:
        out.print(Text(f"  {'new: ' if report.is_new else ''}{report.why}", "yellow"), soft_wrap=True)
    if report.lost:
        columns = ", ".join(report.lost)
        out.print(
            Text(f"  Its condition needs {columns}, which {report.table} has no more: no row leaves.", "yellow"),
            soft_wrap=True,
        )
    if report.is_all_refused:
        out.print(Text("  The destination took nothing: is it the right one?", "bold red"), soft_wrap=True)
    if report.dead:
        out.print(f"  See: {call.command(f'deadletter list {report.name}')}", soft_wrap=True)


def did(report: ConsumerReport, what: str = "") -> str:
    """What a consumer did in a tick, in words; empty when it did nothing. `what` stands before how much it sent."""
    if report.after is None or report.upto is None:
        return ""
    if report.kind == Compaction.kind:
        if not report.facts.get("vnodes"):
            return ""
        rows = f"{counted(report.rows, 'row')}, {report.seconds:.1f} s"
        return f"folded {counted(report.facts['vnodes'], 'vnode')} up to seq {report.upto}: {rows}"
    if report.kind == Retention.kind:
        return "rows past their time are hidden" if "seq" in report.facts else ""
    extras = [
        *([f"{counted(report.withheld, 'row')} withheld"] if report.withheld else []),
        *([f"{counted(report.dead, 'row')} refused"] if report.dead else []),
        *([f"repeated {counted(report.replays, 'batch', 'batches')} begun earlier"] if report.replays else []),
    ]
    if report.rows or report.is_full or extras:
        seqs = f"seq {report.after:,} → {report.upto:,}"
        much = [counted(report.rows, "row"), *([size(report.bytes)] if report.kind in KINDS else []), seqs]
        return what + "; ".join([", ".join([*much, f"{report.seconds:.1f} s"]), *extras])
    return "" if report.error is not None else f"at seq {report.upto:,}; nothing had to be sent"
