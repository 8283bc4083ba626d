"""How long work says how far it is: a function that the caller gives and that may do nothing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called with what is done, the whole of it, and a few words about what is under way."""


def silent(done: int, whole: int, what: str) -> None:
    """For callers who do not watch."""
