"""Every error that Strandline raises on purpose, by what the reader does next.

    StrandlineError
    ├── Unavailable     try again later: a store, a network, Java or memory is missing now
    ├── Conflict        reload: someone else changed what this call was based on
    ├── Invalid         fix the input: nothing of the call was applied
    │   ├── NotFound    the named table, column or file does not exist
    │   └── NotRetained the asked-for seq is older than what the table keeps
    ├── Corrupt         repair: a file that a commit claims is missing or unreadable
    └── Internal        report it: an invariant did not hold

Errors carry fields (table, row, column, seq, …) so that callers and other processes need not read prose. They are
plain picklable values, because lanes return them from Spark tasks instead of raising.
"""

from __future__ import annotations

from typing import Any


class StrandlineError(Exception):
    """What happened, with names and numbers; `hint` is what to do or type next."""

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = {name: value for name, value in fields.items() if value is not None}

    @property
    def kind(self) -> str:
        return type(self).__name__

    def to_dict(self) -> dict[str, Any]:
        """What reports and documents tell of it."""
        return {"kind": self.kind, "message": self.message, "hint": self.hint}

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.fields))


def _rebuild(kind: type[StrandlineError], message: str, hint: str | None, fields: dict[str, Any]) -> StrandlineError:
    return kind(message, hint=hint, **fields)


class Unavailable(StrandlineError):
    """Something outside is not there now; the same call may succeed later."""


class Conflict(StrandlineError):
    """Another writer changed what this call was based on; reload and decide again."""


class Invalid(StrandlineError):
    """The input or the request is wrong; nothing of it was applied."""


class NotFound(Invalid):
    """A table, column or file of that name does not exist."""


class NotRetained(Invalid):
    """The state at that seq can no longer be read; `fields["oldest"]` is the oldest readable seq."""


class Corrupt(StrandlineError):
    """Data on disk does not match what a commit says."""


class Internal(StrandlineError):
    """An invariant did not hold; this is a fault in Strandline."""
