"""Show what a tick would do."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, show_rows, size
from strandline.cli.broken import show_broken
from strandline.cli.verb import Call, verb
from strandline.consumers.work import NOTHING, SNAPSHOT
from strandline.lake import Lake
from strandline.pipeline.plan import Plan, SinkPlan

_NUMBERS = ("ROWS", "BYTES")


def register(app: typer.Typer) -> None:
    verb(app, "plan")(plan)


def plan(call: Call) -> Answer:
    """Show what a tick would do: what each sink would send, which tables are due for folding or expiry.

    Ends with 1 when a sink cannot run or a table is broken."""
    lake = call.lake()
    sinks.check_state(lake)
    return planned(call, lake, lake.plan())


def planned(call: Call, lake: Lake, found: Plan) -> Answer:
    """A plan as an answer; nothing of it is done."""
    data = {"lake": lake.storage.uri, "is_dry_run": True, **found.to_dict()}
    return Answer(
        data, lambda out: _show(out, call, found), 1 if found.broken or any(s.error for s in found.sinks) else 0
    )


def _show(out: Console, call: Call, found: Plan) -> None:
    good = [sink for sink in found.sinks if sink.error is None]
    if good:
        columns = ("SINK", "TABLE", "DESTINATION", "SEQ", *_NUMBERS, "ENGINE", "WHY")
        show_rows(out, columns, [_row(sink) for sink in good], numbers=_NUMBERS)
    for sink in found.sinks:
        if sink.error is not None:
            sinks.show_failure(out, call, sink.name, sink.error)
    if not found.sinks:
        out.print(f"There are no sinks. Add one: {sinks.adding(call)}")
    if found.compact:
        out.print(f"Would fold: {', '.join(found.compact)}.", soft_wrap=True)
    if found.expire:
        out.print(f"Would hide rows past their time: {', '.join(found.expire)}.", soft_wrap=True)
    show_broken(out, call, found.broken)
    if found.is_idle:
        out.print("A tick would do nothing: everything is up to date.")
    out.print(Text("Nothing was written.", "dim"))


def _row(sink: SinkPlan) -> tuple[str, ...]:
    seqs = rows = size_ = engine = ""
    if sink.works:
        moved = [work for work in sink.works if work.source != NOTHING] or sink.works
        seqs = f"{min(work.after for work in moved):,} → {max(work.upto for work in moved):,}"
        rows, size_ = f"{sink.rows:,}", size(sink.bytes)
        engine = "spark" if any(work.engine == "spark" for work in sink.works) else "driver"
    return sink.name, sink.table, sink.destination, seqs, rows, size_, engine, _why(sink)


def _why(sink: SinkPlan) -> str:
    if sink.is_retired:
        return "retired"
    new = [work for work in sink.works if not work.replay]
    parts = [
        *([f"new: {sink.why}" if sink.is_new else sink.why] if sink.why else []),
        *(["repeats what an earlier run began"] if len(new) < len(sink.works) else []),
        *(["sends the table as it is"] if any(work.source == SNAPSHOT for work in new) else []),
        *(f"starts after seq {work.upto:,}" for work in new if work.source == NOTHING),
    ]
    return "; ".join(parts) or ("new changes" if sink.works else "up to date")
