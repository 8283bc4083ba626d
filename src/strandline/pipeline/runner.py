"""Run a plan, once or for ever: sinks side by side, each under its lease, then what looks after the tables.

One sink's failure is in its report and stops nobody else. A sink that another runner works on is left to it. A tick
with nothing to do reads no data file, writes nothing and starts no Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strandline.consumers import retention
from strandline.consumers.compaction import CompactReport, compact_tables
from strandline.consumers.context import Context
from strandline.consumers.loop import SinkCounts, SinkRun
from strandline.errors import Conflict, Internal, StrandlineError
from strandline.pipeline.plan import SinkPlan, cares, sink_plan, sink_plans
from strandline.pipeline.resolve import declared_sink, facts_of, standing_of, table_of
from strandline.progress import Progress, silent
from strandline.state.consumers import Consumer, lease_of
from strandline.state.leases import LENGTH_S, HeldLease, this_worker
from strandline.state.marks import ConsumerState
from strandline.tables.broken import BrokenTable, guarded

# A destination that never answers takes a place; the others share the rest.
AT_ONCE = 16
_LOOK_S = 0.1


@dataclass(frozen=True)
class SinkReport:
    """What a tick did for one sink. `rows` and `bytes` left, `rows_read` and `bytes_read` were read for it; `withheld`
    rows passed without leaving, `dead` ones were refused for good; `is_full` says that the table was sent as it is.
    `is_busy`: another runner works on it. `lost` are columns that its condition names and the table has no more."""

    name: str
    table: str
    kind: str
    destination: str
    after: int | None = None
    upto: int | None = None
    rows: int = 0
    bytes: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    withheld: int = 0
    dead: int = 0
    requests: int = 0
    retries: int = 0
    files: int = 0
    jobs: int = 0
    replays: int = 0
    is_full: bool = False
    is_new: bool = False
    is_busy: bool = False
    why: str = ""
    lost: tuple[str, ...] = ()
    seconds: float = 0.0
    error: StrandlineError | None = None

    @property
    def is_all_refused(self) -> bool:
        """Whether the destination took nothing and refused something: it may be the wrong one."""
        return bool(self.dead) and not self.rows

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "error": None if self.error is None else self.error.to_dict()}


@dataclass(frozen=True)
class TickReport:
    """What a tick did: sinks that had something to do or could not, tables that were folded or let rows expire.
    `working` are sinks that `run` does not wait for: they are still at it."""

    sinks: tuple[SinkReport, ...]
    compacted: tuple[CompactReport | BrokenTable, ...] = ()
    expired: tuple[str, ...] = ()
    seconds: float = 0.0
    working: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        is_folded = all(isinstance(each, CompactReport) and not each.degraded for each in self.compacted)
        return is_folded and all(sink.error is None and not sink.is_all_refused for sink in self.sinks)

    @property
    def rows(self) -> int:
        return sum(sink.rows for sink in self.sinks)

    @property
    def is_idle(self) -> bool:
        return not self.sinks and not self.compacted and not self.expired and not self.working

    def to_dict(self) -> dict[str, Any]:
        return {
            "sinks": [sink.to_dict() for sink in self.sinks],
            "compacted": [each.to_dict() for each in self.compacted],
            "expired": list(self.expired),
            "seconds": self.seconds,
            "working": list(self.working),
        }


def tick(
    context: Context, names: Sequence[str] | None = None, *, lease_s: float = LENGTH_S, progress: Progress = silent
) -> TickReport:
    """One pass over every sink that is behind, or over those named alone; then over the tables' care."""
    started_s = time.monotonic()
    found = _planned(context, names)
    at_work = _Tick(context, lease_s, _Progress(progress, sum(each.rows for each in found)))
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sink")
    try:
        reports = tuple(report for report in pool.map(at_work.sink, found) if report is not None)
    finally:
        # Whoever interrupts a tick does not wait for its sinks: what they have begun is on record.
        pool.shutdown(wait=False, cancel_futures=True)
    compacted, expired = ((), ()) if names is not None else _care(context, progress)
    return TickReport(reports, compacted, expired, round(time.monotonic() - started_s, 3))


