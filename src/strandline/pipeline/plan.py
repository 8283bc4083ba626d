"""What a tick will do, as data: for every sink the ranges it will deliver, how much that is, and by which engine.

A plan is made from commit files and the state alone; no data file is read. A dry run prints it, `tick` carries it out;
after a crash it is what was begun, and what comes after that is planned when it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strandline.consumers import compaction_plan, retention
from strandline.consumers.context import Context
from strandline.consumers.work import Work, works_of
from strandline.errors import Conflict, Internal, NotFound, StrandlineError
from strandline.pipeline.resolve import declared_sink, registration, standings, table_of
from strandline.sinks.definition import BACKFILL, Start
from strandline.state.consumers import Consumer
from strandline.state.marks import ConsumerState
from strandline.tables.broken import BrokenTable, guarded


@dataclass(frozen=True)
class SinkPlan:
    """What a tick will do for one sink. `rows` and `bytes` are upper bounds where only some vnodes are due; `why` says
    what is not as it was; `start` is where it begins, or began; `lost` are columns that its condition names and
    the table has no more: nothing leaves; `epoch` is what the table's log knows of the state; with `error` nothing will
    be done."""

    name: str
    table: str
    kind: str
    destination: str
    works: tuple[Work, ...] = ()
    is_new: bool = False
    is_retired: bool = False
    why: str = ""
    start: Start = BACKFILL
    lost: tuple[str, ...] = ()
    epoch: int = 0
    error: StrandlineError | None = None

    @property
    def rows(self) -> int:
        return sum(work.extent.rows for work in self.works)

    @property
    def bytes(self) -> int:
        return sum(work.extent.bytes for work in self.works)

    def to_dict(self) -> dict[str, Any]:
        error = None if self.error is None else self.error.to_dict()
        return {
            "name": self.name,
            "table": self.table,
            "kind": self.kind,
            "destination": self.destination,
            "rows": self.rows,
            "bytes": self.bytes,
            "works": [work.to_dict() for work in self.works],
            "is_new": self.is_new,
            "is_retired": self.is_retired,
            "why": self.why,
            "lost": list(self.lost),
            "error": error,
        }


@dataclass(frozen=True)
class Plan:
    """What a tick will do: sinks first, then tables to fold and tables with rows to expire; nothing for broken ones."""

    sinks: tuple[SinkPlan, ...]
    compact: tuple[str, ...] = ()
    expire: tuple[str, ...] = ()
    broken: tuple[BrokenTable, ...] = ()

    @property
    def is_idle(self) -> bool:
        is_cared_for = not self.compact and not self.expire and not self.broken
        return is_cared_for and not any(sink.works or sink.error for sink in self.sinks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sinks": [sink.to_dict() for sink in self.sinks],
            "compact": list(self.compact),
            "expire": list(self.expire),
            "broken": [each.to_dict() for each in self.broken],
        }


def plan_of(context: Context) -> Plan:
    """What a tick of the lake would do now."""
    return Plan(tuple(sink_plans(context)), *cares(context))


def sink_plans(context: Context, names: Sequence[str] | None = None) -> list[SinkPlan]:
    """What a tick would do for these sinks, each once, or for all."""
    known = standings(context)
    for name in names or ():
        if name not in known:
            raise NotFound(f"there is no sink {name!r}", hint=f"Sinks: {', '.join(known) or 'none'}", consumer=name)
    return [sink_plan(context, name, known[name]) for name in (known if names is None else dict.fromkeys(names))]


def sink_plan(context: Context, name: str, found: ConsumerState) -> SinkPlan:
    """What a tick would do for one sink; `found` is its record in the state."""
    declared, consumer = declared_sink(context, name, found.consumer), found.consumer
    known = declared or consumer
    assert known is not None
    kind = declared.to.kind if declared else consumer.kind if consumer else ""
    destination = declared.to.destination if declared else consumer.destination if consumer else ""
    plan = SinkPlan(name, known.table, kind, destination)
    if consumer is not None and consumer.undecided is not None:
        return replace(plan, error=_waits(consumer))
    if consumer is not None and consumer.is_retired:
        return replace(plan, is_retired=True)
    try:
        table = table_of(context, declared, consumer)
        registered, sink = registration(table, declared, found)
        epoch = table.log.refresh().epoch
        plan = replace(
            plan, table=table.name, is_new=registered.is_new, why=registered.why, start=sink.start, epoch=epoch
        )
        shape = sink.shape(table.definition, is_new=registered.is_new, with_salt=False)
        plan = replace(plan, lost=shape.lost)
        standing = ConsumerState(registered.consumer) if registered.is_new else found
        return replace(plan, works=works_of(sink, standing, table.merge()))
    except StrandlineError as error:
        return replace(plan, error=error)
    except Exception as error:
        # Damage has no end of forms; whichever it is, the other sinks go on.
        return replace(plan, error=Internal(f"sink {name!r} cannot be planned: {type(error).__name__}: {error}"))


def _waits(consumer: Consumer) -> Conflict:
    name = consumer.name
    return Conflict(
        f"sink {name!r} waits for you to say where it goes on: its marks were lost, and {consumer.undecided}",
        hint=f"Nothing is sent. To send the table again: strandline mark reset {name} (only changes from a seq on:"
        f" --to SEQ, --head). To give it up: strandline mark retire {name}",
        consumer=name,
    )


def cares(context: Context) -> tuple[tuple[str, ...], tuple[str, ...], tuple[BrokenTable, ...]]:
    """The tables with something to fold, those with rows to expire, and those of which that cannot be said."""

    def due(name: str) -> tuple[bool, bool]:
        table = context.table(name)
        return bool(compaction_plan.plan(table).due), retention.due(table) is not None

    found = {name: guarded(name, partial(due, name)) for name in context.tables()}
    broken = tuple(each for each in found.values() if isinstance(each, BrokenTable))
    known = {name: each for name, each in found.items() if not isinstance(each, BrokenTable)}
    return tuple(n for n, each in known.items() if each[0]), tuple(n for n, each in known.items() if each[1]), broken
