"""Do again what another process got ahead of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from strandline.errors import Conflict

ATTEMPTS = 10
T = TypeVar("T")


def until_landed(act: Callable[[], T]) -> T:
    """What `act` returns. It looks at the table anew each time it is called; after ten conflicts the last is raised."""
    for _ in range(ATTEMPTS - 1):
        try:
            return act()
        except Conflict:
            continue
    return act()
