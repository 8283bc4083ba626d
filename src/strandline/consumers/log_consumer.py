"""A consumer with marks in the state: the base of every new kind of consumer (see `docs/extending.md`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

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

    The loop takes its lease, saves its intents, calls `run`, and then moves its marks. After a crash in between, `run`
    gets the same work again, with the same `work.token`. An effect bound to the token, such as `table.upsert(…,
    token=work.token)`, counts once."""

    kind: str
    lanes: int = 1
    """Into how many lanes a large range may be cut. Each has its own vnodes and succeeds or fails alone."""

    def __init__(self, name: str, table: str, *, start: Start = BACKFILL) -> None:
        self.name = check_consumer_name(name)
        self.table = check_name(table)
        self.start = check_start(start, name)

    @property
    @abstractmethod
    def destination(self) -> str:
        """A text that identifies where its effect goes. A new destination begins a new life of the consumer, from
        `start`."""

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.name!r}"

    @property
    def is_copy(self) -> bool:
        """Whether it keeps a copy of the table's rows, so that expired rows must leave it."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The definition that the state keeps, as JSON: everything that its effect depends on, without secrets."""
        return {"start": self.start}

    def shape(self, table: TableStore) -> str | None:
        """A text for everything that the rows of a copy depend on; another text begins a new life. None for a consumer
        that is no copy of the table."""
        return None

    def missing_columns(self, table: TableStore, *, is_new: bool) -> tuple[str, ...]:
        """The dropped columns that it needs; `Invalid` when it cannot follow the table at all."""
        return ()

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        """The ranges from its marks to the head of the log."""
        table = tables.table(self.table)
        ranges = Ranges(
            table, name=self.name, title=self.title, start=self.start, lanes=self.lanes, is_copy=self.is_copy
        )
        return ranges.works(known)

    def prepare(self, work: Work, record: ConsumerRecord, producer: Producer) -> list[LaneStart]:
        """Prepare a work before its intents are saved; returns how each lane starts. `record` is the consumer on
        record, `producer` its identity towards its destination."""
        return [LaneStart() for _ in work.lanes]

    @abstractmethod
    def run(self, work: Work) -> Receipt:
        """Do a work whose intents are saved. An exception leaves them open: the next tick repeats the work."""

    def finish(self, intent: Intent) -> None:
        """Make a lane's effect count. It is called again after a crash, so it must be idempotent."""
        return

    def close(self) -> None:
        """Close what `prepare` opened."""
        return
