"""Where the records and fields of CSV text begin and end.

Arrow splits fields, but no library tells where a record ends: Arrow's reader gives no positions, which are needed to
continue a file that has grown and to name the line of a bad row; and it takes everything after an open quote for one
value. DuckDB counts lines and bytes, but reads only whole files, and takes a quote that is never closed for text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from strandline.jobs.ingest.dialect import Dialect

_NEWLINE, _RETURN = ord("\n"), ord("\r")

Places = npt.NDArray[np.intp]


def spaced_field(delimiter: str, quote: str) -> re.Pattern[bytes]:
    """A quoted field as groups: the spaces before it, its text, the quote that closes it, the spaces after that (None
    when other text follows)."""
    sign, mark = re.escape(delimiter.encode()), re.escape(quote.encode())
    pattern = rb"(?:\A|(?<=[%b\r\n]))( *+)%b((?:[^%b]++|%b%b)*+)(?:(%b)( *+(?=[%b\r\n]|\Z))?|(?P<open>\Z))"
    return re.compile(pattern % (sign, mark, mark, mark, mark, mark, sign))


class Records:
    """Where the records of CSV text begin and end. A newline or a carriage return ends one, unless it is quoted."""

    def __init__(self, dialect: Dialect) -> None:
        self._delimiter = dialect.delimiter.encode()
        self._quote = dialect.quote.encode()
        self._escape = dialect.escape.encode()
        self._escaped = re.compile(re.escape(self._escape) + rb"(.)", re.S) if dialect.escape else None
        sign, quote = re.escape(self._delimiter), re.escape(self._quote)
        self._breaks = np.array([ord(dialect.delimiter), _NEWLINE, _RETURN, *self._quote], np.uint8)
        # A quoted part, only at the start of the field, and the text outside of it.
        quoted = rb"(?:%b(?P<quoted>[^%b]*+(?:%b%b[^%b]*+)*+)(?:%b|(?P<open>\Z)))?" % ((quote,) * 6) if quote else b""
        self._field = re.compile(quoted + rb"(?P<plain>[^%b\r\n]*+)" % sign)
        self._spaced = spaced_field(dialect.delimiter, dialect.quote) if dialect.spaced_quotes else None

    def cut(self, data: bytes) -> int:
        """Where the last complete record in `data` ends; 0 when none is complete."""
        data = self._mask_escapes(data)
        if not self._quote or self._quote not in data:
            return data.rfind(b"\n") + 1
        quotes = self._find_regular_quotes(data)
        if quotes is None:
            ends = [end for end, is_whole, _ in self._walk(data) if is_whole and data[end - 1] == _NEWLINE]
            return max(ends, default=0)
        end = data.rfind(b"\n")
        while end >= 0 and np.searchsorted(quotes, end) % 2:
            end = data.rfind(b"\n", 0, end)
        return end + 1

    def ends(self, data: bytes) -> Places:
        """The end of each record in `data`, its newline included. The last one may have none."""
        data = self._mask_escapes(data)
        if self._quote and self._quote in data:
            quotes = self._find_regular_quotes(data)
            if quotes is None:
                return np.array([end for end, _, _ in self._walk(data)], np.intp)
        else:
            quotes = np.empty(0, np.intp)
        text = np.frombuffer(data, np.uint8)
        is_end = text == _NEWLINE
        if b"\r" in data:
            is_return = text == _RETURN
            is_return[:-1] &= ~is_end[1:]
            is_end = is_end | is_return
        ends = np.flatnonzero(is_end)
        if len(quotes):
            ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        ends = ends + 1
        return ends if len(data) == (ends[-1] if len(ends) else 0) else np.append(ends, len(data))

    def find_open(self, data: bytes) -> int | None:
        """Where the last record begins, if it has a quoted field that does not end; else None."""
        data = self._mask_escapes(data)
        if not self._quote or self._quote not in data:
            return None
        quotes = self._find_regular_quotes(data)
        if quotes is not None and len(quotes) % 2 == 0:
            return None
        start = 0
        for end, _, is_open in self._walk(data):
            if is_open:
                return start
            start = end
        return None

    def _mask_escapes(self, data: bytes) -> bytes:
        """`data` with an escaped quote as a doubled one, no other escapes, and spaces around a quoted field inside of
        its quotes; places stay the same."""
        if self._escaped is not None:
            data = self._escaped.sub(lambda found: self._quote * 2 if found[1] == self._quote else b"__", data)
        if self._spaced is not None:
            data = self._spaced.sub(lambda f: self._quote + f[1] + f[2] + (f[4] or b"") + (f[3] or b""), data)
        return data

    def unescape(self, data: bytes) -> bytes:
        """`data` with doubled quotes instead of escaped ones, without other escapes, and without spaces around quoted
        fields, as Arrow reads it."""
        if self._escaped is not None:
            known = {self._quote: self._quote * 2, self._escape: self._escape}
            data = self._escaped.sub(lambda found: known.get(found[1], found[0]), data)
        if self._spaced is not None:
            data = self._spaced.sub(lambda f: self._quote + f[2] + (f[3] or b""), data)
        return data

    def _find_regular_quotes(self, data: bytes) -> Places | None:
        """The positions of the quotes, if each opens or closes a field or is half of a doubled quote: then it is enough
        to count them. None when there are other quotes."""
        text = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(text == self._quote[0])
        before, after = quotes[0::2] - 1, quotes[1::2] + 1
        before, after = before[before >= 0], after[after < len(text)]
        is_regular = np.isin(text[before], self._breaks).all() and np.isin(text[after], self._breaks).all()
        return quotes if is_regular else None

    def _walk(self, data: bytes) -> Iterator[tuple[int, bool, bool]]:
        """For each record: its end, whether it has a line end, and whether a quote is open there."""
        start = 0
        while start < len(data):
            at = start
            while True:
                field = self._field.match(data, at)
                assert field is not None
                at = field.end()
                if at >= len(data):
                    yield at, False, bool(self._quote) and field.group("open") is not None
                    break
                at += 1
                if data[at - 1] in b"\r\n":
                    at += data[at - 1] == _RETURN and data[at : at + 1] == b"\n"
                    yield at, True, False
                    break
            start = at

    def fields(self, record: bytes) -> list[bytes]:
        """The texts of one record's fields."""
        fields, at, record = [], 0, self.unescape(record.rstrip(b"\r\n"))
        while True:
            field = self._field.match(record, at)
            assert field is not None
            quoted = (field.group("quoted") or b"") if self._quote else b""
            fields.append(quoted.replace(self._quote * 2, self._quote) + field.group("plain"))
            at = field.end() + 1
            if at > len(record):
                return fields
