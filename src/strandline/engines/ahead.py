"""Convert the next pieces in other threads, while the caller works with this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

_AHEAD = 2


def convert_ahead(convert: Callable[[In], Out], pieces: Iterable[In]) -> Iterator[Out]:
    """`convert(piece)` of each piece, in order. A caller may stop at any piece.

    The threads are not waited for at the end. The garbage collector ends an iterator that nobody reads any more, and
    it may do so inside the start of another thread: waiting there would never end."""
    waiting: deque[Future[Out]] = deque()
    pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="convert")
    try:
        for piece in pieces:
            waiting.append(pool.submit(convert, piece))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
