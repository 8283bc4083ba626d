"""Stand-in so that imports work until the real module is written over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FILE = "state.json"


@dataclass(frozen=True)
class Record:
    state: str = ""
    epoch: int = 0


class Bond:
    def __init__(self, storage: Any, lake_id: str, state: Any) -> None: ...

    def check(self, *, trimmed_epoch: int = 0) -> None: ...

    def renew(self) -> int:
        return 0

    def epoch(self) -> int:
        return 0


def read_record(storage: Any) -> Record | None:
    return None
