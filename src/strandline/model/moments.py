"""Turn a caller's moments into Python's own, or refuse them: no digit is lost silently.

A table keeps microseconds. Python's `fromisoformat` drops further digits of a text, and Arrow drops those of a pandas
Timestamp. Arrow also drops the time of day of a moment in a date column.
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
    """The moment of an ISO text; `ValueError` also for digits beyond microseconds."""
    found = dt.datetime.fromisoformat(text)
    if _BEYOND.search(text):
        raise ValueError(f"{text!r} has digits beyond microseconds")
    return found


def is_whole(value: dt.datetime) -> bool:
    """Whether a moment has no nanoseconds; a pandas Timestamp may."""
    return getattr(value, "nanosecond", 0) in (0, None) or value != value


def has_nanoseconds(value: Any) -> bool:
    """Whether a value holds a moment with nanoseconds, at any depth."""
    if isinstance(value, Mapping):
        return any(map(has_nanoseconds, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_nanoseconds, value))
    return isinstance(value, dt.datetime) and not is_whole(value)


def to_python(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Values for a column of dates or times: numpy and pandas values become Python's own, NaT becomes null, and in a
    date column midnight becomes its date. A value that would lose digits stays as it is, and is refused later."""
    return [_to_python(value, kind) for value in values]


def _to_python(value: Any, kind: pa.DataType) -> Any:
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
    """The hint for a moment that its column does not take."""
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
