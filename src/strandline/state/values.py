"""Values that a state keeps: checked on the way in, and written as JSON text in a column."""

from __future__ import annotations

import json
from typing import Any

from strandline.errors import Corrupt, Invalid


def to_json(role: str, value: object) -> str:
    """A value as JSON; equal values give equal text."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{role} cannot be kept as JSON: {error}") from error


def from_json(role: str, kept: str) -> Any:
    try:
        return json.loads(kept)
    except ValueError as error:
        raise Corrupt(f"{role} is not JSON: {error}", hint="Restore the state from a backup.") from error


def check_int(role: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise Invalid(f"{role} is {value!r}; expected a number from 0 on")
    return value
