"""Fold logs into baselines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer, counted, show_rows, size
from strandline.cli.broken import broken_data, show_broken, show_degraded
from strandline.cli.options import TableNames, named
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.consumers.compaction import CompactReport
from strandline.consumers.compaction_plan import CompactPlan
from strandline.lake import Lake
from strandline.table import Table
from strandline.tables.broken import BrokenTable, guarded

_SHOWN = 20


def register(app: typer.Typer) -> None:
    verb(app, "compact")(compact)


def compact(
    call: Call,
    names: TableNames = None,
    full: Annotated[bool, typer.Option("--all", help="Fold every change, also where that is not due yet.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is due and why; write nothing.")] = False,
) -> Answer:
    """Fold the log into the baseline where that is due, so that reads have less to merge.

    Ends with 1 when something could not be folded."""
    lake = call.lake()
    chosen = named(lake, names) or lake.tables()
    if dry_run:
        return _planned(call, lake, chosen, full)
    with progress_bar("Compacting") as progress:
        done = lake.compact(chosen, full=full, progress=progress) if chosen else []
    reports = [each for each in done if isinstance(each, CompactReport)]
    left = {each.table: lake.table(each.table).plan_compaction(full=True) for each in reports}
    tables = [
        broken_data(each)
        if isinstance(each, BrokenTable)
        else {**each.to_dict(), "waiting_rows": left[each.table].waiting_rows}
        for each in done
    ]
    is_well = len(reports) == len(done) and not any(each.degraded for each in reports)

    def show(out: Console) -> None:
        for each in reports:
            _show(out, call, each, left[each.table], lake.table(each.table).plan_compaction(full=full))
        show_broken(out, call, (each for each in done if isinstance(each, BrokenTable)))
        if not done:
            out.print("There are no tables yet.")
        if any(each.vnodes for each in reports):
            out.print(Text(f"What was folded and replaced stays until: {call.command('vacuum')}", "dim"))

    return Answer({"lake": lake.storage.uri, "is_dry_run": False, "tables": tables}, show, 0 if is_well else 1)


def _show(out: Console, call: Call, report: CompactReport, left: CompactPlan, due: CompactPlan) -> None:
    name = report.table
    if report.vnodes:
        wrote = f"{counted(report.rows, 'row')} in {counted(report.files, 'new file')}, {size(report.bytes)}"
        instead = f", in place of {counted(report.removed_files, 'file')}" if report.removed_files else ""
        by = " on Spark" if report.engine == "spark" else ""
        out.print(
            f"{name}: folded {counted(report.vnodes, 'vnode')} up to seq {report.upto}{by}:"
            f" {wrote}{instead}, {report.seconds:.1f} s.",
            soft_wrap=True,
        )
    elif not report.degraded and due.due:
        said = f"{counted(len(due.due), 'vnode is', 'vnodes are')} due, and another compaction is at work on them"
        out.print(f"{name}: {said}. See: {call.command(f'table pins {name}')}", soft_wrap=True)
    elif not report.degraded:
        _show_idle(out, call, left)
    show_degraded(out, call, name, (f"vnode {each.vnode}: {each.message}: {each.path}" for each in report.degraded))


def _show_idle(out: Console, call: Call, left: CompactPlan) -> None:
    """Nothing is due; `left` is what a full compaction would do."""
    expired = sum(need.expired for need in left.due)
    waiting = [
        *([counted(left.waiting_rows, "change")] if left.waiting_rows else []),
        *([f"about {counted(expired, 'expired row')}"] if expired else []),
    ] or ["values of dropped columns"]
    if not left.due:
        out.print(f"{left.table}: everything is folded, up to seq {left.upto}.")
        return
    anyway = call.command(f"compact {left.table} --all")
    verb_ = "waits" if waiting == ["1 change"] else "wait"
    out.print(
        f"{left.table}: nothing is due; {' and '.join(waiting)} {verb_}. Fold all the same: {anyway}", soft_wrap=True
    )


def _planned(call: Call, lake: Lake, names: Sequence[str], full: bool) -> Answer:
    def planned(name: str) -> CompactPlan:
        return lake.table(name).plan_compaction(full=full)

    plans = [guarded(name, partial(planned, name)) for name in names]
    broken = [plan for plan in plans if isinstance(plan, BrokenTable)]
    tables = [broken_data(plan) if isinstance(plan, BrokenTable) else plan.to_dict() for plan in plans]

    def show(out: Console) -> None:
        for plan in plans:
            if isinstance(plan, CompactPlan):
                _show_plan(out, call, plan, lake.table(plan.table))
        show_broken(out, call, broken)
        out.print("Nothing was written." if plans else "There are no tables yet.")

    return Answer({"lake": lake.storage.uri, "is_dry_run": True, "tables": tables}, show, 1 if broken else 0)


def _show_plan(out: Console, call: Call, plan: CompactPlan, table: Table) -> None:
    if not plan.due:
        _show_idle(out, call, table.plan_compaction(full=True))
        return
    waiting = counted(plan.waiting_rows, "change waits", "changes wait")
    due = f"{len(plan.due):,} of {counted(table.definition.vnodes, 'vnode')}"
    out.print(f"{plan.table}: would fold {due} up to seq {plan.upto}; {waiting}.", soft_wrap=True)
    rows = [
        (str(need.vnode), f"{need.rows:,}", f"{need.files:,}", f"{need.base_rows:,}", need.why)
        for need in plan.due[:_SHOWN]
    ]
    numbers = ("VNODE", "CHANGES", "FILES", "FOLDED ROWS")
    show_rows(out, (*numbers, "WHY"), rows, numbers=numbers)
    if len(plan.due) > _SHOWN:
        out.print(f"… and {len(plan.due) - _SHOWN:,} more")
