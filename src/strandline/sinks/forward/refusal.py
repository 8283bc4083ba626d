"""How a receiver refuses a request: a status of the protocol, and an error that says why."""

from __future__ import annotations

from typing import Any

from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable
from strandline.sinks.forward import protocol


class Refusal(Exception):
    """A refused request with its own HTTP status, which is more precise than the error's kind."""

    def __init__(self, status: int, error: StrandlineError) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error


Failure = StrandlineError | Refusal


def malformed(message: str, **fields: Any) -> Refusal:
    """The body or a header is not of the declared form."""
    return Refusal(protocol.MALFORMED, Invalid(message, **fields))


def unauthorized(message: str, hint: str) -> Refusal:
    return Refusal(protocol.UNAUTHORIZED, Invalid(message, hint=hint))


def forbidden(message: str, hint: str) -> Refusal:
    return Refusal(protocol.FORBIDDEN, Invalid(message, hint=hint))


def outlived(message: str, **fields: Any) -> Refusal:
    """A newer life of the sender's sink has sent rows already."""
    return Refusal(protocol.GONE, Conflict(message, hint="Nothing was applied.", **fields))


def other_version(message: str) -> Refusal:
    """The sender speaks another version. It must keep its rows and wait for the upgrade."""
    hint = "Nothing was applied. Upgrade the older side: pip install -U strandline"
    return Refusal(protocol.NOT_READY, Conflict(message, hint=hint))


def too_slow(message: str) -> Refusal:
    return Refusal(protocol.TOO_SLOW, Unavailable(message))


def unprepared(error: Invalid, hint: str) -> Refusal:
    """The table cannot take any rows of the sender yet. The sender must keep its rows and wait."""
    told = {name: value for name, value in error.fields.items() if name != "row"}
    return Refusal(protocol.NOT_READY, Conflict(error.message, hint=hint, **told))


def too_wide(message: str, hint: str, **fields: Any) -> Refusal:
    """The body has too many columns or too long names. Not 413, since fewer rows would not help."""
    return Refusal(protocol.NOT_READY, Conflict(message, hint=hint, **fields))


def too_large(message: str, hint: str = "Send fewer rows at once.", **fields: Any) -> Refusal:
    return Refusal(protocol.TOO_LARGE, Invalid(message, hint=hint, **fields))


def unsupported(message: str, hint: str) -> Refusal:
    return Refusal(protocol.UNSUPPORTED, Invalid(message, hint=hint))


def busy(message: str) -> Refusal:
    return Refusal(protocol.BUSY, Unavailable(message, hint="Send it again in a moment."))
