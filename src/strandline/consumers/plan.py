"""What a tick will do for one consumer, as data. A plan is made from commit files and the state alone.

After a crash: the plan of a vnode is its unfinished range; newer changes are planned after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from strandline.consumers.context import Context
from strandline.consumers.contract import Consumer
from strandline.consumers.registration import ResolvedConsumer, declared_consumer, resolve
from strandline.consumers.work import Work
from strandline.errors import Conflict, Internal, NotRetained, StrandlineError
from strandline.sinks.definition import BACKFILL, KINDS, Start
from strandline.state.consumers import ConsumerRecord
from strandline.state.key_positions import IN_HISTORY
from strandline.state.marks import ConsumerState
from strandline.tables.collection import Tables


@dataclass(frozen=True)
class ConsumerPlan:
    """What a tick will do for one consumer. `rows` and `bytes` are upper bounds when only some vnodes are due; `why`
    says what has changed; a paused one (`is_paused`) does nothing; `start` is where it begins, or began; `lost` are
    dropped columns that its condition names: nothing is sent; `epoch` is the state's epoch in the table's log; with
    `error` nothing will be done. `known` is the consumer on record, `resolved` the input of the plan."""

    name: str
    table: str
    kind: str
    destination: str
    works: tuple[Work, ...] = ()
    is_new: bool = False
    is_retired: bool = False
    is_paused: bool = False
    why: str = ""
    start: Start = BACKFILL
    lost: tuple[str, ...] = ()
    epoch: int = 0
    error: StrandlineError | None = None
    known: ConsumerState = field(default_factory=ConsumerState, repr=False)
    resolved: ResolvedConsumer | None = field(default=None, repr=False)

    @property
    def is_sink(self) -> bool:
        return self.kind in KINDS

    @property
    def title(self) -> str:
        """The consumer's name in messages."""
        return f"{'sink' if self.is_sink else self.kind} {self.name!r}"

    @property
    def is_due(self) -> bool:
        return not (self.is_retired or self.is_paused) and bool(self.works or self.error or self.is_new or self.why)

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
            "is_paused": self.is_paused,
            "why": self.why,
            "lost": list(self.lost),
            "error": error,
        }


def plan_marked(context: Context, name: str, known: ConsumerState) -> ConsumerPlan:
    """What a tick would do for a consumer with marks in the state; `known` is its record there."""
    record = known.consumer
    plan = _empty_plan(context, name, known)
    if record is not None and record.undecided is not None:
        return replace(plan, error=_undecided_conflict(record))
    if record is not None and record.is_retired:
        return replace(plan, is_retired=True)
    if known.is_paused:
        plan = replace(plan, is_paused=True)
    try:
        found = resolve(context, name, known)
        registered = found.registration
        plan = replace(
            plan,
            table=found.table.name,
            is_new=registered.is_new,
            why=registered.why,
            start=found.consumer.start,
            epoch=found.table.log.refresh().epoch,
            resolved=found,
        )
        if plan.is_paused:
            return plan
        plan = replace(plan, lost=found.consumer.missing_columns(found.table, is_new=registered.is_new))
        return replace(plan, works=tuple(found.consumer.plan(context, found.marks)))
    except StrandlineError as error:
        if isinstance(error, NotRetained):
            is_whole = all(each.is_done for each in known.positions.values())
            verb = "mark reset" if is_whole else "backfill restart"
            error.hint = error.hint or f"Nothing was sent. Start it again: strandline {verb} {name}"
        failure = error
    except Exception as error:
        # Damage may raise anything; the other consumers must continue.
        failure = Internal(f"{plan.title} cannot be planned: {type(error).__name__}: {error}")
    # A paused consumer waits, whatever is wrong.
    return plan if plan.is_paused else replace(plan, error=failure)


def _empty_plan(context: Context, name: str, known: ConsumerState) -> ConsumerPlan:
    """A plan that says only of whom it is, also when its record cannot be read."""
    try:
        who = declared_consumer(context, name, known.consumer) or known.consumer
    except StrandlineError:
        who = known.consumer
    assert who is not None
    start = who.definition["start"] if isinstance(who, ConsumerRecord) else who.start
    return ConsumerPlan(name, who.table, who.kind, who.destination, known=known, start=start)


def plan_own(consumer: Consumer, tables: Tables) -> ConsumerPlan:
    """What a tick would do for a consumer whose effect carries its own mark."""
    plan = ConsumerPlan(consumer.name, consumer.table, consumer.kind, consumer.destination)
    try:
        return replace(plan, works=tuple(consumer.plan(tables, ConsumerState())))
    except StrandlineError as error:
        return replace(plan, error=error)
    except Exception as error:
        return replace(plan, error=Internal(f"{plan.title} cannot be planned: {type(error).__name__}: {error}"))


def _undecided_conflict(record: ConsumerRecord) -> Conflict:
    name = record.name
    again = f"To send the table again: strandline mark reset {name} (only changes from a seq on: --to SEQ, --head)"
    if record.undecided == IN_HISTORY:
        again = f"To deliver it again: strandline backfill restart {name}"
    return Conflict(
        f"{record.title} waits for you to say where it continues: its marks were lost, and {record.undecided}",
        hint=f"Nothing is sent. {again}. To give it up: strandline mark retire {name}",
        consumer=name,
    )
