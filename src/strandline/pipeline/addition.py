"""Declare sinks and other consumers in a program; add or change a sink by command: the preview and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.consumers.compaction import Compaction
from strandline.consumers.context import Context
from strandline.consumers.fixpoint import Fixpoint
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.plan import ConsumerPlan
from strandline.consumers.registration import declared_sink, facts_of, settle_sink
from strandline.consumers.retention import Retention
from strandline.consumers.sink import SinkConsumer
from strandline.consumers.work import NOTHING
from strandline.errors import Invalid
from strandline.pipeline import commands
from strandline.pipeline.plan import marked_plans
from strandline.sinks.contract import MIRROR_NOTE
from strandline.sinks.definition import KINDS, SinkDef
from strandline.state.consumers import ConsumerRecord, Registration, preview


@dataclass(frozen=True)
class SinkChange:
    """How adding a sink changes its record: `before`, and `after` its registration. `shared_with` are other sinks with
    the same destination."""

    before: ConsumerRecord | None
    after: Registration
    shared_with: list[str]

    @property
    def is_change(self) -> bool:
        """Whether an active sink begins a new life, or sends something else."""
        return self.before is not None and not self.before.is_retired and bool(self.after.is_new or self.after.why)


@dataclass(frozen=True)
class AddedSink:
    """An added sink, and the plan of its next tick."""

    change: SinkChange
    plan: ConsumerPlan

    @property
    def has_rows(self) -> bool:
        """Whether the next tick sends rows."""
        return any(work.source != NOTHING for work in self.plan.works)

    def to_dict(self) -> dict[str, Any]:
        after = self.change.after
        facts = {"is_new": after.is_new, "why": after.why, "rows": self.plan.rows}
        return {**after.consumer.to_dict(), **facts, "shared_with": self.change.shared_with}


def declare_sink(context: Context, sink: SinkDef) -> SinkDef:
    """Declare a sink in this process."""
    context.check_sink(sink)
    context.check_state_place()
    _check_free(sink.name, context.consumers)
    context.declared[sink.name] = sink
    return sink


def declare_consumer(context: Context, consumer: LogConsumer) -> LogConsumer:
    """Declare a consumer of a user's own in this process."""
    table = context.table(consumer.table)
    if consumer.kind in (*KINDS, Compaction.kind, Retention.kind):
        raise Invalid(f"the kind {consumer.kind!r} is Strandline's own", hint="Choose another.", kind=consumer.kind)
    consumer.missing_columns(table, is_new=True)
    context.check_state_place()
    _check_free(consumer.name, context.declared)
    context.consumers[consumer.name] = consumer
    return consumer


def declare_fixpoint(context: Context, fixpoint: Fixpoint) -> Fixpoint:
    """Declare a fixed point in this process."""
    for name in fixpoint.inputs:
        if name not in context.fixpoints:
            context.table(name)
    context.fixpoints[fixpoint.result] = fixpoint
    return fixpoint


def _check_free(name: str, taken: Mapping[str, object]) -> None:
    if name in taken:
        raise Invalid(f"{name!r} is declared already, as another kind of consumer", consumer=name)


def plan_sink(context: Context, sink: SinkDef) -> SinkChange:
    """What adding a sink would change."""
    table = context.table(sink.table)
    if isinstance(sink.start, int) and sink.start > table.head:
        raise Invalid(
            f"sink {sink.name!r} is to start after seq {sink.start}, but table {sink.table!r} is at {table.head}",
            hint="Start it at head, or at a seq that the table has.",
            consumer=sink.name,
            seq=sink.start,
        )
    found = context.consumer_state(sink.name)
    sink = settle_sink(context, sink, found.consumer)
    facts = facts_of(SinkConsumer(sink), table, found.consumer)
    after = preview(sink.name, **facts, found=found.consumer, under_way=found.intents, revive=True)
    return SinkChange(found.consumer, after, _sharing_sinks(context, sink))


def _sharing_sinks(context: Context, sink: SinkDef) -> list[str]:
    """The other active sinks that go to the same place. A sink whose place is out of order counts too."""
    there = {}
    for name, known in context.consumer_states().items():
        declared, record = declared_sink(context, name, known.consumer), known.consumer
        if name != sink.name and (record is None or not record.is_retired):
            there[name] = declared.to.destination if declared else record.destination if record else ""
    place = _place_of(sink.to.destination)
    return [name for name, destination in there.items() if _place_of(destination) == place]


def _place_of(destination: str) -> str:
    """The folder or address, whatever is done there: a mirror and files in one folder are in each other's way too."""
    return destination.removesuffix(MIRROR_NOTE)


def add_sink(context: Context, sink: SinkDef) -> AddedSink:
    """Register a sink: every tick of the lake serves it, without a program that declares it."""
    planned = plan_sink(context, sink)
    done = commands.add(context, sink)
    [plan] = marked_plans(context, [sink.name])
    return AddedSink(SinkChange(planned.before, done, planned.shared_with), plan)
