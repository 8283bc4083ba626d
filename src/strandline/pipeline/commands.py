"""Commands for sinks: add one, start it again, retire it.

A sink that is started again gets a new life. A destination that keeps positions would ignore rows behind the old life's
position, and refuse rows beyond it as a gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from strandline.consumers.context import Context
from strandline.consumers.feed import files_of, size_of
from strandline.consumers.registration import declared_consumer, facts_of, settle_sink, table_of
from strandline.consumers.sink import SinkConsumer
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError
from strandline.pipeline.lag import Lag, lag_of
from strandline.sinks.contract import ResumableDelivery
from strandline.sinks.definition import BACKFILL, HEAD, KINDS, SinkDef, Start, check_start
from strandline.state.consumers import ConsumerRecord, Registration
from strandline.state.leases import this_worker
from strandline.state.marks import ConsumerState
from strandline.tables.merge import TableAt
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class ResetReport:
    """A sink that starts again. At most `rows` will be sent; the destination may have some of them. `was` are its old
    marks, `life` is its new life."""

    name: str
    table: str
    destination: str
    start: Start
    rows: int
    was: Mapping[int, int]
    life: int


@dataclass(frozen=True)
class RetireReport:
    """A retired sink, which no longer holds the log; the changes in `lag` are never sent."""

    name: str
    table: str
    destination: str
    lag: Lag


def add(context: Context, sink: SinkDef) -> Registration:
    """Register a sink: every tick of the lake serves it, without a program that declares it."""
    for setting in sink.lost_secrets():
        raise Invalid(
            f"sink {sink.name!r} has a secret in {setting} that would be lost: secrets are not written down",
            hint="Keep it elsewhere, and give its place instead: env:NAME or file:PATH.",
            consumer=sink.name,
            setting=setting,
        )
    known = context.consumer_state(sink.name)
    table = context.table(sink.table)
    sink = settle_sink(context, sink, known.consumer)
    context.check_sink(sink)
    sink.outgoing(table.definition, is_new=True, with_salt=False)
    context.state.epoch.check()
    facts = facts_of(SinkConsumer(sink), table, known.consumer)
    registered = context.state.registry.register(sink.name, **facts, revive=True)
    context.state.epoch.renew()
    return registered


def reset(context: Context, name: str, start: Start = BACKFILL, *, dry_run: bool = False) -> ResetReport:
    """Start a sink again: with the current table, with the next change, or with the changes after a seq."""
    check_start(start, name)
    found, consumer = find_consumer(context, name)
    declared = declared_consumer(context, name, consumer)
    table = table_of(context, None if declared is None else declared.table, consumer)
    merge = table.merge()
    done = ResetReport(
        name,
        table.name,
        consumer.destination,
        start,
        _count_rows(start, merge),
        found.marks,
        consumer.life + (not dry_run),
    )
    if consumer.kind in KINDS:
        SinkDef.from_dict(name, table.name, {**consumer.definition, "start": start}).check_mirror(table.definition)
    if dry_run:
        return done
    context.state.epoch.check()
    newest = _newest_life(context, table, consumer)
    with context.state.leases.hold(consumer.lease, this_worker(), title=consumer.title):
        context.state.registry.retire(name)
        context.state.registry.register(
            name,
            kind=consumer.kind,
            table=table.name,
            table_generation=table.entry.generation,
            destination=consumer.destination,
            definition={**consumer.without_undecided().definition, "start": merge.log.head if start == HEAD else start},
            revive=True,
            after_ms=newest,
        )
        context.state.epoch.renew()
    return done


def _newest_life(context: Context, table: TableStore, consumer: ConsumerRecord) -> int:
    """The newest life of a sink that its destination knows: the next one must be newer, even if a clock went back. 0
    when it knows none or cannot be asked; then the clock decides."""
    if consumer.kind not in KINDS:
        return 0
    try:
        declared = context.declared.get(consumer.name)
        sink = SinkDef.from_dict(consumer.name, table.name, consumer.definition, declared)
        with closing(sink.to.open(context.producer(consumer))) as delivery:
            return delivery.newest_life() if isinstance(delivery, ResumableDelivery) else 0
    except StrandlineError:
        return 0


def retire(context: Context, name: str, *, dry_run: bool = False) -> RetireReport:
    """Retire a sink: it sends nothing more and no longer holds the log."""
    found, consumer = find_consumer(context, name)
    lag = lag_behind(context, found, consumer)
    if not dry_run:
        context.state.epoch.check()
        with context.state.leases.hold(consumer.lease, this_worker(), title=consumer.title):
            context.state.registry.retire(name)
            context.state.pauses.end(name)
            context.state.epoch.renew()
    return RetireReport(name, consumer.table, consumer.destination, lag)


def lag_behind(context: Context, found: ConsumerState, consumer: ConsumerRecord) -> Lag:
    """How far a consumer on record is behind; nothing when its table was dropped."""
    try:
        table = table_of(context, None, consumer)
        return lag_of(found.marks, consumer.definition["start"], table.merge(), time.time())
    except NotFound:
        return Lag(0, 0, None)


def find_consumer(context: Context, name: str) -> tuple[ConsumerState, ConsumerRecord]:
    """A consumer that has run; `NotFound` or `Conflict` for others."""
    known = context.consumer_states()
    found = known.get(name, ConsumerState())
    if found.consumer is None:
        ran = [each for each, state in known.items() if state.consumer is not None]
        hint = f"These have run: {', '.join(ran) or 'none'}"
        if name in known:
            raise Conflict(f"{name!r} has not run yet: it has no marks", hint=hint, consumer=name)
        raise NotFound(f"there is no sink or other consumer {name!r}", hint=hint, consumer=name)
    return found, found.consumer


def _count_rows(start: Start, merge: TableAt) -> int:
    if start == HEAD:
        return 0
    if start == BACKFILL:
        return sum(file.rows for file in [*merge.base_files(), *(file for _, file in merge.log_files())])
    vnodes = range(merge.definition.vnodes)
    if int(start) > merge.log.head:
        raise Invalid(f"table is at seq {merge.log.head}; there is nothing after {start}", seq=int(start))
    return size_of(files_of(merge.log, int(start), merge.log.head, vnodes, len(vnodes))).rows
