"""Find the marks of a lost or old state again, from the destinations that hold them.

The lake's own record says which sinks there were, and each destination that keeps positions says how far it has come.
A sink whose destination cannot tell, or holds more than the lake has, is retired: only a person knows where it may go
on. Nothing is changed unless every destination has answered.

After a crash: everything is adopted, or nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.bond import read_record
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError, Unavailable
from strandline.registry import Consumer
from strandline.sinks.base import Producer
from strandline.sinks.declared import KINDS, SinkDef
from strandline.standing import table_of

if TYPE_CHECKING:
    from strandline.lake import Lake


@dataclass(frozen=True)
class Adopted:
    """A sink and the seqs from which it goes on, by vnode; None when it is retired. `why` says how that is known."""

    name: str
    table: str
    destination: str
    marks: Mapping[int, int] | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "marks": None if self.marks is None else dict(self.marks)}


def adopt_state(lake: Lake, *, skip: Collection[str] = ()) -> list[Adopted]:
    """Make the state that the lake is opened with its own again. Sinks named in `skip` are retired unasked."""
    epochs = [0, *(lake.table(name).log.refresh().epoch for name in lake.tables())]
    if _belongs(lake, max(epochs)):
        raise Invalid(
            f"the state {lake.state.shown} and the lake belong together: there is nothing to adopt",
            hint="To start one sink again: strandline mark reset SINK",
        )
    record = read_record(lake.storage)
    known = {each.name: each for each in lake.ledger.registry.all()}
    known |= {each.name: each for each in (record.consumers if record else ())}
    for name in skip:
        if name not in known:
            raise NotFound(
                f"there is no sink {name!r} to skip", hint=f"Sinks: {', '.join(sorted(known))}", consumer=name
            )
    decided: list[tuple[Consumer, Mapping[int, int] | None]] = []
    found: list[Adopted] = []
    heads = {table.entry.generation: table.head for table in map(lake.table, lake.tables())}
    for name in sorted(known):
        consumer = known[name]
        if consumer.kind not in KINDS or consumer.is_retired:
            decided.append((consumer, None if consumer.is_retired else {}))
            continue
        marks, why = (None, "skipped") if name in skip else _marks(lake, consumer)
        decided.append((consumer, marks))
        found.append(Adopted(name, consumer.table, consumer.destination, marks, why))
    lake.ledger.bond.adopt(decided, heads=heads, trimmed_epoch=max(epochs))
    return found


def _belongs(lake: Lake, trimmed_epoch: int) -> bool:
    try:
        lake.ledger.bond.check(trimmed_epoch=trimmed_epoch)
    except Conflict:
        return False
    return True


def _marks(lake: Lake, consumer: Consumer) -> tuple[Mapping[int, int] | None, str]:
    try:
        table = table_of(lake, None, consumer)
    except NotFound:
        return None, "its table was dropped"
    vnodes, head = table.definition.vnodes, table.head
    producer = Producer(
        lake.catalog.refresh().lake_id, consumer.name, table.name, consumer.table_generation, consumer.generation
    )
    try:
        declared = lake.declared.get(consumer.name)
        sink = SinkDef.from_dict(consumer.name, consumer.table, consumer.definition, declared)
        delivery = sink.to.open(producer)
        try:
            held = delivery.position(vnodes)
        finally:
            delivery.close()
    except Conflict as error:
        return None, error.message
    except StrandlineError as error:
        raise Unavailable(
            f"sink {consumer.name!r} cannot be asked how far it has come: {error.message}",
            hint=f"Nothing was changed. Try again, or retire it: --skip {consumer.name}",
            consumer=consumer.name,
        ) from error
    if held is None:
        return None, "its destination keeps no position"
    if any(seq > head for seq in held.values()):
        beyond = max(held.values())
        return None, f"its destination has changes up to seq {beyond} of a past that the lake lost: it is at {head}"
    marks = {vnode: held.get(vnode, 0) for vnode in range(vnodes)}
    return marks, "its destination has none of its changes" if not any(marks.values()) else "by its destination"
