"""Send the new changes, once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, counted, fault, moment, size, warning
from strandline.cli.broken import broken_parts
from strandline.cli.compact import describe_packed
from strandline.cli.options import DryRun
from strandline.cli.plan import preview_tick
from strandline.cli.progress import progress_bar
from strandline.cli.status import tell_verdict
from strandline.cli.verb import Call

if TYPE_CHECKING:
    import strandline as sl
    from strandline.consumers.contract import ConsumerReport


def tick(
    call: Call,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONSUMER",
            help="Sinks or other consumers, by the names in `plan`; without a name, all.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> Answer:
    """Send the new changes to every sink, then compact what is due and let rows expire.

    Ends with 1 when a sink or a table failed, a named sink is retired, or refused rows or dead letters wait for you."""
    lake = call.lake()
    chosen = names or None
    if dry_run:
        return preview_tick(call, lake, chosen)
    with progress_bar("Sending") as progress:
        report = lake.tick(only=chosen, progress=progress)
    retired = _find_retired(lake, chosen or (), report)
    now = lake.status()
    waiting = [
        each
        for each in now.attention
        if each.cause in ("letters", "rejects") and (chosen is None or each.consumer in chosen)
    ]
    stopped = [
        each.backfill
        for each in now.marked
        if (chosen is None or each.name in chosen)
        and each.backfill is not None
        and each.backfill.is_open
        and each.backfill.rate.is_stopped
    ]

    def tell() -> Iterator[Part]:
        for each in report.consumers:
            yield from _tell_consumer(call, each)
        for history in stopped:
            on = call.command(f"backfill resume {history.consumer}")
            yield f"{history.consumer}: {sinks.history_text(history)}; to let it go on: {on}"
        for name in retired:
            yield warning(f"{name} is retired; to use it again: {call.command(f'mark reset {name}')}")
        for name in report.paused:
            yield f"{name} is paused, and its changes wait; to let it go on: {call.command(f'sink resume {name}')}"
        yield from broken_parts(call, report.broken)
        if report.is_idle and not retired and not report.paused and not stopped:
            yield "Everything is up to date."
            if not lake.consumer_states():
                yield sinks.no_sinks(call)
        if waiting:
            yield from tell_verdict(call, waiting)

    is_well = report.is_well and not retired and not waiting
    data = {**report.to_dict(), "retired": retired, "is_well": is_well, "attention": [asdict(each) for each in waiting]}
    return Answer(data, tell(), is_well=is_well)


def _find_retired(lake: sl.Lake, chosen: Sequence[str], report: sl.TickReport) -> list[str]:
    """The named sinks for which nothing was done because they are retired."""
    reported = {each.name for each in report.consumers}
    left = [name for name in chosen if name not in reported]
    return [plan.name for plan in lake.plan(only=left).consumers if plan.is_retired] if left else []


def _tell_consumer(call: Call, report: ConsumerReport) -> Iterator[Part]:
    from strandline.sinks.definition import KINDS

    name = report.name
    if report.is_busy:
        yield warning(f"{name}: left to another runner: {report.why}")
        return
    part = "the table" if report.is_full else "history of" if report.rounds else "changes of"
    what = f"sent {part} {report.table} to {report.destination}: "
    done = describe_run(report, what if report.kind in KINDS else "")
    if done:
        yield f"{name}: {done}."
    if report.error is not None:
        yield from sinks.failure_parts(call, name, report.error)
    if report.why:
        is_alone = not done and report.error is None
        yield warning(f"{name}: {report.why}" if is_alone else f"  {'new: ' if report.is_new else ''}{report.why}")
    if report.lost:
        columns = ", ".join(report.lost)
        yield warning(f"  Its condition needs {columns}, which {report.table} has no more: no row leaves.")
    if report.is_all_refused:
        yield fault("  The destination took nothing: is it the right one?")


def describe_run(report: ConsumerReport, what: str = "") -> str:
    """One line about a consumer's run in a tick; empty when it did nothing. `what` stands before the number of rows."""
    from strandline.consumers.compaction import Compaction
    from strandline.consumers.retention import Retention
    from strandline.sinks.definition import KINDS

    if report.kind == Compaction.kind:
        return "; ".join(_describe_compaction(report))
    if report.after is None or report.upto is None:
        return ""
    if report.kind == Retention.kind:
        return _describe_expiry(report.facts) if "seq" in report.facts else ""
    extras = [
        *([counted(report.rounds, "round")] if report.rounds else []),
        *([f"{counted(report.withheld, 'row')} withheld"] if report.withheld else []),
        *([f"{counted(report.dead, 'row')} refused"] if report.dead else []),
        *([f"repeated {counted(report.replays, 'batch', 'batches')} begun earlier"] if report.replays else []),
    ]
    if report.rows or report.is_full or extras:
        seqs = f"seq {report.after:,} → {report.upto:,}"
        much = [counted(report.rows, "row"), *([size(report.bytes)] if report.kind in KINDS else []), seqs]
        return what + "; ".join([", ".join([*much, f"{report.seconds:.1f} s"]), *extras])
    return "" if report.error is not None else f"at seq {report.upto:,}; {_describe_upkeep(report)}"


def _describe_upkeep(report: ConsumerReport) -> str:
    """What a sink did without new rows."""
    if "expired_before" in report.facts:
        before = dt.datetime.fromisoformat(report.facts["expired_before"])
        at = before.replace(tzinfo=dt.UTC) if before.tzinfo is None else before
        return f"the rows from before {moment(at)} UTC left {report.destination}"
    if "columns" in report.facts:
        return f"{report.destination} has the columns {', '.join(report.facts['columns'])} now"
    return "nothing had to be sent"


def _describe_compaction(report: ConsumerReport) -> Iterator[str]:
    """What a compaction has packed and folded."""
    if report.facts.get("packed_files"):
        yield describe_packed(report.facts["packed_files"], report.facts["packs"])
    if report.facts.get("vnodes") and report.upto is not None:
        rows = f"{counted(report.rows, 'row')}, {report.seconds:.1f} s"
        yield f"compacted {counted(report.facts['vnodes'], 'vnode')} up to seq {report.upto}: {rows}"


def _describe_expiry(facts: Mapping[str, Any]) -> str:
    """How many rows an expiry has hidden."""
    about = "" if facts["is_hidden_exact"] else "about "
    before = moment(dt.datetime.fromisoformat(facts["before"]))
    return f"hid {about}{counted(facts['hidden_rows'], 'row')} from before {before} UTC, from seq {facts['seq']} on"
