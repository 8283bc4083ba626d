"""Who reads a table's log: what keeps it from being trimmed and its rows from expiring."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow as pa


class Readers(Protocol):
    def marks(self) -> list[tuple[int, str]]:
        """The seq up to which each living consumer has come, the one furthest behind first. `Conflict` when the state
        is not the one that the lake was last looked after with: then nothing may go."""
        ...

    def renewed_epoch(self) -> int:
        """What a trim writes into the log, so that a state from before it is noticed; 0 without a state."""
        ...

    def forget(self, keys: pa.Table) -> int:
        """Erase keys from what is kept of refused rows; how many there were."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """No consumer works while the block runs; `Conflict` when one does, or has something under way: what it sends
        is counted by place, and must not change between two attempts."""
        ...


class NoReaders:
    """A table that no consumer reads."""

    def marks(self) -> list[tuple[int, str]]:
        return []

    def renewed_epoch(self) -> int:
        return 0

    def forget(self, keys: pa.Table) -> int:
        return 0

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()
