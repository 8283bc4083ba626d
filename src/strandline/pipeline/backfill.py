"""The history that a consumer delivers in rounds (see `consumers/rounds`): how far it is, and how a person slows it
down, pauses it, or starts it again.

A person changes rates in the state alone. A runner, in this or another process, reads them before each batch.

After a crash: a rate or a pause holds, or it left nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from strandline.consumers.context import Context
from strandline.consumers.plan import ConsumerPlan, plan_marked
from strandline.consumers.registration import table_of
from strandline.consumers.work import ROUND, SNAPSHOT
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError
from strandline.pipeline import commands
from strandline.pipeline.commands import ResetReport
from strandline.pipeline.lag import Lag, lag_of_plan
from strandline.sinks.definition import BACKFILL
from strandline.state.key_positions import Position
from strandline.state.marks import ConsumerState
from strandline.state.rates import Rate, Rates
from strandline.tables.count import bound_rows
from strandline.tables.store import TableStore

Condition = Literal["none", "waiting", "running", "paused", "done"]
# Before the last round is done, the share is an estimate.
_MOST_PERCENT = 99.9


@dataclass(frozen=True)
class BackfillStatus:
    """How far a consumer's history is. It is `none` when the table is small enough for one batch, or is not sent;
    `waiting` for a tick; `running` while a tick of any process works on it; `paused` by a person; or `done`.

    `rounds` have delivered `rows`; about `rows_left` of the table are left, None when that is not known. `percent`
    never falls. `lag` is how far the delivered rows are behind the log. `pace` is how many rows a second were sent of
    late, and `eta_s` how long the rest takes at this pace, if it is known. `seq` is the lowest mark. `owner` works on
    the consumer. `safe_s` is how long the past that the next round needs can be read: 0 when it is gone, None without
    an end, because the consumer's marks keep it."""

    consumer: str
    table: str
    condition: Condition
    vnodes: int
    vnodes_done: int
    rounds: int
    rows: int
    rows_left: int | None
    percent: float
    lag: Lag
    pace: float
    eta_s: float | None
    rate: Rate
    seq: int
    owner: str | None
    safe_s: float | None

    @property
    def is_open(self) -> bool:
        """Whether there is history to deliver."""
        return self.condition not in ("none", "done")

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "lag": self.lag.to_dict(), "rate": asdict(self.rate)}


