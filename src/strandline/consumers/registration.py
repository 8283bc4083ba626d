"""Resolve a consumer once per tick: its declaration, its record in the state, and its table.

The result says whether it continues its life, and what registering it will find or make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from strandline.consumers.context import Context
from strandline.consumers.contract import Receipt
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.sink import SinkConsumer
from strandline.consumers.work import Work
from strandline.errors import Internal, NotFound
from strandline.sinks.definition import BACKFILL, HEAD, KINDS, SinkDef
from strandline.state.consumers import SHAPE, ConsumerRecord, Registration, preview
from strandline.state.marks import ConsumerState
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class ResolvedConsumer:
    """A consumer, its table, and its record in the state now (`known`) and after `registration`."""

    consumer: LogConsumer
    table: TableStore
    known: ConsumerState
    registration: Registration
    facts: Mapping[str, Any] | None
    """The arguments of its registration; None when it is not declared here and stays unchanged."""

    @property
    def marks(self) -> ConsumerState:
        """The marks to continue from; none for a new life. A rate outlasts lives."""
        if not self.registration.is_new:
            return self.known
        return ConsumerState(self.registration.consumer, rate=self.known.rate)


def resolve(context: Context, name: str, known: ConsumerState) -> ResolvedConsumer:
    """Resolve a consumer; `NotFound` when its table was dropped."""
    declared = declared_consumer(context, name, known.consumer)
    table = table_of(context, None if declared is None else declared.table, known.consumer)
    if declared is None:
        assert known.consumer is not None
        declared = _restore_consumer(known.consumer, table)
        if declared.shape(table) == known.consumer.definition.get(SHAPE):
            return ResolvedConsumer(declared, table, known, Registration(known.consumer, False, ""), None)
    facts = facts_of(declared, table, known.consumer)
    registered = preview(name, **facts, found=known.consumer, under_way=known.intents)
    consumer = copy(declared)
    consumer.start = registered.consumer.definition["start"]
    return ResolvedConsumer(consumer, table, known, registered, facts)


def declared_consumer(context: Context, name: str, record: ConsumerRecord | None) -> LogConsumer | None:
    """A consumer as declared here; None for a sink that only the state knows. If the table of such a sink was dropped
    and another one has its name, the sink begins again there, like a declared one."""
    if name in context.consumers:
        return context.consumers[name]
    sink = declared_sink(context, name, record)
    return None if sink is None else SinkConsumer(sink)


def declared_sink(context: Context, name: str, record: ConsumerRecord | None) -> SinkDef | None:
    """A sink as declared here, with its mode; see `declared_consumer`."""
    if name in context.declared:
        return settle_sink(context, context.declared[name], record)
    if record is None or record.kind not in KINDS:
        return None
    tables = context.catalog.refresh().tables
    is_there = any(entry.generation == record.table_generation for entry in tables.values())
    if is_there or record.table not in tables:
        return None
    return SinkDef.from_dict(name, record.table, {**record.definition, "start": BACKFILL})


def settle_sink(context: Context, sink: SinkDef, record: ConsumerRecord | None) -> SinkDef:
    """A declared sink with its mode; as it is when its table does not exist."""
    try:
        definition = context.table(sink.table).definition
    except NotFound:
        return sink
    return sink.settle(definition, *((None, None) if record is None else (record.kind, record.definition)))


def table_of(context: Context, declared: str | None, record: ConsumerRecord | None) -> TableStore:
    """A consumer's table: the one of the declared name, else the table generation on record."""
    if declared is not None:
        return context.table(declared)
    assert record is not None
    for entry in context.catalog.refresh().tables.values():
        if entry.generation == record.table_generation:
            return context.table(entry.name)
    what = "sink" if record.kind in KINDS else record.kind
    dropped = context.catalog.generations().dropped.get(record.table_generation)
    name = dropped.entry.name if dropped else record.table
    raise NotFound(
        f"the table {name!r} of {what} {record.name!r} was dropped",
        hint=f"Bring it back: strandline table undrop {name}. Or give the rest up: strandline mark retire"
        f" {record.name}",
        consumer=record.name,
        table=name,
    )


def facts_of(declared: LogConsumer, table: TableStore, record: ConsumerRecord | None) -> dict[str, Any]:
    """The arguments of a consumer's registration. Within a life its start never changes, whatever is declared."""
    definition = {"start": declared.start, **declared.to_dict()}
    if (shape := declared.shape(table)) is not None:
        definition[SHAPE] = shape
    was = None if record is None else (record.kind, record.destination, record.table_generation)
    if record is not None and was == (declared.kind, declared.destination, table.entry.generation):
        definition["start"] = record.definition["start"]
    elif declared.start == HEAD:
        # "head" means the present head.
        definition["start"] = table.head
    return {
        "kind": declared.kind,
        "table": table.name,
        "table_generation": table.entry.generation,
        "destination": declared.destination,
        "definition": definition,
    }


def _restore_consumer(record: ConsumerRecord, table: TableStore) -> LogConsumer:
    if record.kind in KINDS:
        return SinkConsumer(SinkDef.from_dict(record.name, table.name, record.definition))
    return _DeclaredElsewhere(record, table)


class _DeclaredElsewhere(LogConsumer):
    """A consumer that another program declares: its marks are known here, its effect is not. It never has work."""

    def __init__(self, record: ConsumerRecord, table: TableStore) -> None:
        super().__init__(record.name, table.name, start=record.definition["start"])
        self.kind = record.kind
        self._record = record

    @property
    def destination(self) -> str:
        return self._record.destination

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        return ()

    def run(self, work: Work) -> Receipt:
        raise Internal(f"{self.title} is not declared in this program", consumer=self.name)
