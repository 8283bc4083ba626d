"""A sink as a consumer: it sends the rows of a range through its lanes to its destination."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strandline.consumers.contract import LaneEnd, LaneStart, Receipt
from strandline.consumers.delivery import LaneRun, deliver
from strandline.consumers.feed import log_with_schema
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.tally import add_tally
from strandline.consumers.work import NOTHING, ROUND, SNAPSHOT, Work
from strandline.errors import Conflict, Invalid, StrandlineError
from strandline.model.types import type_text
from strandline.sinks.contract import WHOLE, Batch, Delivery, Expired, Producer, Result
from strandline.sinks.definition import SinkDef
from strandline.sinks.outgoing import Outgoing
from strandline.state.consumers import ConsumerRecord
from strandline.state.intents import Intent
from strandline.state.key_positions import Position
from strandline.tables.horizon import expired_before, expiry, horizon_at
from strandline.tables.store import TableStore


class SinkConsumer(LogConsumer):
    """One sink, for one tick. Before each work, the position of its destination is compared with the marks."""

    def __init__(self, sink: SinkDef) -> None:
        super().__init__(sink.name, sink.table, start=sink.start)
        self.sink = sink
        self.kind, self.lanes = sink.to.kind, sink.to.lanes
        self._work: _SinkWork | None = None

    @property
    def destination(self) -> str:
        return self.sink.to.destination

    @property
    def title(self) -> str:
        return f"sink {self.name!r}"

    @property
    def is_copy(self) -> bool:
        return self.sink.to.keeps_rows

    def to_dict(self) -> dict[str, Any]:
        return {**self.sink.to_dict(), "start": self.start}

    def shape(self, table: TableStore) -> str | None:
        """For a mirror: which rows and columns it has, and the columns that it may have had and the table has no more,
        or with another type."""
        if not self.sink.to.keeps_rows:
            return None
        facts = self.sink.to_dict()
        chosen = [facts[name] for name in ("where", "columns", "mask", "salt")]
        definition, wanted = table.definition, self.sink.columns
        gone = {
            f"{column.name}: {type_text(column.type)}"
            for earlier in definition.schemas
            for column in earlier
            if (wanted is None or column.name in wanted)
            and (column.name not in definition.schema.names or definition.schema.field(column.name).type != column.type)
        }
        gone |= {
            f"{each.old} -> {each.new}"
            for each in definition.renames
            if wanted is None or each.old in wanted or each.new in wanted
        }
        return hashlib.sha256(json.dumps([chosen, sorted(gone)]).encode()).hexdigest()[:16]

    def missing_columns(self, table: TableStore, *, is_new: bool) -> tuple[str, ...]:
        return self.sink.outgoing(table.definition, is_new=is_new, with_salt=False).lost

    def prepare(self, work: Work, record: ConsumerRecord, producer: Producer) -> list[LaneStart]:
        sink = SinkDef.from_dict(self.name, self.table, record.definition, self.sink)
        if work.is_replay:
            sink = SinkDef.from_dict(self.name, self.table, work.intents[0].definition, sink)
        log = log_with_schema(work.table.log.refresh(), work.schema_id)
        outgoing = sink.outgoing(log.definition)
        expired = None
        if sink.to.keeps_rows:
            before, horizon = (horizon_at(log.snapshot.txns, seq) for seq in (work.after, work.upto))
            outgoing = outgoing.without(expiry(log.definition, horizon))
            if horizon != before and work.source not in (SNAPSHOT, ROUND):
                expired = expired_before(log.definition, horizon)
                _check_sends_time(sink, outgoing, expired)
        self._work = _SinkWork(sink, outgoing, sink.to.open(producer), expired)
        return self._work.start_lanes(work)

    def run(self, work: Work) -> Receipt:
        assert self._work is not None
        return self._work.run(work)

    def finish(self, intent: Intent) -> None:
        assert self._work is not None
        self._work.finish(intent)

    def close(self) -> None:
        if self._work is not None:
            self._work.delivery.close()
            self._work = None


class _SinkWork:
    """One work of a sink, with its destination open."""

    def __init__(self, sink: SinkDef, outgoing: Outgoing, delivery: Delivery, expired: Expired | None) -> None:
        self._sink = sink
        self._outgoing = outgoing
        self.delivery = delivery
        self._expired = expired
        self._done: dict[str, tuple[Batch, Sequence[Result]]] = {}

    def start_lanes(self, work: Work) -> list[LaneStart]:
        return [self._start_lane(work, at) for at in range(len(work.lanes))]

    def _start_lane(self, work: Work, at: int) -> LaneStart:
        try:
            batch = self._make_batch(work, at)
            is_there = self.delivery.is_delivered(batch)
            if work.is_replay:
                return LaneStart(is_done=is_there)
            # Checked before the intent is saved, which would look like a batch under way.
            if is_there:
                raise self._ahead_conflict(batch)
            return LaneStart(cuts=self.delivery.cuts())
        except StrandlineError as error:
            return LaneStart(error=error)

    def _make_batch(self, work: Work, at: int) -> Batch:
        vnodes = tuple(work.lanes[at])
        start, end = _rounds_of(work, vnodes[0])
        batch = Batch(
            "",
            vnodes,
            work.after,
            work.upto,
            self._outgoing.schema,
            self._outgoing.definition.key,
            self._outgoing.cluster_by,
            is_first=work.after == 0,
            is_rows=work.source in (SNAPSHOT, ROUND),
            start_round=start,
            end_round=end,
            sent={vnode: position.sent for vnode in vnodes if (position := work.positions.get(vnode)) is not None},
            is_replay=work.is_replay,
            size=work.extent.bytes,
            expired=self._expired,
        )
        return replace(batch, id=work.intents[at].id, cuts=work.intents[at].cuts) if work.intents else batch

    def _ahead_conflict(self, batch: Batch) -> Conflict:
        """The error when a destination holds a batch that was not begun: its seqs were given out twice."""
        return Conflict(
            f"sink {self._sink.name!r} is at seq {batch.after}, but {self._sink.to.destination} has its"
            f" changes up to seq {batch.upto} already: the lake and its state were restored from a copy",
            hint=f"Nothing was sent. To send the table again: strandline mark reset {self._sink.name}",
            consumer=self._sink.name,
            expected=batch.after,
            found=batch.upto,
        )

    def run(self, work: Work) -> Receipt:
        feed = None
        receipt = Receipt()
        is_ordered = self._sink.to.is_ordered
        if work.source != NOTHING:
            feed = work.feed(self._outgoing, is_ordered=is_ordered)
            receipt.rows_read, receipt.bytes_read = feed.extent.rows, feed.extent.bytes
        if self._expired is not None:
            receipt.facts["expired_before"] = self._expired[1].as_py().isoformat()
        is_change = self._sink.to.keeps_rows and work.source not in (SNAPSHOT, ROUND)
        if is_change and work.after < work.table.log.refresh().redefined <= work.upto:
            receipt.facts["columns"] = self._outgoing.schema.names
        batches = [self._make_batch(work, at) for at in range(len(work.lanes))]
        runs = [LaneRun(batch, self.delivery.lane(batch)) for batch in batches]
        results, receipt.jobs = deliver(
            feed,
            runs,
            is_ordered=is_ordered,
            is_on_spark=work.engine == "spark",
            is_by_key=self._sink.to.keeps_rows,
            to=self._sink.name,
        )
        for batch in batches:
            self._done[batch.id] = batch, results[batch.id]
            _count_results(receipt, batch, results[batch.id])
        return receipt

    def finish(self, intent: Intent) -> None:
        self.delivery.finish(*self._done[intent.id])


def _rounds_of(work: Work, vnode: int) -> tuple[int, int]:
    """The rounds of its backfill that a vnode has before and after a work."""
    if not work.positions:
        return WHOLE, WHOLE
    position = work.positions[vnode] or Position()
    if work.source != ROUND:
        return position.round, position.round
    assert work.span is not None
    return position.round, WHOLE if work.span.end is None else position.round + 1


def _check_sends_time(sink: SinkDef, outgoing: Outgoing, expired: Expired | None) -> None:
    """`Invalid` when rows of a mirror expire by a column that it does not have, or only masked."""
    if expired is not None and (expired[0] not in outgoing.names or expired[0] in outgoing.masks):
        raise Invalid(
            f"rows of table {sink.table!r} expired by their {expired[0]!r}, and sink {sink.name!r} does not send that"
            " column as it is, so they cannot leave its mirror",
            hint=f"Add {expired[0]!r} to its columns, or send the changes: mode='changes', or --mode changes.",
            consumer=sink.name,
            column=expired[0],
        )


def _count_results(receipt: Receipt, batch: Batch, results: Sequence[Result]) -> None:
    """Add the results of a batch to a receipt."""
    tally: dict[int, tuple[int, int, int]] = {}
    for result in results:
        add_tally(tally, result.tally)
        receipt.rows += result.rows
        receipt.withheld += result.withheld
        receipt.dead += sum(dead.rows for dead in result.dead)
        receipt.bytes += result.bytes
        receipt.requests += result.requests
        receipt.retries += result.retries
        receipt.files += len(result.files)
    receipt.ends[batch.vnodes] = LaneEnd(
        dead=tuple(dead for result in results for dead in result.dead),
        cuts=next((result.cuts for result in results if result.cuts is not None), None),
        error=next((result.error for result in results if result.error is not None), None),
        tally=tally,
    )
