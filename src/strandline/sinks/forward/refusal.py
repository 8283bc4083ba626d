"""How a receiver refuses a request: a status, and an error that says why. A sender acts by the status alone.

400 and 422 are for good: the rows become dead letters. 413 asks for fewer rows, 408, 429 and 503 for another attempt,
409, 410 and 412 for a person: the sender keeps its rows.
"""

from __future__ import annotations

from typing import Any

from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable

TOO_LARGE = 413


class Refusal(Exception):
    """A request that is answered with a status of its own, because HTTP has a finer word than the error's kind."""

    def __init__(self, status: int, error: StrandlineError) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error


Failure = StrandlineError | Refusal


def malformed(message: str, **fields: Any) -> Refusal:
    """The body or a header is not what it says it is."""
    return Refusal(400, Invalid(message, **fields))


def unauthorized(message: str, hint: str) -> Refusal:
    return Refusal(401, Invalid(message, hint=hint))


def forbidden(message: str, hint: str) -> Refusal:
    return Refusal(403, Invalid(message, hint=hint))


def outlived(message: str, **fields: Any) -> Refusal:
    """The sender is an older life of a sink of which a newer one has sent rows already."""
    return Refusal(410, Conflict(message, hint="Nothing was applied.", **fields))


def other_version(message: str) -> Refusal:
    """The sender speaks another version: it must wait for the upgrade, not give its rows up."""
    return Refusal(
        412, Conflict(message, hint="Nothing was applied. Upgrade the older side: pip install -U strandline")
    )


def too_slow(message: str) -> Refusal:
    return Refusal(408, Unavailable(message))


def unprepared(error: Invalid, hint: str) -> Refusal:
    """The table is not ready for a sender's rows, whichever they are: that sender must wait, not give them up."""
    told = {name: value for name, value in error.fields.items() if name != "row"}
    return Refusal(412, Conflict(error.message, hint=hint, **told))


def too_wide(message: str, hint: str, **fields: Any) -> Refusal:
    """The body has too many columns, or names of them: fewer rows would not help, so it is not 413."""
    return Refusal(412, Conflict(message, hint=hint, **fields))


def too_large(message: str, hint: str = "Send fewer rows at once.", **fields: Any) -> Refusal:
    return Refusal(TOO_LARGE, Invalid(message, hint=hint, **fields))


def unsupported(message: str, hint: str) -> Refusal:
    return Refusal(415, Invalid(message, hint=hint))


def busy(message: str) -> Refusal:
    return Refusal(429, Unavailable(message, hint="Send it again in a moment."))
