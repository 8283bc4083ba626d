"""The one loop of a sink: a range, its effect, its mark.

For each range the destination is asked whether it stands where the mark does; then the intent is saved and the lake is
told a new epoch, so that a copy of the state from before the intent is known as an old one; then the rows go
through lanes (`delivery`); then the destination makes them count; then the mark moves and closes the intent, in one
transaction, under the fence of the consumer's lease. A lane that fails leaves its intent open and its vnodes where they
were; the others go on.

After a crash: an open intent names the range that was under way. It is repeated first, over the same rows with the same
cuts and ids, although newer rows have arrived; a destination that holds it already is only told so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.consumers.delivery import LaneRun, carry
from strandline.consumers.feed import Feed, kept_schema
from strandline.consumers.work import NOTHING, SNAPSHOT, Work
from strandline.crash import crash_point
from strandline.errors import Conflict, StrandlineError
from strandline.sinks.contract import Batch, Delivery, Producer, Result
from strandline.sinks.definition import SinkDef
from strandline.sinks.outgoing import Outgoing
from strandline.state.consumers import Consumer
from strandline.state.intents import Intent, IntentDraft
from strandline.state.leases import HeldLease
from strandline.state.state import State
from strandline.tables.store import TableStore

Begun = tuple[Intent, Batch]


@dataclass
class SinkCounts:
    """What a consumer did in a tick: marks moved between `after` and `upto`, None when none did."""

    rows_read: int = 0
    bytes_read: int = 0
    rows: int = 0
    withheld: int = 0
    dead: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    files: int = 0
    jobs: int = 0
    replays: int = 0
    is_full: bool = False
    after: int | None = None
    upto: int | None = None
    errors: list[StrandlineError] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """All of it but what went wrong."""
        return {name: value for name, value in vars(self).items() if name != "errors"}

    def receipt(self, seconds: float) -> dict[str, Any]:
        """What the state keeps of it."""
        error = self.errors[0].to_dict() if self.errors else None
        return {**self.facts(), "seconds": seconds, "error": error}

    def reach(self, after: int, upto: int) -> None:
        """Marks moved over a range."""
        self.after = after if self.after is None else min(self.after, after)
        self.upto = upto if self.upto is None else max(self.upto, upto)

    def add(self, results: Sequence[Result]) -> None:
        for result in results:
            self.rows += result.rows
            self.withheld += result.withheld
            self.dead += sum(dead.rows for dead in result.dead)
            self.bytes += result.bytes
            self.requests += result.requests
            self.retries += result.retries
            self.files += len(result.files)


class SinkRun:
    """One consumer at work, under its lease. `given` is the sink as it is declared in this process, if it is: it knows
    the secrets."""

    def __init__(
        self,
        table: TableStore,
        consumer: Consumer,
        given: SinkDef | None,
        *,
        lake_id: str,
        state: State,
        held: HeldLease,
        tally: SinkCounts,
    ) -> None:
        self._table = table
        self._consumer = consumer
        self._given = given
        self._producer = Producer(
            lake_id,
            consumer.name,
            consumer.table,
            consumer.table_generation,
            consumer.generation,
            consumer.began_ms,
        )
        self._state = state
        self._held = held
        self._tally = tally
        self._blocked: set[int] = set()
        self._is_last = False
        self._started_s = time.monotonic()

    def run(self, work: Work, *, is_last: bool = False) -> None:
        """Carry out one range, of the vnodes that have not failed before it. What came of it is in the tally. With the
        last batch of the last range, the receipt is kept and the lease is given back in the same transaction."""
        self._is_last = is_last
        name, table = self._consumer.name, self._consumer.table
        try:
            sink = SinkDef.from_dict(name, table, self._consumer.definition, self._given)
            if work.replay:
                sink = SinkDef.from_dict(name, table, work.replay[0].definition, sink)
            shape = sink.shape(kept_schema(self._table.log.refresh(), work.schema_id).definition)
            delivery = sink.to.open(self._producer)
        except StrandlineError as error:
            self._block(work.vnodes, error)
            return
        try:
            begun = self._begin(work, shape, delivery)
            if begun:
                self._tally.is_full |= work.source == SNAPSHOT
                self._tally.replays += len(begun) if work.replay else 0
                self._finish(work, sink, shape, delivery, begun)
        finally:
            delivery.close()

    def _begin(self, work: Work, shape: Outgoing, delivery: Delivery) -> list[Begun]:
        """Save the intents. What was begun before and is there already only moves its marks."""
        lanes = [(at, lane) for at, lane in enumerate(work.lanes) if self._blocked.isdisjoint(lane)]
        batches = []
        for at, lane in lanes:
            batch = Batch(
                "",
                tuple(lane),
                work.after,
                work.upto,
                shape.schema,
                shape.definition.key,
                shape.cluster_by,
                is_first=work.after == 0,
                is_replay=bool(work.replay),
            )
            try:
                self._held.check()
                if work.replay:
                    intent = work.replay[at]
                    batch = replace(batch, id=intent.id, cuts=intent.cuts)
                    if delivery.is_delivered(batch):
                        self._advance(intent)
                        continue
                else:
                    # Asked before there is an intent, which would be taken for something that was begun.
                    self._check_not_ahead(delivery, batch)
                    batch = replace(batch, cuts=delivery.cuts())
                batches.append((at, batch))
            except StrandlineError as error:
                self._block(lane, error)
        try:
            intents = self._intents(work, batches)
        except StrandlineError as error:
            self._block([vnode for _, batch in batches for vnode in batch.vnodes], error)
            return []
        return [
            (intent, replace(batch, id=intent.id, cuts=intent.cuts))
            for intent, (_, batch) in zip(intents, batches, strict=True)
        ]

    def _intents(self, work: Work, batches: Sequence[tuple[int, Batch]]) -> list[Intent]:
        """The intents of batches: those that are repeated, or new ones, which the lake is told of."""
        if work.replay:
            if batches:
                self._state.epoch.renew()
            return [work.replay[at] for at, _ in batches]
        drafts = [
            IntentDraft(
                lane=f"{batch.vnodes[0]}-{batch.vnodes[-1]}",
                vnodes=batch.vnodes,
                after=work.after,
                upto=work.upto,
                schema_id=work.schema_id,
                cuts=batch.cuts,
            )
            for _, batch in batches
        ]
        return self._state.begin(self._consumer, drafts, self._held.fence) if drafts else []

    def _check_not_ahead(self, delivery: Delivery, batch: Batch) -> None:
        """A destination can hold only what was begun before. Otherwise seqs are given a second time."""
        if delivery.is_delivered(batch):
            raise Conflict(
                f"sink {self._consumer.name!r} is at seq {batch.after}, but {self._consumer.destination} has its"
                f" changes up to seq {batch.upto} already: the lake and its state were put back from a copy",
                hint=f"Nothing was sent. To send the table again: strandline mark reset {self._consumer.name}",
                consumer=self._consumer.name,
                expected=batch.after,
                found=batch.upto,
            )

    def _feed(self, work: Work, sink: SinkDef, shape: Outgoing, begun: Sequence[Begun]) -> Feed | None:
        if work.source == NOTHING:
            return None
        feed = Feed(
            self._table,
            shape,
            kept_schema(self._table.log.refresh(), work.schema_id),
            work.after,
            work.upto,
            [vnode for _, batch in begun for vnode in batch.vnodes],
            is_snapshot=work.source == SNAPSHOT,
            is_ordered=sink.to.is_ordered,
        )
        self._tally.rows_read += feed.extent.rows
        self._tally.bytes_read += feed.extent.bytes
        return feed

    def _finish(self, work: Work, sink: SinkDef, shape: Outgoing, delivery: Delivery, begun: Sequence[Begun]) -> None:
        """Run the lanes until each has delivered its batch or failed; a lane may stop to have its cuts saved first."""
        pending = list(begun)
        while pending:
            try:
                feed = self._feed(work, sink, shape, pending)
                loads = [LaneRun(batch, delivery.lane(batch)) for _, batch in pending]
                results, jobs = carry(feed, loads, is_ordered=sink.to.is_ordered, is_on_spark=work.engine == "spark")
            except StrandlineError as error:
                self._block([vnode for _, batch in pending for vnode in batch.vnodes], error)
                return
            self._tally.jobs += jobs
            again: list[Begun] = []
            for at, (intent, batch) in enumerate(pending):
                is_last = not again and at + 1 == len(pending)
                try:
                    cuts = self._settle(delivery, intent, batch, results[batch.id], is_last=is_last)
                    if cuts is not None:
                        intent = self._state.marks.save_cuts(intent, cuts, self._held.fence)
                        again.append((intent, replace(batch, cuts=intent.cuts)))
                except StrandlineError as error:
                    self._block(batch.vnodes, error)
            pending = self._told_of(again)

    def _told_of(self, again: list[Begun]) -> list[Begun]:
        """Batches whose cuts were saved, when the lake has a new epoch: a copy of the state without them would cut
        otherwise."""
        try:
            if again:
                self._state.epoch.renew()
            return again
        except StrandlineError as error:
            self._block([vnode for _, batch in again for vnode in batch.vnodes], error)
            return []

    def _settle(
        self, delivery: Delivery, intent: Intent, batch: Batch, results: Sequence[Result], *, is_last: bool
    ) -> Any:
        """Let a batch count and move its marks; the cuts to save when a lane asks for that first."""
        self._tally.add(results)
        for result in results:
            if result.dead:
                # Before the mark passes them; saving them again after a crash changes nothing.
                self._state.letters.save(self._consumer, intent.id, result.dead)
                crash_point("cursor.letters_saved")
        for result in results:
            if result.error is not None:
                raise result.error
        for result in results:
            if result.cuts is not None:
                return result.cuts
        self._held.check()
        crash_point("cursor.lanes_done")
        delivery.finish(batch, results)
        crash_point("cursor.finished")
        self._advance(intent, is_last=is_last and self._is_last and not self._tally.errors)
        return None

    def _advance(self, intent: Intent, *, is_last: bool = False) -> None:
        moves = {vnode: (intent.after, intent.upto) for vnode in intent.vnodes}
        # Up to where a sink starts it takes its place in the log; nothing of that was to be sent.
        start = intent.definition.get("start")
        tally = replace(self._tally)
        tally.reach(max(intent.after, start if isinstance(start, int) else 0), intent.upto)
        seconds = round(time.monotonic() - self._started_s, 3)
        self._state.marks.advance(
            self._consumer,
            moves,
            fence=self._held.fence,
            intent=intent,
            receipt=tally.receipt(seconds) if is_last else None,
            releases=self._held.lease if is_last else None,
        )
        self._held.is_given_back = is_last
        self._tally.after, self._tally.upto = tally.after, tally.upto

    def _block(self, vnodes: Sequence[int], error: StrandlineError) -> None:
        """These vnodes stay where they are until the next tick."""
        self._blocked.update(vnodes)
        self._tally.errors.append(error)
