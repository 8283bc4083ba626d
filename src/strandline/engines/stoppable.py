"""Run work in DuckDB that can be stopped: by Ctrl-C, after a time limit, or when the process grows too large. DuckDB's
own memory limit does not count the values that functions make.

DuckDB runs in a thread of its own while the caller waits, since a thread inside DuckDB gets no signal. To stop the
work, its cursor alone is interrupted. Work that does not react (a single function call can take hours) is abandoned:
the caller goes on; the thread ends at the next interrupt that it notices and closes its cursor; its result is
dropped.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, TypeVar, cast

from strandline.errors import Internal, Invalid, Unavailable

T = TypeVar("T")

# How long the caller waits for work that was interrupted: too short to notice after Ctrl-C.
_PATIENCE_S = 0.2
_AGAIN_S = 0.05
# How often the caller measures the memory, and how much other threads may add.
_LOOK_S = 0.02
_SPARE_BYTES = 128 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StoppableWork(Generic[T]):
    """One piece of work, and the way to stop it."""

    was_any_stopped = False

    def __init__(self, act: Callable[[StoppableWork[T]], T]) -> None:
        self._act = act
        # Held until the work is done. Not an event: an interrupt during its wait breaks it for both sides.
        self._gate = threading.Lock()
        self._is_done = False
        self._lock = threading.Lock()
        self._cursor: Any = None
        self._is_started = self._is_stopped = False
        self._result: T | None = None
        self._error: BaseException | None = None

    @contextmanager
    def holding(self, cursor: Any) -> Iterator[None]:
        """While the block runs, stopping the work interrupts this cursor."""
        self.check()
        with self._lock:
            self._cursor = cursor
        try:
            yield
        finally:
            # From here on the cursor rolls back and is closed: it must not be interrupted.
            with self._lock:
                self._cursor = None

    def check(self) -> None:
        """Raise when the work was stopped: nobody waits for it."""
        if self._is_stopped:
            raise Internal("this work was stopped")

    def result(self, timeout_s: float, most_bytes: float) -> T:
        self._gate.acquire()
        until_s = time.monotonic() + timeout_s
        until_bytes = _resident_bytes() + most_bytes + _SPARE_BYTES
        try:
            _thread.start_new_thread(_do_work, ([self],))
            while not self._gate.acquire(timeout=_LOOK_S):
                if time.monotonic() >= until_s:
                    raise Unavailable(
                        f"the query took longer than its limit of {timeout_s:g} s and was stopped",
                        hint="Select less, or raise the limit: timeout_s=… in Python, --timeout … in a command.",
                        timeout_s=timeout_s,
                    )
                if _resident_bytes() > until_bytes:
                    raise Invalid(
                        f"the query took more memory than its limit of {most_bytes:,} bytes and was stopped",
                        hint="Make smaller texts and lists, or open the lake with a larger cache_bytes"
                        " (in a command: --app).",
                    )
        except BaseException:
            self._stop()
            raise
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def _do_work(self) -> threading.Lock:
        self._is_started = True
        try:
            self._result = self._act(self)
        except BaseException as error:
            self._error = error
        self._is_done = True
        return self._gate

    def _stop(self) -> None:
        self._is_stopped = True
        if self._is_started:
            StoppableWork.was_any_stopped = True
            _thread.start_new_thread(self._interrupt_until_done, ())
            self._gate.acquire(timeout=_PATIENCE_S)

    def _interrupt_until_done(self) -> None:
        """Interrupt again and again, even without a caller: a statement that is just starting ignores an interrupt."""
        while not self._is_done:
            with self._lock:
                if self._cursor is not None:
                    self._cursor.interrupt()
            time.sleep(_AGAIN_S)


def _do_work(box: list[StoppableWork[Any]]) -> None:
    """Do the work in the box. When the gate opens, this thread refers to no object of the work: the last holder of a
    DuckDB object closes it, and a thread that does so while the interpreter ends aborts the process."""
    gate = box.pop()._do_work()
    gate.release()


def run_stoppable(
    act: Callable[[StoppableWork[T]], T], timeout_s: float | None = None, most_bytes: int | None = None
) -> T:
    """The result of `act`; `Unavailable` when it takes longer than `timeout_s`, `Invalid` when the process grows by
    more than `most_bytes` meanwhile."""
    return StoppableWork(act).result(inf if timeout_s is None else timeout_s, inf if most_bytes is None else most_bytes)


def was_work_stopped() -> bool:
    """Whether work was ever stopped in this process: then a thread may still be inside DuckDB."""
    return StoppableWork.was_any_stopped


def _resident_bytes() -> int:
    """The memory of the process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
