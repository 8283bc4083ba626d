"""A consumer as it is declared here and as the state has it: put together once, and handed on.

Which table it follows, whether it is still the same one, and what registering it will find or make.
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
from strandline.state.consumers import ConsumerRecord, Registration, preview
from strandline.state.marks import ConsumerState
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class Resolved:
    """A consumer, the table that it follows, and what the state has of it (`known`) and will have (`registered`)."""

    consumer: LogConsumer
    table: TableStore
    known: ConsumerState
    registered: Registration
    facts: Mapping[str, Any] | None
    """What it is registered with; None when it is not declared here and stays as it is."""

    @property
    def marks(self) -> ConsumerState:
        """Where it goes on: nowhere yet when it begins a new life."""
        return ConsumerState(self.registered.consumer) if self.registered.is_new else self.known


def resolve(context: Context, name: str, known: ConsumerState) -> Resolved:
    """Put a consumer together; `NotFound` when its table was dropped."""
    declared = declared_consumer(context, name, known.consumer)
    table = table_of(context, None if declared is None else declared.table, known.consumer)
    if declared is None:
        assert known.consumer is not None
        registered = Registration(known.consumer, False, "")
        return Resolved(_on_record(known.consumer, table), table, known, registered, None)
    facts = facts_of(declared, table, known.consumer)
    registered = preview(name, **facts, found=known.consumer, under_way=known.intents)
    consumer = copy(declared)
    consumer.start = registered.consumer.definition["start"]
    return Resolved(consumer, table, known, registered, facts)


def declared_consumer(context: Context, name: str, record: ConsumerRecord | None) -> LogConsumer | None:
    """A consumer as it is declared here. A sink that only the state knows stays as it is, unless its table was dropped
    and there is another one of that name: then it begins anew there, as a declared one would."""
    if name in context.consumers:
        return context.consumers[name]
    sink = declared_sink(context, name, record)
    return None if sink is None else SinkConsumer(sink)


def declared_sink(context: Context, name: str, record: ConsumerRecord | None) -> SinkDef | None:
    """A sink as it is declared here; see `declared_consumer`."""
    if name in context.declared or record is None or record.kind not in KINDS:
        return context.declared.get(name)
    tables = context.catalog.refresh().tables
    is_there = any(entry.generation == record.table_generation for entry in tables.values())
    if is_there or record.table not in tables:
        return None
    return SinkDef.from_dict(name, record.table, {**record.definition, "start": BACKFILL})


def table_of(context: Context, declared: str | None, record: ConsumerRecord | None) -> TableStore:
    """The table that a consumer follows: the one of the declared name, else the life that the state knows."""
    if declared is not None:
        return context.table(declared)
    assert record is not None
    for entry in context.catalog.refresh().tables.values():
        if entry.generation == record.table_generation:
            return context.table(entry.name)
    what = "sink" if record.kind in KINDS else record.kind
    raise NotFound(
        f"the table {record.table!r} of {what} {record.name!r} was dropped",
        hint=f"If nothing of it is to be sent any more: strandline mark retire {record.name}",
        consumer=record.name,
        table=record.table,
    )


def facts_of(declared: LogConsumer, table: TableStore, record: ConsumerRecord | None) -> dict[str, Any]:
    """What a consumer is registered with. Where it began is a fact of its life, whatever is declared later."""
    definition = declared.to_dict()
    was = None if record is None else (record.kind, record.destination, record.table_generation)
    if record is not None and was == (declared.kind, declared.destination, table.entry.generation):
        definition["start"] = record.definition["start"]
    elif declared.start == HEAD:
        # What comes next is meant as seen from here.
        definition["start"] = table.head
    return {
        "kind": declared.kind,
        "table": table.name,
        "table_generation": table.entry.generation,
        "destination": declared.destination,
        "definition": definition,
    }


def _on_record(record: ConsumerRecord, table: TableStore) -> LogConsumer:
    if record.kind in KINDS:
        return SinkConsumer(SinkDef.from_dict(record.name, table.name, record.definition))
    return _DeclaredElsewhere(record, table)


class _DeclaredElsewhere(LogConsumer):
    """A consumer that another program declares: its marks are known here, its effect is not. It is never due."""

    def __init__(self, record: ConsumerRecord, table: TableStore) -> None:
        super().__init__(record.name, table.name, start=record.definition["start"])
        self._record = record

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self._record.kind

    @property
    def destination(self) -> str:
        return self._record.destination

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        return ()

    def run(self, work: Work) -> Receipt:
        raise Internal(f"{self.title} is not declared in this program", consumer=self.name)
