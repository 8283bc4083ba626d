"""Do again what another process got ahead of."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from strandline.errors import Conflict

ATTEMPTS = 10
_PAUSE_S, _LONGEST_S = 0.01, 0.5
T = TypeVar("T")


def until_landed(act: Callable[[], T]) -> T:
    """What `act` returns. It looks at the table anew each time it is called; after ten conflicts the last is raised.
    Pauses of different lengths let each of several writers succeed."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return act()
        except Conflict:
            time.sleep(random.uniform(0, min(_LONGEST_S, _PAUSE_S * 2**attempt)))
    return act()
