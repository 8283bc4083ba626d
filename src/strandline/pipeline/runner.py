"""Run a plan, once or for ever: consumers side by side, then the tables' retentions and compactions, those of small
tables side by side.

The failure of a consumer is in its report and stops no other. A consumer that another runner works on is skipped. A
tick with nothing to do reads no data file, writes nothing and starts no Spark.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from strandline.consumers.context import Context
from strandline.consumers.contract import Consumer, ConsumerReport
from strandline.consumers.loop import run_marked, run_own
from strandline.consumers.plan import ConsumerPlan
from strandline.consumers.reporting import Step, collect_errors, report_of, sum_steps
from strandline.consumers.work import ROUND
from strandline.engines.choice import DriverLimit
from strandline.errors import Internal, StrandlineError
from strandline.pipeline.failures import Failures, News, log_tick
from strandline.pipeline.plan import marked_plans
from strandline.pipeline.report import TickReport
from strandline.pipeline.resolve import fixpoint_plans, split_names, table_plans
from strandline.progress import Progress, silent
from strandline.state.leases import LENGTH_S
from strandline.state.marks import ConsumerState
from strandline.tables.broken import BrokenTable

TURN_S = 60.0
"""How long a consumer of `run` works before it reports, and others that wait have their turn."""
# A silent destination occupies one thread; the other consumers share the rest.
AT_ONCE = 16
# Folds on a local disk compute more than they wait: more threads would only wait for one another.
_LOCAL_FOLDS = 4
# A table with more to fold than this is folded alone.
BESIDE = DriverLimit(100_000, 16 << 20)
_LOOK_S = 0.1


def tick(
    context: Context, names: Sequence[str] | None = None, *, lease_s: float = LENGTH_S, progress: Progress = silent
) -> TickReport:
    """One pass over every consumer that is behind, then over the tables; with names, over those consumers alone."""
    started_s = time.monotonic()
    marked, of_tables = split_names(names)
    # Before the sinks, which send their results too.
    fixpoints = _run_fixpoints(context, of_tables, progress)
    plans = _make_plans(context, marked)
    step, stop = sum_steps(progress, sum(plan.rows for plan in plans)), threading.Event()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="consumer")
    try:
        run = partial(run_marked, context, lease_s=lease_s, step=step, stop=stop)
        due = sorted((plan for plan in plans if plan.is_due), key=_has_history)
        reports = tuple(sorted(pool.map(run, due), key=lambda each: each.name))
    finally:
        # An interrupted tick does not wait for its consumers: their intents are saved.
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    done, broken = _run_tables(context, of_tables, progress)
    paused = tuple(plan.name for plan in plans if plan.is_paused)
    report = TickReport((*fixpoints, *reports, *done), broken, round(time.monotonic() - started_s, 3), paused=paused)
    log_tick(report, News())
    return report


def run(
    context: Context,
    every_s: float,
    *,
    lease_s: float = LENGTH_S,
    stop: threading.Event | None = None,
    on_report: Callable[[TickReport | StrandlineError], None] = lambda report: None,
    progress: Progress = silent,
) -> None:
    """Tick until `stop` is set, `every_s` from start to start. A slow consumer does not delay the others; it is planned
    again when it is done, or when its turn is over. An error of a whole tick is reported, and the next tick tries
    again. In the end the running consumers are waited for. A failure that goes on is logged once."""
    stop = stop or threading.Event()
    failures = Failures()

    def tell(heard: TickReport | StrandlineError) -> None:
        log_tick(heard, failures.note(heard))
        on_report(heard)

    working: dict[str, Future[ConsumerReport]] = {}
    reports: tuple[ConsumerReport, ...]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="consumer") as pool:
        while not stop.is_set():
            started_s, reports = time.monotonic(), ()
            try:
                fixpoints = _run_fixpoints(context, None, progress)
                plans = [plan for plan in _make_plans(context, None) if plan.name not in working and plan.is_due]
                step = sum_steps(progress, sum(plan.rows for plan in plans))
                begin = partial(
                    run_marked, context, lease_s=lease_s, step=step, stop=stop, is_turn_over=partial(_is_over, working)
                )
                working |= {plan.name: pool.submit(begin, plan) for plan in sorted(plans, key=_has_history)}
                _wait_for(working, stop, started_s + every_s)
                done, broken = _run_tables(context, None, progress)
                reports = (*fixpoints, *_take_finished(working), *done)
                took_s = round(time.monotonic() - started_s, 3)
                tell(TickReport(reports, broken, took_s, working=tuple(sorted(working))))
            except StrandlineError as error:
                tell(error)
            except Exception as error:
                tell(Internal(f"a tick failed: {type(error).__name__}: {error}"))
            if not any(each.is_cut for each in reports):
                stop.wait(max(0.0, started_s + every_s - time.monotonic()))
        wait(working.values())
    if left := _take_finished(working):
        tell(TickReport(left))


def _is_over(working: Mapping[str, Future[ConsumerReport]], since_s: float) -> bool:
    """Whether a consumer that has worked so long leaves its thread to another one that waits."""
    return since_s >= TURN_S and any(not each.running() and not each.done() for each in list(working.values()))


def _wait_for(working: Mapping[str, Future[ConsumerReport]], stop: threading.Event, until_s: float) -> None:
    while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
        found = wait(working.values(), min(left_s, _LOOK_S))
        if not found.not_done or any(each.result().is_cut for each in found.done):
            return


def _take_finished(working: dict[str, Future[ConsumerReport]]) -> tuple[ConsumerReport, ...]:
    """Take the reports of the finished consumers out of `working`."""
    done = [name for name, future in working.items() if future.done()]
    return tuple(working.pop(name).result() for name in done)


def _has_history(plan: ConsumerPlan) -> bool:
    """Whether a consumer delivers a history: it takes long, so the others go first."""
    return any(work.source == ROUND for work in plan.works)


def _make_plans(context: Context, names: Sequence[str] | None) -> list[ConsumerPlan]:
    """The plans of consumers; `Conflict` when lake and state do not belong together."""
    found = marked_plans(context, names)
    if context.has_state:
        context.state.epoch.check(trimmed_epoch=max((each.epoch for each in found), default=0))
    return found


def _run_fixpoints(context: Context, names: Sequence[str] | None, progress: Progress) -> tuple[ConsumerReport, ...]:
    """Run the due fixed points, one after the other: each may be an input of the next one."""
    reports = []
    for fixpoint, make_plan in fixpoint_plans(context, names):
        plan = make_plan()
        if plan.is_due:
            reports.append(_run_guarded(context, fixpoint, plan, sum_steps(progress, plan.rows)))
    return tuple(reports)


def _run_tables(
    context: Context, names: Sequence[str] | None, progress: Progress
) -> tuple[tuple[ConsumerReport, ...], tuple[BrokenTable, ...]]:
    """Run the due retentions and compactions, with names only those; an error of one table stops no other."""
    plans, broken = table_plans(context, names)
    if not plans:
        return (), tuple(broken)
    step = sum_steps(progress, sum(plan.rows for _, plan in plans))
    of_tables: dict[str, list[tuple[int, Consumer, ConsumerPlan]]] = defaultdict(list)
    for at, (consumer, plan) in enumerate(plans):
        of_tables[plan.table].append((at, consumer, plan))
    small = [each for each in of_tables.values() if all(_is_small(plan) for _, _, plan in each)]
    large = [each for each in of_tables.values() if each not in small]
    reports: dict[int, ConsumerReport] = {}

    def act(each: Sequence[tuple[int, Consumer, ConsumerPlan]]) -> None:
        """Run the retention of a table, and then its compaction."""
        reports.update({at: _run_guarded(context, consumer, plan, step) for at, consumer, plan in each})

    threads = _LOCAL_FOLDS if context.storage.is_local else AT_ONCE
    pool = ThreadPoolExecutor(threads, thread_name_prefix="table")
    try:
        # A fold of few rows waits for the disk most of the time.
        waiting = [pool.submit(act, each) for each in small[1:]]
        for each in [*small[:1], *large]:
            act(each)
        for done in waiting:
            done.result()
    finally:
        # An interrupted tick does not wait: a fold that commits later is whole.
        pool.shutdown(wait=False, cancel_futures=True)
    return tuple(reports[at] for at in sorted(reports)), tuple(broken)


def _is_small(plan: ConsumerPlan) -> bool:
    """Whether a table's work may run beside others: several large folds would take their memory together."""
    rows = sum(work.extent.rows for work in plan.works)
    raw_bytes = sum(work.extent.raw_bytes for work in plan.works)
    return BESIDE.holds(rows=rows, raw_bytes=raw_bytes) and all(work.engine == "driver" for work in plan.works)


def _run_guarded(context: Context, consumer: Consumer, plan: ConsumerPlan, step: Step) -> ConsumerReport:
    report = report_of(plan)
    with collect_errors(plan.title, report.errors):
        if plan.error is not None:
            raise plan.error
        run_own(consumer, plan.works, partial(consumer.plan, context, ConsumerState()), report=report, step=step)
    return report
