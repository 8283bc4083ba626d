"""What a signal that asks a process to stop means to it: the first one is obeyed, a later one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

ECHO_S = 0.5

Handler = Callable[[int, FrameType | None], None]


def obeying(first: Callable[[], None]) -> Handler:
    """A handler that calls `first` at the first signal. What follows within half a second is its echo: `timeout`, for
    one, reaches a process by its id and by its group. A later one ends the process."""
    heard_s: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard_s
        # Taken first: a second signal cannot come between the question and the answer below.
        now_s = time.monotonic()
        if heard_s is None:
            heard_s = now_s
            first()
        elif now_s - heard_s > ECHO_S:
            # Whatever is under way may be killed at any moment; the next run goes on from there.
            os._exit(128 + number)

    return hear


def obey_interrupts() -> None:
    """Let the first Ctrl-C of this process raise `KeyboardInterrupt`, unless it is to be ignored or is someone else's
    to hear."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, obeying(_interrupt))


def _interrupt() -> None:
    raise KeyboardInterrupt
