"""Signals that stop a process, at every moment of its life.

While the command line loads, and after its work, Ctrl-C ends the process with one line: there is nothing to undo.
While a verb works, the first signal ends the process in order, a later one at once. This module loads in a
millisecond: nothing hears a signal before it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType

ECHO_S = 0.5
STOPPED = 130

Handler = Callable[[int, FrameType | None], None]


def end_on_interrupt() -> None:
    """From now on Ctrl-C ends the process with one line, unless the process ignores it or has a handler already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = _show_unraisable


def say_stopped() -> None:
    """The one line that a stopped process prints."""
    os.write(2, b"Stopped: on your request. Finished work stays; the next run continues from there.\n")


def _end(number: int, frame: FrameType | None) -> None:
    say_stopped()
    os._exit(STOPPED)


def _show_unraisable(lost: sys.UnraisableHookArgs, /) -> None:
    """An interrupt that came where Python cannot raise it, such as a finalizer, still ends the process."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _end(signal.SIGINT, None)
    sys.__unraisablehook__(lost)


class Interruptible:
    """While the block runs, the first Ctrl-C raises `KeyboardInterrupt`. For processes that called `end_on_interrupt`;
    in others nothing changes."""

    def __init__(self) -> None:
        self._is_ours = signal.getsignal(signal.SIGINT) is _end

    def __enter__(self) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, make_handler(_interrupt))

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        # After an interrupt its handler stays: it ignores the signals that belong to the first one.
        if self._is_ours and not (kind and issubclass(kind, KeyboardInterrupt)):
            signal.signal(signal.SIGINT, _end)


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


def _interrupt() -> None:
    raise KeyboardInterrupt
