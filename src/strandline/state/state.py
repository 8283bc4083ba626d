"""Everything that a lake's state holds of its consumers, opened together and bound to the lake."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.errors import Invalid
from strandline.state.consumers import Registry
from strandline.state.database import State
from strandline.state.epoch import Bond, read_record
from strandline.state.leases import Leases
from strandline.state.letters import DeadLetters
from strandline.state.marks import Marks
from strandline.storage.open import Storage


@dataclass(frozen=True)
class Ledger:
    state: State
    registry: Registry
    marks: Marks
    leases: Leases
    letters: DeadLetters
    bond: Bond

    @staticmethod
    def of(state: State, storage: Storage, lake_id: str) -> Ledger:
        """The ledger of a lake; `Conflict` when the state is another lake's."""
        state.bind(lake_id)
        return Ledger(
            state, Registry(state), Marks(state), Leases(state), DeadLetters(state), Bond(storage, lake_id, state)
        )


def open_state(storage: Storage, url: str | None) -> State:
    """The state of the lake in `storage`. One that is not on this machine says where its state was, if it had one."""
    if url is None and not storage.is_local:
        record = read_record(storage)
        if record is not None:
            raise Invalid(
                f"{storage.uri} has its state in {record.state}, which was not named",
                hint="Name it: Lake(…, state=URL), strandline --state URL or STRANDLINE_STATE.",
                state=record.state,
            )
    return State.for_lake(storage.uri, storage.is_local, url)
