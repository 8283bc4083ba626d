"""Show what a tick would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, note, size
from strandline.cli.broken import broken_parts
from strandline.cli.options import ShowAll
from strandline.cli.verb import Call

if TYPE_CHECKING:
    import strandline as sl
    from strandline.consumers.plan import ConsumerPlan
    from strandline.pipeline.plan import Plan


def plan(call: Call, is_all: ShowAll = False) -> Answer:
    """Show what a tick would do: the changes that each sink would send, the tables that would be compacted, and those
    of which rows would expire.

    Ends with 1 when a consumer cannot run or a table is broken."""
    return preview_tick(call, call.lake(), is_all=is_all)


def preview_tick(call: Call, lake: sl.Lake, names: list[str] | None = None, *, is_all: bool = False) -> Answer:
    """What a tick, or a tick of these sinks alone, would do. Nothing is written."""
    sinks.check_state(lake)
    found = lake.plan(only=names)
    data = {"lake": lake.storage.uri, "is_dry_run": True, **found.to_dict()}
    return Answer(data, _tell(call, found, is_all or names is not None), is_well=found.is_well)


def _tell(call: Call, found: Plan, is_all: bool) -> Iterator[Part]:
    shown = [each for each in found.consumers if is_all or not each.is_retired]
    if rows := [_make_row(each) for each in shown if each.error is None]:
        columns = ("CONSUMER", "TABLE", "DESTINATION", "SEQ", "ROWS", "BYTES", "ENGINE", "WHY")
        yield Rows(columns, rows, numbers=("BYTES",), cut=("DESTINATION", "WHY", "TABLE", "CONSUMER"))
    yield from sinks.tell_hidden(len(found.consumers) - len(shown))
    for each in found.consumers:
        if each.error is not None:
            yield from sinks.failure_parts(call, each.name, each.error)
    if not found.sinks:
        yield sinks.no_sinks(call)
    yield from broken_parts(call, found.broken)
    if found.is_idle:
        is_waiting = any(each.is_paused or _is_stopped(each) for each in found.consumers)
        yield f"A tick would do nothing{'' if is_waiting else ': everything is up to date'}."
    yield note("Nothing was written.")


def _make_row(plan: ConsumerPlan) -> tuple[object, ...]:
    from strandline.consumers.work import NOTHING

    who = (plan.name, plan.table, plan.destination)
    if not plan.works:
        return *who, "", "", "", "", _explain(plan)
    moved = [work for work in plan.works if work.source != NOTHING] or plan.works
    after, upto = min(work.after for work in moved), max(work.upto for work in moved)
    # A round brings rows of the table at the mark.
    seqs = f"{after:,} → {upto:,}" if after < upto else f"{upto:,}"
    engine = "spark" if any(work.engine == "spark" for work in plan.works) else "driver"
    return *who, seqs, plan.rows, size(plan.bytes), engine, _explain(plan)


def _explain(plan: ConsumerPlan) -> str:
    from strandline.consumers.work import NOTHING, ROUND, SNAPSHOT

    if plan.is_retired:
        return "retired"
    if plan.is_paused:
        return "paused; the log is kept for it" if plan.known.consumer else "paused"
    new = [work for work in plan.works if not work.is_replay]
    does = "sends" if plan.is_sink else "reads"
    parts = [
        *([f"new: {plan.why}" if plan.is_new else plan.why] if plan.why else []),
        *(["repeats what an earlier run began"] if len(new) < len(plan.works) else []),
        *([f"{does} the table as it is"] if any(work.source == SNAPSHOT for work in new) else []),
        *([f"{does} the {_part_left(plan)} history in rounds"] if any(work.source == ROUND for work in new) else []),
        *(["its history is paused"] if _is_stopped(plan) else []),
        *(work.why or f"starts after seq {work.upto:,}" for work in new if work.source == NOTHING or work.why),
    ]
    return "; ".join(parts) or ("new changes" if plan.works else "up to date")


def _part_left(plan: ConsumerPlan) -> str:
    """Which part of its history a consumer begins with."""
    return "rest of its" if any(each.round for each in plan.known.positions.values()) else "table's"


def _is_stopped(plan: ConsumerPlan) -> bool:
    """Whether a person has paused a history that is not delivered yet."""
    known = plan.known
    if plan.is_retired or not known.rate.is_stopped or plan.start != "backfill":
        return False
    is_new = plan.is_new or not any(known.marks.values())
    return is_new or any(not each.is_done for each in known.positions.values())
