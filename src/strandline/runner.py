"""Run a plan, once or for ever: sinks side by side, each under its lease, then what looks after the tables.

One sink's failure is in its report and stops nobody else. A sink that another runner works on is left to it. A tick
with nothing to do reads no data file, writes nothing and starts no Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.consumers.compaction import CompactReport
from strandline.cursor import Cursor, Tally
from strandline.errors import Conflict, Internal, NotFound, StrandlineError
from strandline.leases import LENGTH_S, Held, this_worker
from strandline.plan import SinkPlan, Standing, cares, declared_sink, facts_of, sink_plan, standings, table_of
from strandline.progress import Progress, silent
from strandline.registry import Consumer
from strandline.status import BrokenTable

if TYPE_CHECKING:
    from strandline.lake import Lake

AT_ONCE = 4
MOST_AT_ONCE = 64
_LOOK_S = 0.1


@dataclass(frozen=True)
class SinkReport:
    """What a tick did for one sink. `rows` and `bytes` left, `rows_read` and `bytes_read` were read for it; `withheld`
    rows passed without leaving, `dead` ones were refused for good; `is_full` says that the table was sent as it is.
    `is_busy`: another runner works on it."""

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
    seconds: float = 0.0
    error: StrandlineError | None = None

    def to_dict(self) -> dict[str, Any]:
        error = None
        if self.error is not None:
            error = {"kind": self.error.kind, "message": self.error.message, "hint": self.error.hint}
        return {**{name: value for name, value in vars(self).items() if name != "error"}, "error": error}


@dataclass(frozen=True)
class TickReport:
    """What a tick did: sinks that had something to do or could not, tables that were folded or let rows expire."""

    sinks: tuple[SinkReport, ...]
    compacted: tuple[CompactReport | BrokenTable, ...] = ()
    expired: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        is_folded = all(isinstance(each, CompactReport) and not each.degraded for each in self.compacted)
        return is_folded and all(sink.error is None for sink in self.sinks)

    @property
    def rows(self) -> int:
        return sum(sink.rows for sink in self.sinks)

    @property
    def is_idle(self) -> bool:
        return not self.sinks and not self.compacted and not self.expired

    def to_dict(self) -> dict[str, Any]:
        return {
            "sinks": [sink.to_dict() for sink in self.sinks],
            "compacted": [each.to_dict() for each in self.compacted],
            "expired": list(self.expired),
            "seconds": self.seconds,
        }


def tick(
    lake: Lake, names: Sequence[str] | None = None, *, lease_s: float = LENGTH_S, progress: Progress = silent
) -> TickReport:
    """One pass over every sink that is behind, or over those named alone; then over the tables' care."""
    started_s = time.monotonic()
    found = _planned(lake, names)
    at_work = _Tick(lake, lease_s, _Progress(progress, sum(each.rows for each in found)))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sink") as pool:
        reports = tuple(report for report in pool.map(at_work.sink, found) if report is not None)
    compacted, expired = ((), ()) if names is not None else _care(lake, progress)
    return TickReport(reports, compacted, expired, round(time.monotonic() - started_s, 3))


def run(
    lake: Lake,
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
    with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="sink") as pool:
        while not stop.is_set():
            started_s = time.monotonic()
            try:
                found = [each for each in _planned(lake, None) if each.name not in working]
                at_work = _Tick(lake, lease_s, _Progress(progress, sum(each.rows for each in found)))
                working |= {each.name: pool.submit(at_work.sink, each) for each in found if _is_due(each)}
                _wait(working, stop, started_s + every_s)
                compacted, expired = _care(lake, progress)
                reports = _finished(working)
                heard(TickReport(reports, compacted, expired, round(time.monotonic() - started_s, 3)))
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


def _planned(lake: Lake, names: Sequence[str] | None) -> list[SinkPlan]:
    """What is due; `Conflict` when lake and state do not belong together."""
    known = standings(lake)
    chosen = _checked_names(names, sorted({*lake.declared, *known}))
    found = [sink_plan(lake, name, known.get(name, Standing())) for name in chosen]
    if lake.has_ledger:
        lake.ledger.bond.check(trimmed_epoch=max((each.epoch for each in found), default=0))
    return found


def _is_due(plan: SinkPlan) -> bool:
    return not plan.is_retired and bool(plan.works or plan.error or plan.is_new or plan.why)


