"""Named places where a test may end the process as `kill -9` would.

`STRANDLINE_CRASH=log.committed` ends the process at the first pass of that point, `log.committed:3` at the third.
Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

_ARMED = os.environ.get("STRANDLINE_CRASH", "")
_passes: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """End this process here, without clean-up, if the environment names this point."""
    if not _ARMED:
        return
    target, _, ordinal = _ARMED.partition(":")
    if name != target:
        return
    _passes[name] += 1
    if _passes[name] >= int(ordinal or 1):
        os.kill(os.getpid(), signal.SIGKILL)