def run(
    context: Context,
    every_s: float,
    *,
    lease_s: float = LENGTH_S,
    stop: threading.Event | None = None,
    heard: Callable[[TickReport | StrandlineError], None] = lambda report: None,
    progress: Progress = silent,
) -> None:
    """Tick until `stop` is set, `every_s` from start to start. A sink that takes longer holds nobody up: the others go
    on without it, and it is asked again when it is done. What goes wrong with a tick as a whole is told and tried
    again; what is under way in the end is waited for."""
    stop = stop or threading.Event()
    working: dict[str, Future[SinkReport | None]] = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sink") as pool:
        while not stop.is_set():
            started_s = time.monotonic()
            try:
                found = [each for each in _planned(context, None) if each.name not in working]
                at_work = _Tick(context, lease_s, _Progress(progress, sum(each.rows for each in found)))
                working |= {each.name: pool.submit(at_work.sink, each) for each in found if _is_due(each)}
                _wait(working, stop, started_s + every_s)
                compacted, expired = _care(context, progress)
                reports = _finished(working)
                took_s = round(time.monotonic() - started_s, 3)
                heard(TickReport(reports, compacted, expired, took_s, working=tuple(sorted(working))))
            except StrandlineError as error:
                heard(error)
            except Exception as error:
                heard(Internal(f"a tick failed: {type(error).__name__}: {error}"))
            stop.wait(max(0.0, started_s + every_s - time.monotonic()))
        wait(working.values())
    if left := _finished(working):
        heard(TickReport(left))


def _wait(working: Mapping[str, Future[SinkReport | None]], stop: threading.Event, until_s: float) -> None:
    while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
        if not wait(working.values(), min(left_s, _LOOK_S)).not_done:
            return


def _finished(working: dict[str, Future[SinkReport | None]]) -> tuple[SinkReport, ...]:
    """The reports of those that are done, which are at work no more."""
    done = [name for name, future in working.items() if future.done()]
    reports = [working.pop(name).result() for name in done]
    return tuple(report for report in reports if report is not None)


def _planned(context: Context, names: Sequence[str] | None) -> list[SinkPlan]:
    """What is due; `Conflict` when lake and state do not belong together."""
    found = sink_plans(context, names)
    if context.has_state:
        context.state.epoch.check(trimmed_epoch=max((each.epoch for each in found), default=0))
    return found


def _is_due(plan: SinkPlan) -> bool:
    return not plan.is_retired and bool(plan.works or plan.error or plan.is_new or plan.why)


