"""Send dead letters again: the current row of each key, outside of every range.

A letter holds the keys of refused rows, not the rows. A replay sends the current row of each key, with the sink's
columns and masks, or a delete where the row is gone and the sink sends deletes. It goes only to the destination that
refused it. The request's id comes from the letter and the rows, so repeating the same request counts once. A receiver
that keeps positions learns the seq at which the rows were read: a late request puts no older row over a newer one.

Only a refusal by the destination counts as an attempt; any other error leaves the letter unchanged.

After a crash: the letter is gone, or exists and can be sent again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.consumers.context import Context
from strandline.consumers.feed import Feed
from strandline.consumers.registration import table_of
from strandline.crash import crash_point
from strandline.errors import Invalid, NotFound, StrandlineError, Unavailable
from strandline.model import types as schemas
from strandline.model.change import DELETE, OP, ROW, SEQ, UPSERT, VNODE
from strandline.progress import Progress, silent
from strandline.sinks.contract import Redelivery
from strandline.sinks.definition import SinkDef
from strandline.sinks.forward.protocol import REFUSED, TOO_LARGE
from strandline.state.consumers import ConsumerRecord
from strandline.state.leases import this_worker
from strandline.state.letters import DeadLetter
from strandline.tables.store import TableStore

_REFUSALS = REFUSED | {TOO_LARGE}


@dataclass(frozen=True)
class ReplayReport:
    """The replay of a letter: the letter is gone, or stays because of `error`."""

    id: str
    consumer: str
    rows: int
    error: StrandlineError | None = None

    def to_dict(self) -> dict[str, Any]:
        error = None if self.error is None else self.error.to_dict()
        return {"id": self.id, "consumer": self.consumer, "rows": self.rows, "error": error}


def replay(context: Context, ids: Sequence[str], *, progress: Progress = silent) -> list[ReplayReport]:
    """Send these letters again, one by one; accepted ones are deleted."""
    state = context.state
    state.epoch.check()
    by_sink: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in {letter.id: letter for letter in (state.letters.get(id) for id in ids)}.values():
        by_sink[letter.consumer].append(letter)
    done: list[ReplayReport] = []
    proved: set[str] = set()
    for name, letters in sorted(by_sink.items()):
        consumer = state.registry.get(name)
        with state.leases.hold(consumer.lease, this_worker(), title=consumer.title):
            consumer = state.registry.get(name)  # as it is under the lease
            state.epoch.renew()
            away: Unavailable | None = None
            for letter in letters:
                if away is None:
                    sent = _replay_letter(context, consumer, letter, proved)
                else:
                    sent = ReplayReport(letter.id, name, letter.rows, away)
                # Do not wait for the same silent destination once for each letter.
                away = sent.error if isinstance(sent.error, Unavailable) else None
                done.append(sent)
                progress(len(done), len(ids), name)
    return done


def _replay_letter(context: Context, consumer: ConsumerRecord, letter: DeadLetter, proved: set[str]) -> ReplayReport:
    letters = context.state.letters
    try:
        rows = _send_letter(context, consumer, letter, proved)
    except StrandlineError as error:
        if isinstance(error, Invalid) and error.fields.get("status") in _REFUSALS:
            letters.count_refusal(letter.id, error.message, error.fields["status"])
        return ReplayReport(letter.id, consumer.name, letter.rows, error)
    crash_point("redelivery.sent")
    letters.drop([letter.id])
    return ReplayReport(letter.id, consumer.name, rows)


def _send_letter(context: Context, consumer: ConsumerRecord, letter: DeadLetter, proved: set[str]) -> int:
    if consumer.is_retired:
        raise Invalid(
            f"sink {consumer.name!r} is retired: nothing is sent for it any more",
            hint=f"Drop the letter, or use the sink again: strandline deadletter drop {letter.id[:8]}",
            consumer=consumer.name,
        )
    table, sink = _find_sink(context, consumer)
    is_same_table = letter.table_generation == table.entry.generation
    if letter.generation != consumer.generation or not is_same_table or sink.to.destination != consumer.destination:
        raise Invalid(
            f"dead letter {letter.id[:8]} of sink {consumer.name!r} is for {consumer.destination}, and an earlier"
            " generation of the sink or of its table: it cannot be sent elsewhere",
            hint=f"Drop it: strandline deadletter drop {letter.id[:8]}",
            consumer=consumer.name,
        )
    rows, as_of = current_rows(table, sink, letter.key_table, proved)
    if not rows.num_rows:
        return 0
    with closing(sink.to.open(context.producer(consumer))) as delivery:
        if not isinstance(delivery, Redelivery):
            raise Invalid(f"sink {consumer.name!r} takes no single rows", consumer=consumer.name)
        delivery.resend(letter.id, rows, as_of)
    return int(rows.num_rows)


def _find_sink(context: Context, consumer: ConsumerRecord) -> tuple[TableStore, SinkDef]:
    """The table and the sink of a consumer on record."""
    declared = context.declared.get(consumer.name)
    table = table_of(context, None if declared is None else declared.table, consumer)
    return table, SinkDef.from_dict(consumer.name, table.name, consumer.definition, declared)


def rows_of(context: Context, letter: DeadLetter) -> pa.Table | None:
    """The rows of a letter as a sink would send them now; None when the table was dropped."""
    consumer = context.state.registry.get(letter.consumer)
    try:
        table, sink = _find_sink(context, consumer)
    except NotFound:
        return None
    current, _ = current_rows(table, sink, letter.key_table, set())
    rows = pa.Table.from_batches([current])
    return rows.filter(pc.equal(rows.column(OP), UPSERT))


def current_rows(table: TableStore, sink: SinkDef, keys: pa.Table, proved: set[str]) -> tuple[pa.RecordBatch, int]:
    """What a sink would send for these keys now: `_op`, `_seq` and the columns; and the seq at which it was read. A key
    without a row gives a delete, if the sink sends deletes. `proved` are the paths of files that were verified
    already."""
    log = table.log.refresh()
    outgoing = sink.outgoing(log.definition)
    vnodes = range(log.definition.vnodes)
    feed = Feed(table, outgoing, log, 0, log.head, vnodes, is_snapshot=True, is_ordered=True, verified=proved)
    with feed.hold_files():
        found = feed.find_rows(keys)
    hidden = [VNODE] if log.definition.is_keyed else [VNODE, ROW]
    found = found.drop_columns(hidden)
    if log.definition.is_keyed and sink.deletes:
        names = list(log.definition.key)
        gone = keys.select(names).join(found.select(names), keys=names, join_type="left anti")
        deletes = {OP: pa.array([DELETE] * gone.num_rows), SEQ: pa.array([log.head] * gone.num_rows, pa.int64())}
        missing = pa.table({**deletes, **{name: gone.column(name) for name in names}})
        found = pa.concat_tables([found, schemas.conform(_add_null_columns(missing, found.schema), found.schema)])
    rows = found.combine_chunks().to_batches()[0] if found.num_rows else pa.RecordBatch.from_pylist([], found.schema)
    return rows, log.head


def _add_null_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, schemas.storage_type(field.type)))
    return rows.select(schema.names)
