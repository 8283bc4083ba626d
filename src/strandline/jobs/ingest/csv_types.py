"""The types of CSV columns, from the texts of all their fields.

A column gets a type only when it keeps every value. Integers are int64, longer ones decimal, never floats. Other
numbers are float64 when each of them reads back as it is written, else decimal; what neither holds stays text.

No library infers the types: Arrow reads 00712 as 712, a number of 20 digits as a float and `nan` as null, and both
Arrow and DuckDB infer types (times of day, dates in national formats) that ingest does not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from strandline.jobs.ingest.cells import drop_empty

_UTC = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
_CLOCK = r"[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
_TIMES = (
    (r"^\d{4}-\d\d-\d\d$", pa.date32()),
    (rf"^\d{{4}}-\d\d-\d\d{_CLOCK}(Z|[+-]\d\d:?\d\d)$", _UTC),
    (rf"^\d{{4}}-\d\d-\d\d{_CLOCK}$", _LOCAL),
)
_INTEGER = r"^-?(0|[1-9]\d*)$"
_NUMBER = r"^-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?$"
_BOOLEAN = r"^(true|false|True|False|TRUE|FALSE)$"
SURE_DIGITS = 15
_DECIMAL_DIGITS = 38


@dataclass(frozen=True)
class _Numbers:
    """What the numbers of a column need: digits before and after the point, and which types keep them all."""

    digits: int = 0
    scale: int = 0
    are_integers: bool = True
    fit_int64: bool = True
    fit_float64: bool = True
    fit_decimal: bool = True

    def add(self, other: _Numbers) -> _Numbers:
        return _Numbers(
            max(self.digits, other.digits),
            max(self.scale, other.scale),
            self.are_integers and other.are_integers,
            self.fit_int64 and other.fit_int64,
            self.fit_float64 and other.fit_float64,
            self.fit_decimal and other.fit_decimal,
        )

    @property
    def type(self) -> pa.DataType:
        if self.are_integers and self.fit_int64:
            return pa.int64()
        if not self.are_integers and self.fit_float64:
            return pa.float64()
        if self.fit_decimal and self.digits + self.scale <= _DECIMAL_DIGITS:
            return pa.decimal128(max(1, self.digits + self.scale), self.scale)
        return pa.string()


class ColumnGuess:
    """The type of one column, as far as its texts are known."""

    def __init__(self, null: tuple[str, ...] = ()) -> None:
        self._null = null
        self._kind: pa.DataType | None = None
        self._numbers: _Numbers | None = None

    @property
    def is_text(self) -> bool:
        """Whether no more texts are needed: the column is text whatever follows."""
        return bool(self._kind == pa.string())

    @property
    def type(self) -> pa.DataType:
        """The type of the texts so far; text when there is none."""
        if self._numbers is not None:
            return self._numbers.type
        return self._kind or pa.string()

    def add(self, texts: pa.ChunkedArray) -> None:
        values = drop_empty(pc.utf8_trim_whitespace(texts), self._null).drop_null()
        if not len(values) or self.is_text:
            return
        numbers = measure_numbers(values)
        if numbers is not None and self._kind is None:
            self._numbers = numbers if self._numbers is None else self._numbers.add(numbers)
            return
        kind = _find_kind(values) if numbers is None and self._numbers is None else pa.string()
        self._kind = kind if self._kind in (None, kind) else pa.string()
        self._numbers = None

    def merge(self, other: ColumnGuess) -> None:
        """Take the texts of another file into account."""
        if self._numbers is not None and other._numbers is not None:
            self._numbers = self._numbers.add(other._numbers)
        elif self._numbers is None and self._kind is None:
            self._numbers, self._kind = other._numbers, other._kind
        elif (other._numbers is not None or other._kind is not None) and (
            self._numbers is not None or self._kind != other._kind
        ):
            self._numbers, self._kind = None, pa.string()


def measure_numbers(texts: pa.ChunkedArray) -> _Numbers | None:
    """What these numbers need; None when some text is no number."""
    if _all_match(texts, _INTEGER):
        digits = _longest(pc.utf8_ltrim(texts, "-"))
        is_short = digits <= 18
        return _Numbers(digits, 0, fit_int64=is_short or _can_cast(texts, pa.int64()), fit_float64=_fit_float64(texts))
    if not _all_match(texts, _NUMBER):
        return None
    parts = pc.extract_regex(texts, r"^-?(?P<whole>\d*)\.?(?P<part>\d*)(?P<power>(?:[eE].*)?)$")
    whole = pc.struct_field(parts, "whole")
    part = pc.struct_field(parts, "part")
    has_power = pc.any(pc.not_equal(pc.struct_field(parts, "power"), ""), min_count=0).as_py()
    return _Numbers(
        _longest(whole), _longest(part), are_integers=False, fit_float64=_fit_float64(texts), fit_decimal=not has_power
    )


def _fit_float64(texts: pa.ChunkedArray) -> bool:
    """Whether each number reads back from a float."""
    is_long = pc.greater(pc.utf8_length(texts), SURE_DIGITS)
    has_power = pc.match_substring_regex(texts, "[eE]")
    doubtful = pc.unique(texts.filter(pc.or_(is_long, has_power)))
    return all(reads_back(text) for text in doubtful.to_pylist())


def reads_back(text: str) -> bool:
    """Whether a number, read as a float and written again, is the same number."""
    return Decimal(repr(float(text))) == Decimal(text)


def _find_kind(texts: pa.ChunkedArray) -> pa.DataType:
    if _all_match(texts, _BOOLEAN):
        return pa.bool_()
    return find_time_type(texts)


def find_time_type(texts: pa.ChunkedArray) -> pa.DataType:
    """The type of texts that are all dates or all times as ISO 8601 writes them, else string."""
    for pattern, kind in _TIMES:
        if _all_match(texts, pattern):
            return kind if _can_cast(texts, kind) else pa.string()
    return pa.string()


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    # Most columns differ in their first text.
    first = pc.match_substring_regex(texts.slice(0, 1), pattern)
    return bool(first[0].as_py()) and bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _longest(texts: pa.ChunkedArray) -> int:
    return int(pc.max(pc.utf8_length(texts)).as_py() or 0)


def _can_cast(texts: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
        return True
    except pa.ArrowInvalid:
        return False