class Backfill:
    """The history of one consumer, as `lake.backfill(name)` gives it. A change by any process holds from the next batch
    on."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name

    def __repr__(self) -> str:
        return f"Backfill({self._name!r})"

    def status(self) -> BackfillStatus:
        """How far the history is."""
        known = self._find()
        context, record = self._context, known.consumer
        plan = plan_marked(context, self._name, known)
        lease = None if record is None else context.state.leases.find(record.lease)
        owner = None if lease is None else lease.owner
        is_retired = record is not None and record.is_retired
        lag = Lag(0, 0, None) if is_retired else lag_of_plan(context, plan)
        found = backfill_of(context, plan, lag, owner)
        return found or _status_without_history(plan, lag, owner)

    def pause(self) -> BackfillStatus:
        """Let the history wait. Changes of rows that were delivered are still sent."""
        return self._change(lambda rates: rates.set_stopped(self._name, True))

    def resume(self) -> BackfillStatus:
        """Let the history go on, at the rate that was set before."""
        return self._change(lambda rates: rates.set_stopped(self._name, False))

    def rate(self, rows: float | None = None, bytes: float | None = None) -> BackfillStatus:
        """Set the most rows and bytes that the consumer sends in a second, None for no limit. A 0 pauses the history;
        another rate lets it go on."""
        return self._change(lambda rates: rates.set_rate(self._name, rows, bytes))

    def restart(self, *, dry_run: bool = False) -> ResetReport:
        """Deliver the whole table again, as a new generation."""
        try:
            return commands.reset(self._context, self._name, BACKFILL, dry_run=dry_run)
        except Conflict as error:
            if "owner" not in error.fields:
                raise
            hint = f"Pause it: strandline backfill pause {self._name}; then restart it when its round is done."
            raise Conflict(error.message, hint=hint, **error.fields) from error

    def _find(self) -> ConsumerState:
        known = self._context.consumer_states()
        if self._name not in known:
            hint = f"There are: {', '.join(known) or 'no sinks'}"
            raise NotFound(f"there is no sink or other consumer {self._name!r}", hint=hint, consumer=self._name)
        return known[self._name]

    def _change(self, act: Callable[[Rates], Rate]) -> BackfillStatus:
        known, state = self._find(), self._context.state
        if known.consumer is not None and known.consumer.is_retired:
            hint = f"To start it again: strandline mark reset {self._name}"
            raise Invalid(f"{known.consumer.title} is retired: it sends nothing", hint=hint, consumer=self._name)
        state.epoch.check()
        if act(state.rates) != known.rate:
            # A copy of the state from before the change is then recognised as outdated, and sends nothing.
            state.epoch.renew()
        return self.status()


def backfill_of(context: Context, plan: ConsumerPlan, lag: Lag, owner: str | None) -> BackfillStatus | None:
    """The history of a consumer by its plan; None when it has none, or is retired."""
    known = plan.known
    if plan.is_retired or (known.consumer is not None and known.consumer.is_retired):
        return None
    # The positions and marks of an earlier life say nothing of the next one.
    marks, positions = ({}, {}) if plan.is_new else (known.marks, known.positions)
    if not positions and not _has_history(context, plan):
        return None
    table = _find_table(context, plan)
    vnodes = max([*marks, *positions, 0]) + 1 if table is None else table.definition.vnodes
    whole = Position(share=1.0, is_done=True)
    places = [positions.get(vnode, whole if marks.get(vnode) else Position()) for vnode in range(vnodes)]
    share = sum(place.share for place in places) / vnodes
    is_done = all(place.is_done for place in places)
    last = max(places, key=lambda place: place.round)
    rows_left = 0 if is_done else _count_left(table, share)
    pace = min(last.pace, known.rate.rows_per_s or math.inf)
    return BackfillStatus(
        consumer=plan.name,
        table=plan.table,
        condition=_condition_of(is_done, known, owner),
        vnodes=vnodes,
        vnodes_done=sum(place.is_done for place in places),
        rounds=last.round,
        rows=sum(place.rows for place in places),
        rows_left=rows_left,
        percent=100.0 if is_done else min(_MOST_PERCENT, math.floor(share * 1000) / 10),
        lag=lag,
        pace=round(pace, 1),
        eta_s=0.0 if is_done else None if rows_left is None or not pace else round(rows_left / pace, 1),
        rate=known.rate,
        seq=min((marks.get(vnode, 0) for vnode in range(vnodes)), default=0),
        owner=owner,
        safe_s=0.0 if table is not None and not plan.is_new and _is_past_gone(table, known) else None,
    )


def _status_without_history(plan: ConsumerPlan, lag: Lag, owner: str | None) -> BackfillStatus:
    marks = plan.known.marks
    seq, vnodes = min(marks.values(), default=0), len(marks)
    return BackfillStatus(
        plan.name, plan.table, "none", vnodes, 0, 0, 0, 0, 0.0, lag, 0.0, None, plan.known.rate, seq, owner, None
    )


def _condition_of(is_done: bool, known: ConsumerState, owner: str | None) -> Condition:
    if is_done:
        return "done"
    if known.rate.is_stopped or known.is_paused:
        return "paused"
    return "waiting" if owner is None else "running"


def _has_history(context: Context, plan: ConsumerPlan) -> bool:
    """Whether a consumer without positions has a history to deliver; a pause does not hide it."""
    known = plan.known
    is_stopped = known.rate.is_stopped
    if known.is_paused or is_stopped:
        free = replace(known, is_paused=False, rate=replace(known.rate, is_stopped=False))
        plan = plan_marked(context, plan.name, free)
    # While its history is stopped, a consumer waits with a small table too.
    return any(work.source == ROUND or (is_stopped and work.source == SNAPSHOT) for work in plan.works)


def _find_table(context: Context, plan: ConsumerPlan) -> TableStore | None:
    """The table of a consumer; None when it was dropped or is broken."""
    try:
        if plan.resolved is not None:
            return plan.resolved.table
        record = plan.known.consumer
        return table_of(context, None if record else plan.table, record)
    except StrandlineError:
        return None


def _count_left(table: TableStore | None, share: float) -> int | None:
    """About how many rows of the table are left, when this share of them was delivered."""
    try:
        return None if table is None else round(bound_rows(table.merge())[0] * (1 - share))
    except StrandlineError:
        return None


def _is_past_gone(table: TableStore, known: ConsumerState) -> bool:
    """Whether the past is gone that the next round needs: the log after the marks, or the table as it was when an
    unfinished round began. A vacuum keeps both as long as the marks are on record."""
    undone = [vnode for vnode, at in known.positions.items() if not at.is_done]
    seqs = [seq for vnode in undone if (seq := known.marks.get(vnode, 0))]
    begun = [intent.upto for intent in known.intents if known.positions.get(intent.vnodes[0], Position()).is_begun]
    try:
        trimmed_to, oldest = table.log.refresh().trimmed_to, table.oldest if begun else 0
    except StrandlineError:
        return False
    return min(seqs, default=trimmed_to) < trimmed_to or min(begun, default=oldest) < oldest
