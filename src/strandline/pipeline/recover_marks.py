"""Recover the marks of a lost or outdated state from the destinations.

The lake's own record names the sinks and their open intents; each destination that keeps positions says how far it has
come. An interrupted batch is opened again, and continues behind the last row that the destination has. A sink whose
destination cannot tell, or has more than the lake, is retired until a person decides where it continues; `status` and
every tick ask for that. So is a sink whose history was being delivered: only the state knows its key positions. Nothing
is changed unless every destination has answered.

After a crash: everything is adopted, or nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from strandline.consumers.context import Context
from strandline.consumers.registration import table_of
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError, Unavailable
from strandline.sinks.contract import Delivery, ResumableDelivery
from strandline.sinks.definition import BACKFILL, KINDS, SinkDef
from strandline.state.consumers import UNDECIDED, ConsumerRecord
from strandline.state.epoch import EpochRecord, read_record
from strandline.state.intents import Intent
from strandline.state.key_positions import IN_HISTORY
from strandline.tables.store import TableStore

_NO_POSITION = "its destination keeps no position"


@dataclass(frozen=True)
class RecoveredSink:
    """A sink and the seqs from which it continues, by vnode; None when it is retired. `why` gives the source of the
    marks, `begun` counts the batches that it finishes first. With `is_undecided` it waits for a person's decision."""

    name: str
    table: str
    destination: str
    marks: Mapping[int, int] | None
    why: str
    begun: int = 0
    is_undecided: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "marks": None if self.marks is None else dict(self.marks)}


@dataclass(frozen=True)
class _Place:
    """Where a sink continues; `marks` are None when it does not."""

    marks: Mapping[int, int] | None
    why: str
    begun: tuple[Intent, ...] = ()
    is_undecided: bool = False


def adopt_state(context: Context, *, skip: Collection[str] = ()) -> list[RecoveredSink]:
    """Make the open state the lake's own again. Sinks in `skip` are retired without asking their destinations."""
    epochs = [0, *(context.table(name).log.refresh().epoch for name in context.tables())]
    if _is_own_state(context, max(epochs)):
        raise Invalid(
            f"the state {context.state.database.shown} and the lake belong together: there is nothing to adopt",
            hint="To start one sink again: strandline mark reset SINK",
        )
    record = read_record(context.storage)
    known = {each.name: each for each in context.state.registry.all()}
    known |= {each.name: each for each in (record.consumers if record else ())}
    for name in skip:
        if name not in known:
            raise NotFound(
                f"there is no sink {name!r} to skip", hint=f"Sinks: {', '.join(sorted(known))}", consumer=name
            )
    decided: list[tuple[ConsumerRecord, Mapping[int, int] | None]] = []
    begun: list[Intent] = []
    found: list[RecoveredSink] = []
    heads = {table.entry.generation: table.head for table in map(context.table, context.tables())}
    for name in sorted(known):
        consumer = known[name].without_undecided()
        is_retired = consumer.is_retired and known[name].undecided is None
        if is_retired:
            decided.append((consumer, None))
            continue
        place = _Place(None, "skipped") if name in skip else _find_place(context, consumer, record)
        if place.is_undecided:
            consumer = replace(consumer, definition={**consumer.definition, UNDECIDED: place.why})
        decided.append((replace(consumer, is_retired=False), place.marks))
        begun += place.begun
        facts = (name, consumer.table, consumer.destination)
        found.append(RecoveredSink(*facts, place.marks, place.why, len(place.begun), place.is_undecided))
    context.state.epoch.adopt(decided, begun=begun, heads=heads, trimmed_epoch=max(epochs))
    return found


def _is_own_state(context: Context, trimmed_epoch: int) -> bool:
    try:
        context.state.epoch.check(trimmed_epoch=trimmed_epoch)
    except Conflict:
        return False
    return True


def _find_place(context: Context, consumer: ConsumerRecord, record: EpochRecord | None) -> _Place:
    """Where a sink continues, by its destination and its open intents in the lake's record."""
    is_in_history = record is not None and consumer.generation in record.backfills
    try:
        table = table_of(context, None, consumer)
    except NotFound:
        return _Place(None, "its table was dropped")
    if consumer.kind not in KINDS:
        return _Place(None, IN_HISTORY if is_in_history else _NO_POSITION, is_undecided=True)
    try:
        declared = context.declared.get(consumer.name)
        sink = SinkDef.from_dict(consumer.name, consumer.table, consumer.definition, declared)
        mine = [each for each in (record.intents if record else ()) if each.generation == consumer.generation]
        with closing(sink.to.open(context.producer(consumer))) as delivery:
            if is_in_history and isinstance(delivery, ResumableDelivery):
                # Places inside the history look like those inside a batch, and between two.
                return _Place(None, IN_HISTORY, is_undecided=True)
            return _ask_destination(delivery, table, mine)
    except Conflict as error:
        return _Place(None, IN_HISTORY if is_in_history else error.message, is_undecided=True)
    except StrandlineError as error:
        raise Unavailable(
            f"sink {consumer.name!r} cannot be asked how far it has come: {error.message}",
            hint=f"Nothing was changed. Try again, or retire it: --skip {consumer.name}",
            consumer=consumer.name,
        ) from error


def _ask_destination(delivery: Delivery, table: TableStore, begun: Sequence[Intent]) -> _Place:
    vnodes, head = table.definition.vnodes, table.head
    held = delivery.position(vnodes)
    if held is None:
        return _Place(None, _NO_POSITION, is_undecided=True)
    inside = delivery.partial_positions(vnodes) if isinstance(delivery, ResumableDelivery) else {}
    beyond = max([*held.values(), *(seq for seq, _ in inside.values())], default=0)
    if beyond > head:
        why = f"its destination has changes up to seq {beyond}, and the lake is at {head}: it lost the rest"
        return _Place(None, why, is_undecided=True)
    marks = {vnode: held.get(vnode, 0) for vnode in range(vnodes)}
    if not isinstance(delivery, ResumableDelivery) or not inside:
        return _Place(marks, "by its destination" if any(marks.values()) else "its destination has none of its changes")
    under_way: dict[str, Intent] = {}
    for vnode, (seq, index) in sorted(inside.items()):
        intent = next((each for each in begun if _covers(each, vnode, seq)), None)
        if intent is None or any(marks[each] < intent.after for each in intent.vnodes):
            why = f"its destination has vnode {vnode} up to index {index} of seq {seq}, inside a batch that the lake"
            return _Place(None, f"{why} does not know", is_undecided=True)
        under_way[intent.id] = intent
    reopened = tuple(
        replace(each, cuts=delivery.remaining_cuts(each.vnodes, each.after, each.upto)) for each in under_way.values()
    )
    marks |= {vnode: each.after for each in reopened for vnode in each.vnodes}
    return _Place(marks, "by its destination, which has a part of the last batch", reopened)


def _covers(intent: Intent, vnode: int, seq: int) -> bool:
    """Whether the batch can have left a position inside this seq. A first load has one seq for all its rows."""
    is_load = intent.after == 0 and intent.definition.get("start", BACKFILL) == BACKFILL
    return vnode in intent.vnodes and (seq == intent.upto if is_load else intent.after < seq <= intent.upto)
