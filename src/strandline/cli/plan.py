"""Show what a tick would do."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, show_rows, size
from strandline.cli.broken import show_broken
from strandline.cli.verb import Call, verb
from strandline.consumers.plan import ConsumerPlan
from strandline.consumers.work import NOTHING, SNAPSHOT
from strandline.lake import Lake
from strandline.pipeline.plan import Plan

_NUMBERS = ("ROWS", "BYTES")


def register(app: typer.Typer) -> None:
    verb(app, "plan")(plan)


def plan(call: Call) -> Answer:
    """Show what a tick would do: what each sink would send, which tables would be folded or let rows expire.

    Ends with 1 when a consumer cannot run or a table is broken."""
    lake = call.lake()
    sinks.check_state(lake)
    return planned(call, lake, lake.plan())


def planned(call: Call, lake: Lake, found: Plan) -> Answer:
    """A plan as an answer; nothing of it is done."""
    data = {"lake": lake.storage.uri, "is_dry_run": True, **found.to_dict()}
    return Answer(data, lambda out: _show(out, call, found), 0 if found.is_well else 1)


def _show(out: Console, call: Call, found: Plan) -> None:
    good = [each for each in found.consumers if each.error is None]
    if good:
        columns = ("CONSUMER", "TABLE", "DESTINATION", "SEQ", *_NUMBERS, "ENGINE", "WHY")
        show_rows(out, columns, [_row(each) for each in good], numbers=_NUMBERS)
    for each in found.consumers:
        if each.error is not None:
            sinks.show_failure(out, call, each.name, each.error)
    if not found.sinks:
        out.print(f"There are no sinks. Add one: {sinks.adding(call)}")
    show_broken(out, call, found.broken)
    if found.is_idle:
        out.print("A tick would do nothing: everything is up to date.")
    out.print(Text("Nothing was written.", "dim"))


def _row(plan: ConsumerPlan) -> tuple[str, ...]:
    seqs = rows = size_ = engine = ""
    if plan.works:
        moved = [work for work in plan.works if work.source != NOTHING] or plan.works
        seqs = f"{min(work.after for work in moved):,} → {max(work.upto for work in moved):,}"
        rows, size_ = f"{plan.rows:,}", size(plan.bytes)
        engine = "spark" if any(work.engine == "spark" for work in plan.works) else "driver"
    return plan.name, plan.table, plan.destination, seqs, rows, size_, engine, _why(plan)


def _why(plan: ConsumerPlan) -> str:
    if plan.is_retired:
        return "retired"
    new = [work for work in plan.works if not work.is_replay]
    does = "sends" if plan.is_sink else "reads"
    parts = [
        *([f"new: {plan.why}" if plan.is_new else plan.why] if plan.why else []),
        *(["repeats what an earlier run began"] if len(new) < len(plan.works) else []),
        *([f"{does} the table as it is"] if any(work.source == SNAPSHOT for work in new) else []),
        *(work.why or f"starts after seq {work.upto:,}" for work in new if work.source == NOTHING or work.why),
    ]
    return "; ".join(parts) or ("new changes" if plan.works else "up to date")
