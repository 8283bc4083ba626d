"""A sink as it is declared here and as the state has it: which table it reads, and whether it is still the same one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.consumers.context import Context
from strandline.errors import NotFound
from strandline.sinks.definition import BACKFILL, HEAD, KINDS, SinkDef
from strandline.state.consumers import Consumer, Registered, preview
from strandline.state.marks import ConsumerState
from strandline.state.state import State
from strandline.tables.store import TableStore


def standings(context: Context) -> dict[str, ConsumerState]:
    """Every sink, by name: those that are declared here and those that the state knows."""
    known = _known(context.state) if context.has_state else {}
    return {name: known.get(name, ConsumerState()) for name in sorted({*context.declared, *known})}


def standing_of(context: Context, name: str) -> ConsumerState:
    """One sink, which the state need not know."""
    return _known(context.state, name).get(name, ConsumerState()) if context.has_state else ConsumerState()


def active_sinks(context: Context) -> dict[str, SinkDef]:
    """The sinks that are not retired, by name, as they are now: as they are declared here, else as the state has them,
    with the name that their table has today."""
    tables = {entry.generation: entry.name for entry in context.catalog.refresh().tables.values()}
    found = {}
    for name, had in standings(context).items():
        consumer = had.consumer
        sink = declared_sink(context, name, consumer)
        if sink is None and consumer is not None:
            table = tables.get(consumer.table_generation, consumer.table)
            sink = SinkDef.from_dict(name, table, consumer.definition)
        if sink is not None and (consumer is None or not consumer.is_retired):
            found[name] = sink
    return found


def sinks_needing(context: Context, table: TableStore, column: str) -> list[str]:
    """The sinks of a table whose conditions need a column: without it nothing leaves."""
    mine = {name: sink for name, sink in active_sinks(context).items() if sink.table == table.name and sink.where}
    leaving = {name: sink.shape(table.definition, with_salt=False) for name, sink in mine.items()}
    return [name for name, each in leaving.items() if each.predicate is not None and column in each.predicate.columns]


def declared_sink(context: Context, name: str, consumer: Consumer | None) -> SinkDef | None:
    """A sink as it is declared here. One that only the state knows stays as it is, unless its table was dropped and
    there is another one of that name: then it begins anew there, as a declared one would."""
    if name in context.declared or consumer is None:
        return context.declared.get(name)
    tables = context.catalog.refresh().tables
    is_there = any(entry.generation == consumer.table_generation for entry in tables.values())
    if is_there or consumer.table not in tables:
        return None
    return SinkDef.from_dict(name, consumer.table, {**consumer.definition, "start": BACKFILL})


def table_of(context: Context, declared: SinkDef | None, consumer: Consumer | None) -> TableStore:
    """The table that a sink reads: by the name that is declared, else the life that the state knows."""
    if declared is not None:
        return context.table(declared.table)
    assert consumer is not None
    for entry in context.catalog.refresh().tables.values():
        if entry.generation == consumer.table_generation:
            return context.table(entry.name)
    raise NotFound(
        f"the table {consumer.table!r} of sink {consumer.name!r} was dropped",
        hint=f"If nothing of it is to be sent any more: strandline mark retire {consumer.name}",
        consumer=consumer.name,
        table=consumer.table,
    )


def registration(table: TableStore, declared: SinkDef | None, found: ConsumerState) -> tuple[Registered, SinkDef]:
    """What registering a sink as it is declared will find, and the sink as it is from then on."""
    consumer = found.consumer
    if declared is None:
        assert consumer is not None
        return Registered(consumer, False, ""), SinkDef.from_dict(consumer.name, table.name, consumer.definition)
    facts = facts_of(declared, table, consumer)
    registered = preview(declared.name, **facts, found=consumer, under_way=found.intents)
    return registered, replace(declared, start=registered.consumer.definition["start"])


def facts_of(declared: SinkDef, table: TableStore, consumer: Consumer | None) -> dict[str, Any]:
    """What a sink is registered with. Where it began is a fact of its life, whatever is declared later."""
    definition = declared.to_dict()
    if consumer is not None and is_same(consumer, declared, table):
        definition["start"] = consumer.definition["start"]
    elif declared.start == HEAD:
        # What comes next is meant as seen from here.
        definition["start"] = table.head
    return {
        "kind": declared.to.kind,
        "table": table.name,
        "table_generation": table.entry.generation,
        "destination": declared.to.destination,
        "definition": definition,
    }


def is_same(consumer: Consumer, declared: SinkDef, table: TableStore) -> bool:
    """Whether the sink on record goes on: to the same place, with the same life of the table."""
    was = consumer.kind, consumer.destination, consumer.table_generation
    return was == (declared.to.kind, declared.to.destination, table.entry.generation)


def _known(state: State, name: str | None = None) -> dict[str, ConsumerState]:
    """The sinks of the state, or the one of this name."""
    found = state.marks.standings(name)
    return {each: had for each, had in found.items() if had.consumer is not None and had.consumer.kind in KINDS}
