"""A consumer with marks in the state: what a new kind of consumer is made from (see `docs/extending.md`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from strandline.consumers.contract import LaneStart, Receipt
from strandline.consumers.ranges import Ranges
from strandline.consumers.work import Work
from strandline.model.definition import check_name
from strandline.sinks.contract import Producer
from strandline.sinks.definition import BACKFILL, Start, check_start
from strandline.state.consumers import ConsumerRecord, check_consumer_name
from strandline.state.intents import Intent
from strandline.state.marks import ConsumerState
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore


class LogConsumer(ABC):
    """Follows the log of one table. A subclass has a `kind` and a `destination`, and does its effect in `run`.

    The loop takes its lease, saves what it is about to do, calls `run`, and moves its marks when `run` has returned.
    After a crash in between, `run` gets the same work once more, with the same `work.token`: an effect that is bound to
    the token, such as `table.upsert(…, token=work.token)`, counts once."""

    kind: ClassVar[str]
    lanes: int = 1
    """Into how many parts of separate vnodes a large range may be cut, which succeed or fail alone."""

    def __init__(self, name: str, table: str, *, start: Start = BACKFILL) -> None:
        self.name = check_consumer_name(name)
        self.table = check_name(table)
        self.start = check_start(start, name)

    @property
    @abstractmethod
    def destination(self) -> str:
        """A text that identifies where its effect goes. Another destination is another life of the consumer, which
        begins at its start."""

    @property
    def title(self) -> str:
        """How it is called in a sentence."""
        return f"{self.kind} {self.name!r}"

    def to_dict(self) -> dict[str, Any]:
        """What the state keeps of its definition, as JSON: everything that its effect depends on, and no secret."""
        return {"start": self.start}

    def missing_columns(self, table: TableStore, *, is_new: bool) -> tuple[str, ...]:
        """The columns that it needs and the table has no more; `Invalid` when it cannot follow the table at all."""
        return ()

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        """The ranges from its marks to the head of the log."""
        table = tables.table(self.table)
        ranges = Ranges(table, name=self.name, title=self.title, start=self.start, lanes=self.lanes)
        return ranges.works(known)

    def prepare(self, work: Work, record: ConsumerRecord, producer: Producer) -> list[LaneStart]:
        """Make ready for a work, before its intents are saved: how each lane starts. `record` is the consumer as the
        state has it, `producer` its identity for others."""
        return [LaneStart() for _ in work.lanes]

    @abstractmethod
    def run(self, work: Work) -> Receipt:
        """Do a work whose intents are saved. Whatever it raises leaves them open: the next tick repeats it."""

    def finish(self, intent: Intent) -> None:
        """Make a lane that has run count. Repeated after a crash, so it must not matter how often it is called."""
        return

    def close(self) -> None:
        """Let go of what `prepare` opened."""
        return
