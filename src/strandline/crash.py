"""Named places where a test may end the process as `kill -9` would.

`STRANDLINE_CRASH=log.committed` ends the process at the first pass of that point, `log.committed:3` at the third.
`log.committed@/path` ends one of many processes, such as Spark's workers: the first one that passes the point while the
file exists, and removes it. A file that holds `SIGSTOP` makes it a process that hangs instead. Without the variable a
point costs one comparison.
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
    where, _, file = _ARMED.partition("@")
    target, _, ordinal = where.partition(":")
    if name != target:
        return
    _passes[name] += 1
    if _passes[name] >= int(ordinal or 1):
        kind = _take_signal(file) if file else signal.SIGKILL
        if kind is not None:
            os.kill(os.getpid(), kind)


def _take_signal(path: str) -> signal.Signals | None:
    """The signal that a file asks for; None when another process has taken the file, or no test has written it."""
    try:
        with open(path) as file:
            text = file.read()
        os.unlink(path)
    except FileNotFoundError:
        return None
    return signal.Signals[text] if text else signal.SIGKILL
