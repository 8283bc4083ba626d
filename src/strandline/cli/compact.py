"""Compact tables: merge their logs into their baselines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, Rows, counted, note, size
from strandline.cli.broken import broken_data, broken_parts, degraded_parts
from strandline.cli.options import DryRun, TableNames, UseEngine
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call
from strandline.engines.choice import engine_of_call
from strandline.tables.broken import BrokenTable

if TYPE_CHECKING:
    from strandline.consumers.compaction import CompactReport
    from strandline.consumers.compaction_plan import CompactPlan


def compact(
    call: Call,
    names: TableNames = None,
    full: Annotated[bool, typer.Option("--all", help="Compact every change, also where it is not due yet.")] = False,
    dry_run: DryRun = False,
    engine: UseEngine = None,
) -> Answer:
    """Merge the log into the baseline where that is due, so that reads are quicker; pack small files of the log.

    Ends with 1 when something could not be compacted."""
    lake = call.lake()
    if dry_run:
        plans = lake.plan_compaction(names or (), full=full)
        is_broken = any(isinstance(plan, BrokenTable) for plan in plans)
        data = {"lake": lake.storage.uri, "is_dry_run": True, "tables": [broken_data(plan) for plan in plans]}
        return Answer(data, _tell_plans(call, lake, plans), is_well=not is_broken)
    with progress_bar("Compacting") as progress, engine_of_call(engine):
        done = lake.compact(names or (), full=full, progress=progress)
    reports = [each for each in done if not isinstance(each, BrokenTable)]
    left = {each.table: lake.table(each.table).plan_compaction(full=True) for each in reports}
    data = {"lake": lake.storage.uri, "is_dry_run": False, "tables": [_make_data(each, left) for each in done]}
    is_well = len(reports) == len(done) and not any(each.degraded for each in reports)

    def tell() -> Iterator[Part]:
        for each in reports:
            yield from _tell(call, each, left[each.table], lake.table(each.table).plan_compaction(full=full))
        yield from broken_parts(call, done)
        if not done:
            yield "There are no tables yet."
        if any(each.vnodes or each.packed_files for each in reports):
            yield note(f"The replaced files stay on disk until: {call.command('vacuum')}")

    return Answer(data, tell(), is_well=is_well)


def _make_data(done: CompactReport | BrokenTable, left: dict[str, CompactPlan]) -> dict[str, Any]:
    if isinstance(done, BrokenTable):
        return broken_data(done)
    return {**done.to_dict(), "waiting_rows": left[done.table].waiting_rows}


def _tell(call: Call, report: CompactReport, left: CompactPlan, due: CompactPlan) -> Iterator[Part]:
    name = report.table
    if report.packed_files:
        yield f"{name}: {describe_packed(report.packed_files, report.packs)}."
    if report.vnodes:
        wrote = f"{counted(report.rows, 'row')} in {counted(report.files, 'new file')}, {size(report.bytes)}"
        instead = f", in place of {counted(report.removed_files, 'file')}" if report.removed_files else ""
        by = " on Spark" if report.engine == "spark" else ""
        folded = f"compacted {counted(report.vnodes, 'vnode')} up to seq {report.upto}{by}"
        yield f"{name}: {folded}: {wrote}{instead}, {report.seconds:.1f} s."
    elif not report.degraded and due.due:
        said = f"{counted(len(due.due), 'vnode is', 'vnodes are')} due, and another compaction is at work on them"
        yield f"{name}: {said}. See: {call.command(f'table pins {name}')}"
    elif not report.degraded and not report.packed_files:
        yield _describe_idle(call, left)
    yield from degraded_parts(
        call, name, (f"vnode {each.vnode}: {each.message}: {each.path}" for each in report.degraded)
    )


def describe_packed(files: int, packs: int) -> str:
    """How many files of a log became how many."""
    return f"packed {counted(files, 'file')} of the log into {packs:,}"


def _describe_idle(call: Call, left: CompactPlan) -> str:
    """A table with nothing due. `left` is the plan of a full compaction."""
    if not left.due:
        return f"{left.table}: everything is compacted, up to seq {left.upto}."
    expired = sum(need.expired for need in left.due)
    waiting = [
        *([counted(left.waiting_rows, "change")] if left.waiting_rows else []),
        *([f"about {counted(expired, 'expired row')}"] if expired else []),
    ] or ["values of dropped columns"]
    wait = "waits" if waiting == ["1 change"] else "wait"
    anyway = call.command(f"compact {left.table} --all")
    return f"{left.table}: nothing is due; {' and '.join(waiting)} {wait}. Compact all the same: {anyway}"


def _tell_plans(call: Call, lake: sl.Lake, plans: list[CompactPlan | BrokenTable]) -> Iterator[Part]:
    for plan in plans:
        if not isinstance(plan, BrokenTable):
            yield from _tell_plan(call, plan, lake.table(plan.table))
    yield from broken_parts(call, plans)
    yield "Nothing was written." if plans else "There are no tables yet."


def _tell_plan(call: Call, plan: CompactPlan, table: sl.Table) -> Iterator[Part]:
    from strandline.consumers.packing import describe_packs

    if plan.packs:
        yield f"{plan.table}: would {describe_packs(plan.packed_files)}."
    if not plan.due:
        if not plan.packs:
            yield _describe_idle(call, table.plan_compaction(full=True))
        return
    waiting = counted(plan.waiting_rows, "change waits", "changes wait")
    due = f"{len(plan.due):,} of {counted(table.definition.vnodes, 'vnode')}"
    yield f"{plan.table}: would compact {due} up to seq {plan.upto}; {waiting}."
    rows = [(need.vnode, need.rows, need.files, need.base_rows, need.why) for need in plan.due]
    yield Rows(("VNODE", "CHANGES", "FILES", "FOLDED ROWS", "WHY"), rows, most=20)
