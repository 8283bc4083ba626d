"""Sort good rows from bad ones: convert many at once, and look closer only where that fails.

A format's `convert` alone decides, for a whole block as for a single row. So whether a row is good does not depend on
its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.source import Source
from strandline.tables.rejects import Reject

FORMS_HINT = "Expected objects: one per line, one after another, or in one array."
UNFIT = (Invalid, pa.ArrowException, ValueError, OverflowError, RecursionError)
"""What a conversion raises when one of its rows is bad."""


@dataclass(frozen=True)
class BadRow:
    """A bad row: its line (for Parquet its row, from 1), the bad column if there is one, the reason, the text of the
    row, and for CSV the `names` of its columns and the `dialect` of its file. `hint` is what would let it in."""

    line: int
    column: str | None
    reason: str
    text: str
    names: list[str] | None = None
    dialect: str | None = None
    hint: str = ""


def keep_row(source: Source, fault: BadRow) -> Reject:
    """A bad row of a file, to be kept aside."""
    named = (fault.line, fault.column, fault.reason, fault.text, fault.names, fault.dialect)
    return Reject(source.uri, *named).printable()


def refuse_row(source: Source, fault: BadRow, table: str) -> Invalid:
    """The error for a bad row when bad rows are not kept aside."""
    column = "" if fault.column is None else f", column {fault.column!r}"
    word = "line" if source.is_text else "row"
    hint = "Nothing of this file was loaded. Correct it, or load its good rows and keep the bad ones: add --rejects"
    if source.kind == "jsonl" and fault.line == 1 and fault.column is None:
        hint = f"{FORMS_HINT}\n{hint}"
    if fault.hint:
        hint = f"{fault.hint}\n{hint}"
    if "not UTF-8" in fault.reason:
        hint = f"Name the encoding of the file, such as: --encoding latin-1\n{hint}"
    if not source.is_text and fault.column is not None:
        hint = f"{hint}\nOr leave the column out, by its name in the file: --skip COLUMN"
    return Invalid(
        f"{source.uri}, {word} {fault.line}{column}: {fault.reason}",
        hint=hint,
        table=table,
        file=source.uri,
        line=fault.line,
        column=fault.column,
    )


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
