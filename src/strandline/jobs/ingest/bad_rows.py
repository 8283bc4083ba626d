"""Sort good rows from bad ones: convert many at once, and look closer only where that fails.

A format's `convert` is the only judge, for a whole block and for a single row alike, so a row is good or bad
whatever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import Invalid

UNFIT = (Invalid, pa.ArrowException, ValueError, OverflowError, RecursionError)
"""What a conversion raises when some row of it is bad."""


@dataclass(frozen=True)
class BadRow:
    """A bad row: its line (for Parquet its row, from 1), the column if it is one column's fault, why, its text, and
    for text of fields the columns that these are."""

    line: int
    column: str | None
    reason: str
    text: str
    names: list[str] | None = None


def sift(count: int, convert: Callable[[int, int], pa.Table]) -> Iterator[pa.Table | int]:
    """The rows `[0, count)` as tables of good ones and, by number, bad ones, in order."""
    waiting = [(0, count)]
    while waiting:
        start, stop = waiting.pop()
        try:
            table = convert(start, stop)
        except UNFIT:
            if stop - start == 1:
                yield start
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
        else:
            yield table
