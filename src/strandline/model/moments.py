"""Moments that a caller gives, as Python's own, or refused: no digit is cut silently.

A table keeps microseconds. Python's `fromisoformat` drops what a text has beyond them, Arrow what a pandas Timestamp
has, and of a moment for a date column the time of day.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

MICROSECONDS = "A table keeps microseconds: round it yourself first, in pandas with .dt.floor('us')."
_BEYOND = re.compile(r"[.,]\d{6}\d*[1-9]")


def parse_moment(text: str) -> dt.datetime:
    """The moment that an ISO text says; `ValueError` also when it has digits beyond microseconds."""
    found = dt.datetime.fromisoformat(text)
    if _BEYOND.search(text):
        raise ValueError(f"{text!r} has digits beyond microseconds")
    return found


def is_whole(value: dt.datetime) -> bool:
    """Whether a moment has no nanoseconds; a pandas Timestamp may."""
    return getattr(value, "nanosecond", 0) in (0, None) or value != value


def has_nanoseconds(value: Any) -> bool:
    """Whether a value has a moment with nanoseconds in it, at any depth."""
    if isinstance(value, Mapping):
        return any(map(has_nanoseconds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nanoseconds, value))
    return isinstance(value, dt.datetime) and not is_whole(value)


def to_python(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Values for a column of dates or times: those of numpy and pandas as Python's own, NaT as null, midnight as its
    date in a column of dates. What would lose digits stays as it is: it does not fit."""
    return [_plain(value, kind) for value in values]


def _plain(value: Any, kind: pa.DataType) -> Any:
    name = type(value).__name__
    if name == "NaTType":
        return None
    if name == "datetime64":
        exact = value.astype("datetime64[us]")
        if exact != exact:
            return None
        if exact != value or kind.equals(pa.timestamp("us", tz="UTC")):
            return value
        value = exact.item()
    if pt.is_date(kind) and isinstance(value, dt.datetime) and value.tzinfo is None and is_whole(value):
        return value.date() if value.time() == dt.time() else value
    return value


def hint(value: Any, kind: pa.DataType) -> str | None:
    """What to write instead of a moment that a column of dates or times does not take."""
    if isinstance(value, list | tuple | Mapping) and has_nanoseconds(value):
        return MICROSECONDS
    is_moment = isinstance(value, dt.datetime) or type(value).__name__ == "datetime64"
    if not is_moment:
        return None
    if pt.is_date(kind):
        return (
            "A date column takes dates, or moments of midnight without a zone: give value.date(), in pandas .dt.date."
        )
    if not pt.is_timestamp(kind):
        return None
    zone = getattr(value, "tzinfo", None)
    if (zone is None) != (kind.tz is None):
        return "Give it a zone: the column's times have one." if kind.tz else "The column's times have no zone."
    return MICROSECONDS
