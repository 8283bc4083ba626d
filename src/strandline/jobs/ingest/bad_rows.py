"""Sort good rows from bad ones: convert many at once, and look closer only where that fails.

A format's `convert` alone decides, for a whole block as for a single row. So whether a row is good does not depend on
its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import Invalid

UNFIT = (Invalid, pa.ArrowException, ValueError, OverflowError, RecursionError)
"""What a conversion raises when one of its rows is bad."""


@dataclass(frozen=True)
class BadRow:
    """A bad row: its line (for Parquet its row, from 1), the bad column if there is one, the reason, the text of the
    row, and for CSV the `names` of its columns and the `dialect` of its file."""

    line: int
    column: str | None
    reason: str
    text: str
    names: list[str] | None = None
    dialect: str | None = None


def sift(count: int, convert: Callable[[int, int], pa.Table]) -> Iterator[pa.Table | int]:
    """The rows `[0, count)` in order: good rows as tables, bad rows as their numbers."""
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
