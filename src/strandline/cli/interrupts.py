"""Signals that stop a process: the first one ends it in order, a later one at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

ECHO_S = 0.5

Handler = Callable[[int, FrameType | None], None]


def make_handler(first: Callable[[], None]) -> Handler:
    """A handler that calls `first` at the first signal. Signals within half a second after it are ignored: `timeout`,
    for example, sends one to the process and one to its group. A later one ends the process."""
    heard_s: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard_s
        # Before the check below: a second signal may come between the two.
        now_s = time.monotonic()
        if heard_s is None:
            heard_s = now_s
            first()
        elif now_s - heard_s > ECHO_S:
            # Whatever is under way may be killed at any moment; the next run goes on from there.
            os._exit(128 + number)

    return hear


def obey_interrupts() -> None:
    """Let the first Ctrl-C raise `KeyboardInterrupt`, unless the process ignores it or has a handler already."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, make_handler(_interrupt))


def _interrupt() -> None:
    raise KeyboardInterrupt
