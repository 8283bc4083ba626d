"""The columns of a JSON file, with types that hold every value as it is written.

Whole numbers are int64, or decimals when they are longer. Fractions are float64, or JSON when float64 cannot hold one
of them with all its digits. Texts that are all dates or all times get that type. Values of several kinds, objects and
arrays are JSON. A column without any value is text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import FORMS_HINT
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.csv_types import SURE_DIGITS, find_time_type, reads_back
from strandline.jobs.ingest.json_rows import explain_text, quote_blank
from strandline.jobs.ingest.json_stream import read_records, sniff_json
from strandline.jobs.ingest.source import Source
from strandline.model.types import JSON

SAMPLE_BYTES = 64 << 20
MOST_COLUMNS = 2_000
_BLOCK_BYTES = 1 << 20
_LONGEST = 10**38
_EXACT_FLOAT = 1 << 53


def guess_json_columns(source: Source, *, is_tolerant: bool) -> list[tuple[str, JsonGuess]]:
    """The names in the first `SAMPLE_BYTES` of a file, and what is known of their values. `is_tolerant` passes over bad
    rows."""
    reading = Reading.whole(source, sniff_json(source))
    columns: dict[str, JsonGuess] = {}
    size = 0
    for records in read_records(reading, block_bytes=_BLOCK_BYTES):
        if records.bad and not is_tolerant:
            line, text = min(records.bad)
            raise _bad_row(source, line, explain_text(text)[1])
        for at in range(len(records)):
            text = records.text(at)
            try:
                row = json.loads(text, parse_float=_read_fraction)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                _add_row(row, columns, source)
            elif not is_tolerant:
                raise _bad_row(source, int(records.lines[at]), explain_text(text)[1])
        for column in columns.values():
            column.look()
        size += len(records.data)
        if size >= SAMPLE_BYTES:
            break
    return [(quote_blank(name), column) for name, column in columns.items()]


def _read_fraction(text: str) -> float | Decimal:
    """A number as a float, or as a decimal when a float has other digits or cannot hold it."""
    value = float(text)
    is_kept = math.isfinite(value) and (len(text) <= SURE_DIGITS or reads_back(text))
    return value if is_kept else Decimal(text)


def _bad_row(source: Source, line: int, reason: str) -> Invalid:
    return Invalid(
        f"{source.uri}, line {line}: {reason}",
        hint=f"{FORMS_HINT} Load the good ones and keep the bad ones aside: add --rejects",
        file=source.uri,
        line=line,
    )


def _add_row(row: dict[str, Any], columns: dict[str, JsonGuess], source: Source) -> None:
    for name, value in row.items():
        column = columns.get(name)
        if column is None:
            if len(columns) >= MOST_COLUMNS:
                raise Invalid(
                    f"{source.uri} has objects with more than {MOST_COLUMNS:,} different names",
                    hint="A table that is made from a file has a column for each name. Names that are data belong into"
                    " one JSON column. To put each object into a column with the name object, type:\n"
                    "jq -c 'if type == \"array\" then .[] else . end | {object: .}' FILE > objects.jsonl",
                    file=source.uri,
                )
            column = columns[name] = JsonGuess()
        if value is not None and not column.is_json:
            column.held.append(value)


@dataclass
class JsonGuess:
    """What is known of a column's values; `held` are those that were not looked at yet."""

    held: list[Any] = field(default_factory=list)
    kinds: set[type] = field(default_factory=set)
    texts: set[pa.DataType] = field(default_factory=set)
    largest: int = 0
    is_json: bool = False

    def look(self) -> None:
        held, self.held = self.held, []
        kinds = set(map(type, held))
        self.kinds |= kinds
        if int in kinds:
            self.largest = max(self.largest, *(_magnitude(value) for value in held if type(value) is int))
        if kinds == {str} and pa.string() not in self.texts:
            self.texts.add(_find_text_type(set(held)))
        self._decide()

    def merge(self, other: JsonGuess) -> None:
        """Take the values of another file into account."""
        self.kinds |= other.kinds
        self.texts |= other.texts
        self.largest = max(self.largest, other.largest)
        self._decide()
        self.is_json |= other.is_json

    def _decide(self) -> None:
        self.is_json |= bool(self.kinds & {list, dict, Decimal}) or len(self.kinds - {int, float}) > 1
        self.is_json |= len(self.kinds) > 1 and bool(self.kinds & {str, bool})

    @property
    def type(self) -> pa.DataType:
        if self.is_json:
            return JSON
        if not self.kinds:
            return pa.string()
        if self.kinds == {str}:
            return next(iter(self.texts)) if len(self.texts) == 1 else pa.string()
        if self.kinds == {bool}:
            return pa.bool_()
        if float in self.kinds:
            return pa.float64() if self.largest <= _EXACT_FLOAT else JSON
        if self.largest < 1 << 63:
            return pa.int64()
        return pa.decimal128(38, 0) if self.largest < _LONGEST else JSON


def _find_text_type(texts: set[str]) -> pa.DataType:
    try:
        return find_time_type(pa.chunked_array([list(texts)], pa.string()))
    except UnicodeEncodeError:
        # Half of a surrogate pair: the row will be bad.
        return pa.string()


def _magnitude(value: int) -> int:
    """The size of a whole number; int64 has one more number below zero."""
    return value if value >= 0 else -value - 1
