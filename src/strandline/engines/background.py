"""Run work in a thread while a block runs, and never longer.

The thread watches a lock that the block holds. The interpreter itself releases the lock however the block ends, so a
Ctrl-C, which may fall between any two steps of Python code, leaves no thread behind. An event, set at the block's end,
would stay unset after a Ctrl-C just before. Should the lock be lost all the same, the thread ends when nothing refers
to the block any more. For the same reason the thread is started and awaited in single steps: an interrupt inside of
`Thread.start` or `Event.wait` leaves a lock taken, and both sides hang on it.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

_LOOK_S = 1.0


class _Block:
    """An object that lives as long as a block runs."""


@contextmanager
def run_beside(work: Callable[[Callable[[float], bool]], None]) -> Iterator[None]:
    """Run `work(is_over)` in a thread while the block runs. `is_over(wait_s)` waits up to that long and says whether
    the block has ended; then `work` must return, and the block waits for that."""
    lock = threading.Lock()
    block = _Block()
    life = weakref.ref(block)
    ended: SimpleQueue[None] = SimpleQueue()
    started: list[int] = []

    def is_over(wait_s: float) -> bool:
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            if lock.acquire(timeout=min(left_s, _LOOK_S)) or life() is None:
                return True
        return False

    def run() -> None:
        try:
            work(is_over)
        finally:
            ended.put(None)

    try:
        with lock:
            started.append(_thread.start_new_thread(run, ()))
            yield
    finally:
        del block
        # A thread whose start was interrupted is not awaited; it finds the lock released.
        if started:
            ended.get()
