"""The readers of a table's log. Changes that they have not read are not trimmed and do not expire."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow as pa


class Readers(Protocol):
    def marks(self) -> list[tuple[int, str]]:
        """The seq that each active consumer has reached, with its name, the lowest first. `Conflict` when the state is
        not the one that last trimmed the lake: then nothing may be deleted."""
        ...

    def in_history(self) -> set[str]:
        """The active consumers that lack a part of the rows from before their mark: their history is under way."""
        ...

    def renewed_epoch(self) -> int:
        """The epoch that a trim writes into the log, so that an older state is noticed; 0 without a state."""
        ...

    def forget(self, keys: pa.Table) -> int:
        """Erase keys from the stored refused rows, and return their number."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """No consumer works while the block runs. `Conflict` when one works or has an unfinished batch: its rows are
        counted by position, and must not change between two attempts."""
        ...


class NoReaders:
    """A table that no consumer reads."""

    def marks(self) -> list[tuple[int, str]]:
        return []

    def in_history(self) -> set[str]:
        return set()

    def renewed_epoch(self) -> int:
        return 0

    def forget(self, keys: pa.Table) -> int:
        return 0

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()
