"""Pause a sink, let it go on, remove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.consumers.context import Context
from strandline.errors import Invalid, NotFound
from strandline.pipeline.commands import find_consumer, lag_behind
from strandline.pipeline.lag import Lag
from strandline.state.leases import this_worker
from strandline.state.removal import forget_consumer


@dataclass(frozen=True)
class PauseReport:
    """A sink that was paused or goes on. `is_changed`: it was not so before. With `holds_log` the log is kept for it;
    `is_working`: a runner works on it now, and finishes the batch under way."""

    name: str
    is_paused: bool
    is_changed: bool
    holds_log: bool
    is_working: bool


@dataclass(frozen=True)
class RemoveReport:
    """A removed sink. The changes in `lag` are never sent; its marks, the batches under way (`intents`) and its dead
    letters (`letters`) are forgotten."""

    name: str
    table: str
    destination: str
    lag: Lag
    marks: Mapping[int, int]
    intents: int
    letters: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag.to_dict()}


def pause(context: Context, name: str) -> PauseReport:
    """Pause a sink: no tick serves it until it goes on. The log is kept for it."""
    return _set_pause(context, name, is_paused=True)


def resume(context: Context, name: str) -> PauseReport:
    """Let a paused sink go on, from its marks."""
    return _set_pause(context, name, is_paused=False)


def _set_pause(context: Context, name: str, *, is_paused: bool) -> PauseReport:
    known = context.consumer_states()
    if name not in known:
        hint = f"There are: {', '.join(known) or 'no sinks'}"
        raise NotFound(f"there is no sink or other consumer {name!r}", hint=hint, consumer=name)
    record = known[name].consumer
    if is_paused and record is not None and record.is_retired:
        hint = f"To start it again: strandline mark reset {name}"
        raise Invalid(f"{record.title} is retired: it does nothing already", hint=hint, consumer=name)
    state = context.state
    is_changed = known[name].is_paused != is_paused
    if is_changed:
        state.epoch.check()
        if is_paused:
            state.pauses.add(name)
        else:
            state.pauses.end(name)
        # A copy of the state from before the pause is then recognised as outdated, and sends nothing.
        state.epoch.renew()
    holds_log = record is not None and not record.is_retired
    lease = None if record is None else state.leases.find(record.lease)
    return PauseReport(name, is_paused, is_changed, holds_log, lease is not None)


def remove(context: Context, name: str, *, dry_run: bool = False) -> RemoveReport:
    """End a sink and forget it, with its marks and dead letters. Rows that it has sent stay where they are."""
    if name in context.declared or name in context.consumers:
        raise Invalid(
            f"{name!r} is declared in this program, so the next tick would start it from the beginning",
            hint="Take it out of the program first, or retire it: strandline mark retire " + name,
            consumer=name,
        )
    found, consumer = find_consumer(context, name)
    letters = context.state.letters.counts().get(consumer.generation, 0)
    lag = Lag(0, 0, None) if consumer.is_retired else lag_behind(context, found, consumer)
    report = RemoveReport(name, consumer.table, consumer.destination, lag, found.marks, len(found.intents), letters)
    if not dry_run:
        state = context.state
        state.epoch.check()
        with state.leases.hold(consumer.lease, this_worker(), title=consumer.title) as held:
            forget_consumer(state.database, name, consumer.lease, held.fence)
            state.epoch.renew()
    return report
