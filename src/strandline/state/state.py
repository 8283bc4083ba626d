"""The state of a lake: its tables of consumers, marks, leases and dead letters, bound to the lake."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.crash import crash_point
from strandline.errors import Invalid
from strandline.state.consumers import ConsumerRecord, Registry
from strandline.state.database import Database
from strandline.state.epoch import Epoch, read_record
from strandline.state.intents import Intent, IntentDraft
from strandline.state.leases import Leases
from strandline.state.letters import DeadLetters
from strandline.state.marks import Marks, begin_intent
from strandline.state.pauses import Pauses
from strandline.state.rates import Rates
from strandline.storage.open import Storage


@dataclass(frozen=True)
class State:
    """What consumers remember, in one database that belongs to one lake."""

    database: Database
    registry: Registry
    marks: Marks
    leases: Leases
    letters: DeadLetters
    pauses: Pauses
    rates: Rates
    epoch: Epoch

    @staticmethod
    def of(database: Database, storage: Storage, lake_id: str) -> State:
        """The state of a lake; `Conflict` when it belongs to another lake."""
        database.bind(lake_id)
        return State(
            database,
            Registry(database),
            Marks(database),
            Leases(database),
            DeadLetters(database),
            Pauses(database),
            Rates(database),
            Epoch(storage, lake_id, database),
        )

    def begin(self, consumer: ConsumerRecord, drafts: Sequence[IntentDraft], fence: int) -> list[Intent]:
        """Save intents, all or none, and record a new epoch in the lake: an older copy of the state is then recognised.
        The first half of the renewal shares the intents' transaction."""
        with self.database.transaction() as connection:
            # The epoch first: every transaction takes locks in this order.
            own = self.epoch.begin_renewal(connection)
            begun = [begin_intent(connection, consumer, draft, fence) for draft in drafts]
        crash_point("marks.intent_saved")
        self.epoch.write_epoch(own)
        return begun


def open_database(storage: Storage, url: str | os.PathLike[str] | None) -> Database:
    """The state of the lake in `storage`; `Invalid` without the URL that a lake in a bucket needs."""
    if url is None and not storage.is_local:
        record = read_record(storage)
        if record is not None:
            raise Invalid(
                f"{storage.uri} has its state in {record.state}, which was not named",
                hint="Name it: Lake(…, state=URL), strandline --state URL or STRANDLINE_STATE.",
                state=record.state,
            )
    return Database.for_lake(storage.uri, storage.is_local, url)
