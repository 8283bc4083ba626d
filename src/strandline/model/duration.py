"""Lengths of time as text: `90s`, `30m`, `1h`, `7d`."""

from __future__ import annotations

import datetime as dt
import re

from strandline.errors import Invalid

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LONGEST_S = 365_000 * 86400.0


def seconds(value: object, name: str = "time") -> float:
    """The seconds of a text such as `7d`, a timedelta or a number of seconds, 0 or more."""
    found: float | None = None
    if isinstance(value, dt.timedelta):
        found = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    elif isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", value.strip())
        found = float(match.group(1)) * _UNITS[match.group(2)] if match else None
    if found is None or not 0 <= found <= _LONGEST_S:
        raise Invalid(
            f"{name} is {value!r}; expected a length of time such as 90s, 30m, 1h or 7d, at most 1000 years",
            hint="Write a number and its unit: s, m, h or d.",
            setting=name,
        )
    return found


def to_text(length_s: float) -> str:
    """The text of a length, in the largest unit that is exact."""
    for unit, size in _UNITS.items():
        if length_s and length_s % size == 0:
            return f"{int(length_s // size)}{unit}"
    return f"{length_s:.6f}".rstrip("0").rstrip(".") + "s"