def _checked_names(names: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    for name in names or ():
        if name not in known:
            raise NotFound(f"there is no sink {name!r}", hint=f"Sinks: {', '.join(known) or 'none'}", consumer=name)
    return known if names is None else list(dict.fromkeys(names))


class _Tick:
    """One tick at work. The epoch that lake and state share rises before its first effect, when a sink is registered
    and when one has delivered: a copy of the state from before is an old one then."""

    def __init__(self, lake: Lake, lease_s: float, progress: _Progress) -> None:
        self._lake = lake
        self._lease_s = lease_s
        self._progress = progress
        self._lock = threading.Lock()
        self._is_renewed = False

    def _before_effect(self) -> None:
        with self._lock:
            if not self._is_renewed:
                self._renew()

    def _renew(self) -> None:
        self._lake.ledger.bond.renew()
        self._is_renewed = True

    def sink(self, plan: SinkPlan) -> SinkReport | None:
        """Do what is planned for a sink; None when that is nothing."""
        if not _is_due(plan):
            return None
        started_s = time.monotonic()
        tally = Tally()
        report = SinkReport(plan.name, plan.table, plan.kind, plan.destination, is_new=plan.is_new, why=plan.why)
        seqs: list[tuple[int, int]] = []
        try:
            if plan.error is not None and plan.name not in standings(self._lake):
                raise plan.error
            with self._lake.ledger.leases.held(
                f"consumer/{plan.name}", this_worker(), self._lease_s, title=f"sink {plan.name!r}"
            ) as held:
                seqs = self._deliver(plan.name, held, tally)
        except Conflict as error:
            if "owner" in error.fields and "lease" in error.fields and not tally.rows_read:
                return replace(report, is_busy=True, why=error.message)
            tally.errors.append(error)
        except StrandlineError as error:
            tally.errors.append(error)
        except Exception as error:
            tally.errors.append(Internal(f"sink {plan.name!r} failed: {type(error).__name__}: {error}"))
        facts = {name: value for name, value in vars(tally).items() if name != "errors"}
        return replace(
            report,
            **facts,
            after=min((after for after, _ in seqs), default=None),
            upto=max((upto for _, upto in seqs), default=None),
            seconds=round(time.monotonic() - started_s, 3),
            error=tally.errors[0] if tally.errors else None,
        )

    def _deliver(self, name: str, held: Held, tally: Tally) -> list[tuple[int, int]]:
        """Carry out what is due for a sink by now; a second time when the first had to finish what was begun: only then
        its vnodes go on, and a changed definition counts."""
        started_s = time.monotonic()
        done: list[tuple[int, int]] = []
        consumer, cursor = None, None
        try:
            for _ in range(2):
                standing = standings(self._lake).get(name, Standing())
                consumer = consumer or standing.consumer
                plan = sink_plan(self._lake, name, standing)
                if plan.error is not None:
                    raise plan.error
                if plan.is_retired:
                    break
                found = self._registered(plan, standing, held)
                if cursor is None or found != consumer:
                    consumer, cursor = found, self._cursor(found, held, tally)
                for work in plan.works:
                    if cursor.run(work):
                        done.append((work.after, work.upto))
                    self._progress.add(work.extent.rows, name)
                if not any(work.replay for work in plan.works):
                    break
            if done:
                self._renew()
        except StrandlineError as error:
            tally.errors.append(error)
        except Exception as error:
            tally.errors.append(Internal(f"sink {name!r} failed: {type(error).__name__}: {error}"))
        if consumer is not None and not consumer.is_retired and (done or tally.errors):
            body = {name: value for name, value in vars(tally).items() if name != "errors"}
            failed = None if not tally.errors else {"kind": tally.errors[0].kind, "message": tally.errors[0].message}
            span = {"after": min((a for a, _ in done), default=None), "upto": max((b for _, b in done), default=None)}
            receipt = {**body, **span, "seconds": round(time.monotonic() - started_s, 3), "error": failed}
            self._lake.ledger.marks.advance(consumer, {}, fence=held.fence, receipt=receipt)
        return done

    def _registered(self, plan: SinkPlan, found: Standing, held: Held) -> Consumer:
        """The sink as the state knows it from here on, with marks to move."""
        lake, ledger = self._lake, self._lake.ledger
        consumer, marks = found.consumer, found.marks
        declared = declared_sink(lake, plan.name, consumer)
        table = table_of(lake, declared, consumer)
        if declared is not None and (plan.is_new or (plan.why and not found.intents)):
            facts = facts_of(declared, table, consumer)
            consumer = ledger.registry.register(plan.name, **facts).consumer
            # The lake knows of it before anything of it leaves.
            self._renew()
            marks = ledger.marks.load(consumer)
        assert consumer is not None
        missing = {vnode: 0 for vnode in range(table.definition.vnodes) if vnode not in marks}
        if missing:
            ledger.marks.start(consumer, missing, held.fence)
        return consumer

    def _cursor(self, consumer: Consumer, held: Held, tally: Tally) -> Cursor:
        lake, ledger = self._lake, self._lake.ledger
        declared = lake.declared.get(consumer.name)
        return Cursor(
            table_of(lake, declared, consumer),
            consumer,
            declared,
            lake_id=lake.catalog.refresh().lake_id,
            marks=ledger.marks,
            letters=ledger.letters,
            held=held,
            tally=tally,
            before_effect=self._before_effect,
        )


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


def _care(lake: Lake, progress: Progress) -> tuple[tuple[CompactReport | BrokenTable, ...], tuple[str, ...]]:
    """Fold what is due, and let rows expire; what cannot be done for one table keeps no other from it."""
    fold, expire = cares(lake)
    expired: list[str] = []
    broken: list[BrokenTable] = []
    for name in expire:
        try:
            if lake.table(name).expire() is not None:
                expired.append(name)
        except StrandlineError as error:
            broken.append(BrokenTable(name, error.kind, error.message))
    done = lake.compact(fold, progress=progress) if fold else []
    return (*broken, *done), tuple(expired)
