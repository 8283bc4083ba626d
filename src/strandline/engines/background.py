"""Work that goes on in a thread beside a block, and never after it.

The thread watches a lock that the block holds. The interpreter itself gives a lock back when its block ends in whatever
way, so Ctrl-C, which falls between any two steps of Python code, leaves no thread behind; an event that the end of the
block has to set would be missed when it falls just before. Should the lock be lost all the same, the thread ends when
nobody refers to the block any more. For the same reason the thread is started and awaited in single steps: in the
middle of `Thread.start` or of `Event.wait` an interrupt leaves a lock behind that both sides trip over.
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
    """What lives as long as a block does."""


@contextmanager
def run_beside(work: Callable[[Callable[[float], bool]], None]) -> Iterator[None]:
    """Run `work` in a thread while the block runs. It gets `is_over`, which waits for so many seconds and says whether
    the block has ended; then it comes to its end, which the block waits for."""
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
        # One that was interrupted as it started is not waited for; it finds the lock given back.
        if started:
            ended.get()
