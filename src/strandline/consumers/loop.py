"""The one loop: a range, its effect, its mark.

A consumer with marks in the state works under its lease. For each range: its lanes are prepared; the intents are saved
and a new epoch is recorded in the lake, so that an older copy of the state is recognised; the consumer runs; its effect
is made to count; the marks move and close the intents, in one transaction, under the fence of the lease. A lane that
fails leaves its intent open and its marks unmoved; the others continue.

A large table is delivered to a new consumer in rounds. After each one the consumer is planned again: so changes of the
rows that were delivered follow before the next round, and another process may pause it or set its rate meanwhile.

A consumer whose effect carries its own mark (a fold, an expiry: one commit holds both) needs none of that. It is
planned again when another process was faster.

After a crash: an open intent names the range that was under way. It is repeated first, over the same rows with the same
cuts and ids, even if newer rows have arrived. Its destination skips what it already holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from strandline.consumers.context import Context
from strandline.consumers.contract import Consumer, ConsumerReport, LaneEnd, LaneStart, Receipt
from strandline.consumers.history import begin_positions, finish_positions
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.plan import ConsumerPlan, plan_marked
from strandline.consumers.registration import ResolvedConsumer
from strandline.consumers.reporting import Step, collect_errors, ignore_step, measure_time, report_of
from strandline.consumers.rounds import Rounds
from strandline.consumers.work import ROUND, SNAPSHOT, Work
from strandline.crash import crash_point
from strandline.errors import Conflict, Internal, StrandlineError
from strandline.sinks.contract import Tally
from strandline.state.consumers import ConsumerRecord, lease_of
from strandline.state.intents import Intent
from strandline.state.key_positions import Position
from strandline.state.leases import LENGTH_S, HeldLease, this_worker
from strandline.state.marks import ConsumerState
from strandline.state.rates import Rate

_ATTEMPTS = 10


def run_marked(
    context: Context,
    plan: ConsumerPlan,
    *,
    lease_s: float = LENGTH_S,
    step: Step = ignore_step,
    stop: threading.Event | None = None,
    is_turn_over: Callable[[float], bool] = lambda since_s: False,
) -> ConsumerReport:
    """Run a consumer with marks in the state under its lease; errors are in the report. When `stop` is set or its turn
    is over, by how long it has worked, it ends after the batch under way."""
    report = report_of(plan)
    with measure_time(report), collect_errors(plan.title, report.errors), ExitStack() as stack:
        if plan.error is not None and plan.known.consumer is None:
            raise plan.error
        try:
            leases = context.state.leases
            lease = leases.hold(lease_of(plan.name), this_worker(), lease_s, title=plan.title)
            held = stack.enter_context(lease)
        except Conflict as error:
            report.is_busy, report.why = True, error.message
            return report
        _MarkedRun(context, plan, held, report, step, stop or threading.Event(), is_turn_over).run()
    return report


def run_own(
    consumer: Consumer,
    works: Sequence[Work],
    replan: Callable[[], Sequence[Work]],
    *,
    report: ConsumerReport,
    step: Step = ignore_step,
) -> None:
    """Do the works of a consumer whose effect carries its own mark. What is done is in the report, also when a later
    work fails."""
    lost = 0
    with measure_time(report):
        while works:
            try:
                for work in works:
                    receipt = consumer.run(work)
                    report.add(receipt)
                    if receipt.upto is not None:
                        report.reach(work.after, receipt.upto)
                    report.errors += [end.error for end in receipt.ends.values() if end.error is not None]
                    step(work.extent.rows, consumer.name)
                break
            except Conflict:
                # Another process was faster; its part is no longer due.
                lost += 1
                if lost == _ATTEMPTS:
                    raise
                works = replan()


class _MarkedRun:
    """One consumer at work, under its lease."""

    def __init__(
        self,
        context: Context,
        plan: ConsumerPlan,
        held: HeldLease,
        report: ConsumerReport,
        step: Step,
        stop: threading.Event,
        is_turn_over: Callable[[float], bool],
    ) -> None:
        self._context = context
        self._state = context.state
        self._plan = plan
        self._lease = held
        self._report = report
        self._step = step
        self._stop = stop
        self._rounds = context.rounds.setdefault(plan.name, Rounds())
        self._rounds.save = partial(self._state.rates.note_sent, plan.name)
        self._positions: dict[int, Position] = {}
        self._verified: set[str] = set()
        self._record: ConsumerRecord | None = plan.known.consumer
        self._blocked: set[int] = set()
        self._started_s = time.monotonic()
        self._is_turn_over = is_turn_over

    def run(self) -> None:
        """Run the due works, and keep a receipt."""
        report, title = self._report, self._plan.title
        with collect_errors(title, report.errors):
            self._run_works()
        with collect_errors(title, report.errors):
            has_news = report.upto is not None or report.errors
            if self._record is not None and not self._record.is_retired and has_news and not self._lease.is_given_back:
                self._state.marks.advance(self._record, {}, fence=self._lease.fence, receipt=self._receipt_body(report))

    def _run_works(self) -> None:
        """Run the works that are due. Plan again after works that repeat unfinished ones, for what is new for their
        vnodes, and after each round of a backfill."""
        is_again = False
        while not self._is_over():
            known = self._context.consumer_state(self._plan.name)
            self._record = known.consumer or self._record
            # The plan from before the lease is still valid, unless another runner worked in between.
            if self._plan.error is not None or self._plan.known != known or self._plan.resolved is None:
                self._plan = plan_marked(self._context, self._plan.name, known)
                self._report.is_new |= self._plan.is_new
                self._report.why = self._report.why or self._plan.why
                self._report.lost = self._plan.lost
            elif is_again:
                # Nothing has moved: what was begun has failed again, and nothing else is due.
                return
            plan = self._plan
            if plan.error is not None:
                raise plan.error
            if plan.is_retired or plan.is_paused:
                return
            assert plan.resolved is not None
            self._record = self._register_consumer(plan.resolved)
            self._take_rounds(self._record, any(work.positions or work.source == ROUND for work in plan.works))
            # Not those of an earlier life.
            self._positions = dict(plan.resolved.marks.positions)
            if known.rate.is_limited and (not is_again or known.rate != self._rounds.rate):
                self._rounds.last = self._state.rates.last_sent(plan.name)
            self._rounds.rate = known.rate
            self._rounds.resume(max((at.pace for at in self._positions.values()), default=0.0))
            is_all = not any(work.is_replay or work.source == ROUND for work in plan.works)
            for at, work in enumerate(plan.works):
                self._rounds.wait(self._load_rate, self._stop, self._is_over)
                if self._is_over():
                    return
                if self._has_orders(known, is_first=at == 0):
                    break
                self._run_work(plan.resolved.consumer, work, is_last=is_all and at + 1 == len(plan.works))
            else:
                if is_all:
                    return
            is_again = True

    def _take_rounds(self, record: ConsumerRecord, has_history: bool) -> None:
        """What this process knows of this life. Files are checked once in a history, else once a run."""
        if self._rounds.generation != record.generation:
            self._rounds = Rounds(last=self._rounds.last, save=self._rounds.save, generation=record.generation)
            self._context.rounds[self._plan.name] = self._rounds
        if has_history:
            self._verified = self._rounds.verified
        else:
            self._rounds.verified.clear()

    def _is_over(self) -> bool:
        if not self._report.is_cut and self._is_turn_over(time.monotonic() - self._started_s):
            self._report.is_cut = True
        return self._report.is_cut or self._stop.is_set()

    def _load_rate(self) -> Rate:
        return self._state.rates.get(self._plan.name)

    def _has_orders(self, known: ConsumerState, *, is_first: bool) -> bool:
        """Whether a person has paused the consumer or changed its rate since it was planned."""
        if self._rounds.rate == known.rate and not is_first:
            self._rounds.rate = self._load_rate()
        is_paused = not is_first and self._plan.name in self._state.pauses.all()
        return is_paused or self._rounds.rate != known.rate

    def _register_consumer(self, found: ResolvedConsumer) -> ConsumerRecord:
        """Register the consumer if needed, and set its first marks."""
        record, marks = found.known.consumer, found.known.marks
        if found.facts is not None and (found.registration.is_new or found.registration.why):
            record = self._state.registry.register(self._plan.name, **found.facts).consumer
            # The lake must know the consumer before its first row is sent.
            self._state.epoch.renew()
            marks = self._state.marks.load(record)
        assert record is not None
        missing = {vnode: 0 for vnode in range(found.table.definition.vnodes) if vnode not in marks}
        if missing:
            self._state.marks.start(record, missing, self._lease.fence)
        return record

    def _run_work(self, consumer: LogConsumer, work: Work, *, is_last: bool) -> None:
        """Run one work, without the lanes that failed before. The transaction of the last lane of the last work also
        keeps the receipt and gives the lease back."""
        work = work.only([at for at, lane in enumerate(work.lanes) if self._blocked.isdisjoint(lane)])
        if not work.lanes:
            return
        work = replace(work, positions=self._find_positions(work), verified=self._verified)
        if work.source == ROUND and not work.is_replay:
            work = self._rounds.cut(work, {each.key for each in self._positions.values() if not each.is_done})
        sent, started_s = (self._report.rows, self._report.bytes), time.monotonic()
        self._rounds.begin(work)
        try:
            begun = self._begin_lanes(work, self._prepare_lanes(consumer, work))
            if begun.lanes:
                self._report.is_full |= work.source == SNAPSHOT
                self._report.rounds += work.source == ROUND
                self._report.replays += len(begun.lanes) if work.is_replay else 0
                self._run_lanes(consumer, begun, is_last=is_last)
        finally:
            consumer.close()
            rows, size = self._report.rows - sent[0], self._report.bytes - sent[1]
            is_whole = not work.is_replay and self._blocked.isdisjoint(work.vnodes)
            self._rounds.note(work, rows, size, time.monotonic() - started_s, is_whole=is_whole)
            self._step(work.extent.rows, self._plan.name)

    def _find_positions(self, work: Work) -> dict[int, Position | None]:
        """Where the vnodes of a work stand now, while their history is delivered."""
        return {vnode: self._positions.get(vnode) for vnode in work.vnodes if vnode in work.positions}

    def _prepare_lanes(self, consumer: LogConsumer, work: Work) -> Sequence[LaneStart]:
        assert self._record is not None
        try:
            self._lease.check()
            return consumer.prepare(work, self._record, self._context.producer(self._record))
        except StrandlineError as error:
            return [LaneStart(error=error) for _ in work.lanes]

    def _begin_lanes(self, work: Work, starts: Sequence[LaneStart]) -> Work:
        """Save the intents of the lanes that have something to do. A repeated lane that is already done only moves its
        marks."""
        chosen = []
        for at, start in enumerate(starts):
            try:
                if start.error is not None:
                    raise start.error
                if start.is_done and not work.is_replay:
                    raise Internal(f"{self._plan.title} says that work is done which was never begun")
                if start.is_done:
                    self._advance_marks(work, work.intents[at], None)
                else:
                    chosen.append(at)
            except StrandlineError as error:
                self._block_vnodes(work.lanes[at], error)
        left = work.only(chosen)
        if not left.lanes:
            return left
        try:
            if left.is_replay:
                self._state.epoch.renew()
                return left
            assert self._record is not None
            cuts = [starts[at].cuts for at in chosen]
            moves = [begin_positions(left, lane) if left.source == ROUND else None for lane in left.lanes]
            drafts = list(map(left.draft_intent, left.lanes, cuts, moves))
            intents = tuple(self._state.begin(self._record, drafts, self._lease.fence))
            for draft in drafts:
                self._positions |= {vnode: at for vnode, (_, at) in (draft.backfill or {}).items()}
            return replace(left, intents=intents)
        except StrandlineError as error:
            self._block_vnodes(left.vnodes, error)
            return left.only([])

    def _run_lanes(self, consumer: LogConsumer, work: Work, *, is_last: bool) -> None:
        """Run the lanes until each is done or has failed; a lane may stop in between to have its cuts saved."""
        while work.lanes:
            try:
                receipt = consumer.run(work)
            except StrandlineError as error:
                self._block_vnodes(work.vnodes, error)
                return
            self._check_receipt(receipt, work)
            self._report.add(receipt)
            again: list[tuple[tuple[int, ...], Intent]] = []
            for at, (lane, intent) in enumerate(zip(work.lanes, work.intents, strict=True)):
                is_final = is_last and not again and at + 1 == len(work.lanes)
                try:
                    cuts = self._finish_lane(consumer, work, intent, receipt, lane, is_last=is_final)
                    if cuts is not None:
                        again.append((lane, self._state.marks.save_cuts(intent, cuts, self._lease.fence)))
                except StrandlineError as error:
                    self._block_vnodes(lane, error)
            lanes, intents = tuple(lane for lane, _ in again), tuple(intent for _, intent in again)
            work = self._renew_epoch(replace(work, lanes=lanes, intents=intents))

    def _check_receipt(self, receipt: object, work: Work) -> None:
        """`Internal` for a receipt that says nothing, or something of lanes that were not run: a failure that nobody
        reads would let the mark pass."""
        if not isinstance(receipt, Receipt):
            raise Internal(f"{self._plan.title} returned a {type(receipt).__name__} from run; expected a Receipt")
        if unknown := sorted(set(receipt.ends) - set(work.lanes)):
            raise Internal(f"{self._plan.title} reports on vnodes {unknown[0]}, which are no lane of its work")

    def _renew_epoch(self, work: Work) -> Work:
        """Record a new epoch after cuts were saved: an older copy of the state would cut otherwise. Returns the work,
        or no lanes when that failed."""
        try:
            if work.lanes:
                self._state.epoch.renew()
            return work
        except StrandlineError as error:
            self._block_vnodes(work.vnodes, error)
            return work.only([])

    def _finish_lane(
        self,
        consumer: LogConsumer,
        work: Work,
        intent: Intent,
        receipt: Receipt,
        lane: tuple[int, ...],
        *,
        is_last: bool,
    ) -> object:
        """Make a lane's effect count and move its marks; or return the cuts that must be saved first."""
        end = receipt.ends.get(lane, LaneEnd())
        if end.dead:
            assert self._record is not None
            # Before the mark passes their rows; saving them again after a crash changes nothing.
            self._state.letters.save(self._record, intent.id, end.dead)
            crash_point("loop.letters_saved")
        if end.error is not None:
            raise end.error
        if end.cuts is not None:
            return end.cuts
        self._lease.check()
        crash_point("loop.lanes_done")
        consumer.finish(intent)
        crash_point("loop.finished")
        # A consumer that does not count by vnode has one lane, and the rows of its receipt.
        tally = end.tally or ({lane[0]: (receipt.rows, 0, 0)} if receipt.rows and len(work.lanes) == 1 else {})
        self._advance_marks(work, intent, tally, is_last=is_last and not self._report.errors)
        return None

    def _advance_marks(self, work: Work, intent: Intent, tally: Tally | None, *, is_last: bool = False) -> None:
        assert self._record is not None
        backfill = finish_positions(work, intent.vnodes, self._positions, tally, self._rounds.pace)
        moves = {vnode: (intent.after, intent.upto) for vnode in intent.vnodes}
        # The range before a consumer's start only places its marks, so it does not count as reached.
        start = intent.definition.get("start")
        moved = replace(self._report)
        moved.reach(max(intent.after, start if isinstance(start, int) else 0), intent.upto)
        self._state.marks.advance(
            self._record,
            moves,
            fence=self._lease.fence,
            backfill=backfill,
            intent=intent,
            receipt=self._receipt_body(moved) if is_last else None,
            releases=self._lease.lease if is_last else None,
        )
        self._positions |= {vnode: at for vnode, (_, at) in backfill.items()}
        if work.source == ROUND and all(at.is_done for _, at in backfill.values()):
            # The lake's record no longer says that the history of these vnodes is incomplete.
            self._state.epoch.renew()
        self._lease.is_given_back = is_last
        self._report.after, self._report.upto = moved.after, moved.upto

    def _receipt_body(self, report: ConsumerReport) -> dict[str, object]:
        return {**report.receipt(), "seconds": round(time.monotonic() - self._started_s, 3)}

    def _block_vnodes(self, vnodes: Sequence[int], error: StrandlineError) -> None:
        """Leave these vnodes to the next tick."""
        self._blocked.update(vnodes)
        self._report.errors.append(error)
