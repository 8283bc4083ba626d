"""What consumers work with: the tables and the state of a lake, and the consumers that this process declares."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.consumers.fixpoint import Fixpoint
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.rounds import Rounds
from strandline.errors import Invalid
from strandline.sinks.contract import Producer
from strandline.sinks.definition import SinkDef
from strandline.state import database, epoch
from strandline.state.address import parse_url
from strandline.state.consumers import ConsumerRecord
from strandline.state.intents import open_conflict
from strandline.state.leases import this_worker
from strandline.state.marks import ConsumerState
from strandline.state.rates import NO_RATE
from strandline.state.state import State, open_database
from strandline.storage.open import is_inside
from strandline.tables.catalog import Entry
from strandline.tables.collection import Tables
from strandline.tables.readers import Readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Context(Tables):
    """The tables of a lake, its state, and the sinks (`declared`) and other consumers (`consumers`) that this process
    declares. The state is opened when it is first needed."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        state: str | os.PathLike[str] | None = None,
        spark: SparkSession | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        if state is not None:
            parse_url(state)
        super().__init__(root, storage_options=storage_options, spark=spark, cache_bytes=cache_bytes)
        self.declared: dict[str, SinkDef] = {}
        self.consumers: dict[str, LogConsumer] = {}
        self.fixpoints: dict[str, Fixpoint] = {}
        self.rounds: dict[str, Rounds] = {}
        """What this process has learned of each consumer's rounds."""
        self._state_url = state
        self._state: State | None = None
        self._opening = threading.Lock()

    @property
    def state(self) -> State:
        """The records, marks, leases and dead letters of consumers. A missing database is made."""
        with self._opening:
            if self._state is None:
                lake_id = self.catalog.ensure_lake().lake_id
                database = open_database(self.storage, self._state_url)
                self._state = State.of(database, self.storage, lake_id)
            return self._state

    @property
    def has_state(self) -> bool:
        """Whether a state exists or existed; otherwise no sink has ever run here."""
        if self._state is not None or self._state_url is not None:
            return True
        is_here = self.storage.is_local and self.storage.exists(database.FILE)
        return is_here or self.storage.exists(epoch.FILE)

    def check_state_place(self) -> None:
        """`Invalid` when the lake lies in a bucket and nobody has said where its state is: no consumer can run."""
        if not self.storage.is_local and not self.has_state:
            open_database(self.storage, None)

    def consumer_state(self, name: str) -> ConsumerState:
        """A consumer on record: its marks and open intents."""
        if not self.has_state:
            return ConsumerState()
        found = self.state.marks.consumer_states(name).get(name, ConsumerState())
        return replace(found, is_paused=name in self.state.pauses.all(), rate=self.state.rates.get(name))

    def consumer_states(self) -> dict[str, ConsumerState]:
        """Every consumer with marks, by name: those declared here and those on record."""
        known = self.state.marks.consumer_states() if self.has_state else {}
        paused = self.state.pauses.all() if self.has_state else {}
        rates = self.state.rates.all() if self.has_state else {}
        names = sorted({*self.declared, *self.consumers, *known})
        return {
            name: replace(known.get(name, ConsumerState()), is_paused=name in paused, rate=rates.get(name, NO_RATE))
            for name in names
        }

    def producer(self, record: ConsumerRecord) -> Producer:
        """The identity of a consumer towards its destination."""
        lake_id = self.catalog.refresh().lake_id
        life = (record.table_generation, record.generation, record.began_ms)
        return Producer(lake_id, record.name, record.table, *life)

    def check_sink(self, declared: SinkDef) -> None:
        """`Invalid` unless a sink's table and columns exist and its destination lies outside the lake. Dropped columns
        are allowed here; the plan of a new sink refuses them."""
        declared.outgoing(self.table(declared.table).definition, with_salt=False)
        if is_inside(getattr(declared.to, "uri", declared.to.destination), self.storage):
            raise Invalid(
                f"sink {declared.name!r} goes to {declared.to.destination}, inside the lake {self.storage.uri}",
                hint="Choose a destination outside it.",
                consumer=declared.name,
            )

    def _readers_of(self, entry: Entry) -> Readers:
        return StateReaders(self, entry)


@dataclass(frozen=True)
class StateReaders:
    """The readers of a table, by the lake's state."""

    context: Context
    entry: Entry

    def marks(self) -> list[tuple[int, str]]:
        if not self.context.has_state:
            return []
        table = self.context.open_table(self.entry)
        state = self.context.state
        state.epoch.check(trimmed_epoch=table.log.refresh().epoch)
        return state.marks.slowest_consumers(self.entry.generation, table.definition.vnodes)

    def in_history(self) -> set[str]:
        return self.context.state.marks.in_history(self.entry.generation) if self.context.has_state else set()

    def renewed_epoch(self) -> int:
        return self.context.state.epoch.renew() if self.context.has_state else 0

    def forget(self, keys: pa.Table) -> int:
        return self.context.state.letters.forget(self.entry.generation, keys) if self.context.has_state else 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.context.has_state:
                state = self.context.state
                mine = [
                    consumer
                    for consumer in state.registry.all()
                    if consumer.table_generation == self.entry.generation and not consumer.is_retired
                ]
                for consumer in mine:
                    stack.enter_context(state.leases.hold(consumer.lease, this_worker(), title=consumer.title))
                for consumer in mine:
                    for intent in state.marks.intents(consumer):
                        raise open_conflict(consumer.name, intent, "the history of its table cannot change")
                # From here on, an old copy of the state would repeat its open intents over other rows.
                state.epoch.renew()
            yield