class _Tick:
    """One tick at work."""

    def __init__(self, context: Context, lease_s: float, progress: _Progress) -> None:
        self._lake = context
        self._lease_s = lease_s
        self._progress = progress

    def sink(self, plan: SinkPlan) -> SinkReport | None:
        """Do what is planned for a sink; None when that is nothing."""
        if not _is_due(plan):
            return None
        started_s = time.monotonic()
        report = SinkReport(
            plan.name, plan.table, plan.kind, plan.destination, is_new=plan.is_new, why=plan.why, lost=plan.lost
        )
        tally = SinkCounts()
        with _collecting(plan.name, tally.errors), ExitStack() as stack:
            if plan.error is not None and standing_of(self._lake, plan.name).consumer is None:
                raise plan.error
            leases = self._lake.state.leases
            try:
                lease, title = lease_of(plan.name), f"sink {plan.name!r}"
                held = stack.enter_context(leases.held(lease, this_worker(), self._lease_s, title=title))
            except Conflict as error:
                return replace(report, is_busy=True, why=error.message)
            self._deliver(plan.name, held, tally)
        return replace(
            report,
            **tally.facts(),
            seconds=round(time.monotonic() - started_s, 3),
            error=tally.errors[0] if tally.errors else None,
        )

    def _deliver(self, name: str, held: HeldLease, tally: SinkCounts) -> None:
        """Carry out what is due for a sink by now, and keep a receipt of it."""
        started_s = time.monotonic()
        consumers: list[Consumer] = []
        with _collecting(name, tally.errors):
            self._carry_out(name, held, tally, consumers)
        with _collecting(name, tally.errors):
            is_told = tally.upto is not None or tally.errors
            if consumers and not consumers[-1].is_retired and is_told and not held.is_given_back:
                receipt = tally.receipt(round(time.monotonic() - started_s, 3))
                self._lake.state.marks.advance(consumers[-1], {}, fence=held.fence, receipt=receipt)

    def _carry_out(self, name: str, held: HeldLease, tally: SinkCounts, consumers: list[Consumer]) -> None:
        """Run the works that are due. If they repeat unfinished ones, plan again and run what is new for their vnodes.
        `consumers` hears who it is for."""
        cursor, was = None, None
        for _ in range(2):
            standing = standing_of(self._lake, name)
            consumers += [standing.consumer] if standing.consumer is not None else []
            plan = sink_plan(self._lake, name, standing)
            if plan.error is not None:
                raise plan.error
            if plan.is_retired:
                return
            found = self._registered(plan, standing, held)
            consumers.append(found)
            if cursor is None or found != was:
                cursor, was = self._cursor(found, held, tally), found
            is_all = not any(work.replay for work in plan.works)
            for at, work in enumerate(plan.works):
                cursor.run(work, is_last=is_all and at + 1 == len(plan.works))
                self._progress.add(work.extent.rows, name)
            if is_all:
                return

    def _registered(self, plan: SinkPlan, found: ConsumerState, held: HeldLease) -> Consumer:
        """The sink as the state knows it from here on, with marks to move."""
        context, state = self._lake, self._lake.state
        consumer, marks = found.consumer, found.marks
        declared = declared_sink(context, plan.name, consumer)
        table = table_of(context, declared, consumer)
        if declared is not None and (plan.is_new or plan.why):
            facts = facts_of(declared, table, consumer)
            consumer = state.registry.register(plan.name, **facts).consumer
            # The lake knows of it before anything of it leaves.
            state.epoch.renew()
            marks = state.marks.load(consumer)
        assert consumer is not None
        missing = {vnode: 0 for vnode in range(table.definition.vnodes) if vnode not in marks}
        if missing:
            state.marks.start(consumer, missing, held.fence)
        return consumer

    def _cursor(self, consumer: Consumer, held: HeldLease, tally: SinkCounts) -> SinkRun:
        context, state = self._lake, self._lake.state
        declared = context.declared.get(consumer.name)
        return SinkRun(
            table_of(context, declared, consumer),
            consumer,
            declared,
            lake_id=context.catalog.refresh().lake_id,
            state=state,
            held=held,
            tally=tally,
        )


@contextmanager
def _collecting(name: str, errors: list[StrandlineError]) -> Iterator[None]:
    """What goes wrong with one sink is told and stops no other."""
    try:
        yield
    except StrandlineError as error:
        errors.append(error)
    except Exception as error:
        errors.append(Internal(f"sink {name!r} failed: {type(error).__name__}: {error}"))


class _Progress:
    """Adds up what several sinks have done; it never goes back."""

    def __init__(self, progress: Progress, whole: int) -> None:
        self._progress = progress
        self._whole = whole
        self._done = 0
        self._lock = threading.Lock()
        progress(0, whole, "")

    def add(self, rows: int, what: str) -> None:
        with self._lock:
            self._done += rows
            self._progress(self._done, max(self._done, self._whole), what)


def _care(context: Context, progress: Progress) -> tuple[tuple[CompactReport | BrokenTable, ...], tuple[str, ...]]:
    """Fold what is due, and let rows expire; what cannot be done for one table keeps no other from it."""
    fold, expire, broken = cares(context)
    seqs = {name: guarded(name, partial(_expire, context, name)) for name in expire}
    failed = [each for each in seqs.values() if isinstance(each, BrokenTable)]
    expired = tuple(name for name, seq in seqs.items() if isinstance(seq, int))
    done = compact_tables(context, fold, progress=progress)
    return (*broken, *failed, *done), expired


def _expire(context: Context, name: str) -> int | None:
    return retention.expire(context.table(name))
