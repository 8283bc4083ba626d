"""CSV: a header line with the names of the columns, then one row per line (RFC 4180).

An empty field is null and "" is the empty text. A quoted field may hold newlines. A quote inside a field that does not
start with a quote is text.

Arrow splits fields and reads values. This module finds where a record ends, because no library tells: Arrow's reader
gives no positions, which are needed to continue a file that has grown and to name the line of a bad row; and it takes
everything after an open quote for one value. DuckDB counts lines and bytes, but reads only whole files, and takes a
quote that is never closed for text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import UNFIT
from strandline.jobs.ingest.columns import cast_columns, misfit_reason, read_type
from strandline.model.rows import check_rows

_QUOTE, _NEWLINE, _RETURN = ord('"'), ord("\n"), ord("\r")


class Delimited:
    """Rows of `schema` from delimited text whose header was `names`."""

    def __init__(self, schema: pa.Schema, names: list[str], delimiter: str = ",") -> None:
        self._schema = schema
        self.names = names
        self._delimiter = delimiter
        self._records = Records(delimiter)
        for name in names:
            if pt.is_nested(schema.field(name).type):
                raise Invalid(
                    f"column {name!r} is {schema.field(name).type}, which cannot be read from CSV",
                    hint="Load it from JSON lines or Parquet.",
                    column=name,
                )

    def cut(self, data: bytes) -> int:
        return self._records.cut(data)

    def records(self, data: bytes) -> list[tuple[int, bytes]]:
        found, start, line = [], 0, 0
        for end in self._records.ends(data):
            if data[start:end].strip(b"\r\n"):
                found.append((line, data[start:end]))
            line += data.count(b"\n", start, end)
            start = end
        return found

    def convert(self, data: bytes) -> pa.Table:
        """The rows of whole records, checked; raises one of `UNFIT` when any of them is bad."""
        return self._convert_columns(data, self._schema)

    def _convert_columns(self, data: bytes, schema: pa.Schema) -> pa.Table:
        if not data or (data.isspace() and not data.strip(b"\r\n")):
            return schema.empty_table()
        if self._records.is_open(data):
            # Arrow would take everything after it for one value.
            raise Invalid("a quote is never closed")
        wanted = [name for name in self.names if name in schema.names]
        table = pv.read_csv(
            pa.BufferReader(data),
            read_options=pv.ReadOptions(column_names=self.names, block_size=len(data) + 1),
            parse_options=pv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=pv.ConvertOptions(
                column_types={name: read_type(schema.field(name).type) for name in wanted},
                include_columns=wanted,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return next(check_rows(cast_columns(table, schema), schema))

    def explain(self, record: bytes) -> tuple[str | None, str]:
        """The column and the reason why a record is bad."""
        if self._records.is_open(record):
            return None, "a quote is never closed"
        try:
            fields = self._records.fields(record)
        except UnicodeDecodeError as error:
            return None, f"byte {error.start + 1} of the line is not UTF-8"
        if len(fields) != len(self.names):
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            return None, f"the line has {count}; the header has {len(self.names)}"
        for name, text in zip(self.names, fields, strict=True):
            field = self._schema.field(name)
            try:
                self._convert_columns(record, pa.schema([field]))
            except UNFIT:
                return name, misfit_reason(text if text or field.nullable else None, field)
        return None, "the line does not fit the table"


class Records:
    """Where the records of delimited text begin and end."""

    def __init__(self, delimiter: str) -> None:
        sign = re.escape(delimiter.encode())
        self._breaks = np.array([delimiter.encode()[0], _NEWLINE, _RETURN, _QUOTE], np.uint8)
        # A quoted part, only at the start of the field, and the text outside of it.
        self._field = re.compile(
            rb'(?:"(?P<quoted>[^"]*+(?:""[^"]*+)*+)(?:"|(?P<open>\Z)))?(?P<plain>[^' + sign + rb"\n]*+)"
        )

    def cut(self, data: bytes) -> int:
        """Where the last complete record in `data` ends; 0 when none is complete."""
        if b'"' not in data:
            return data.rfind(b"\n") + 1
        quotes = self._find_regular_quotes(data)
        if quotes is None:
            return max(self.ends(data, whole=True), default=0)
        end = data.rfind(b"\n")
        while end >= 0 and np.searchsorted(quotes, end) % 2:
            end = data.rfind(b"\n", 0, end)
        return end + 1

    def is_open(self, data: bytes) -> bool:
        """Whether a quoted field does not end in `data`."""
        if b'"' not in data:
            return False
        quotes = self._find_regular_quotes(data)
        if quotes is not None:
            return len(quotes) % 2 == 1
        start = max((end for end in self.ends(data) if end < len(data)), default=0)
        return self._find_end(data, start)[2]

    def _find_regular_quotes(self, data: bytes) -> npt.NDArray[np.intp] | None:
        """The positions of the quotes, if each opens or closes a field or is half of a doubled quote: then it is enough
        to count them. None when there are other quotes."""
        text = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        before, after = quotes[0::2] - 1, quotes[1::2] + 1
        before, after = before[before >= 0], after[after < len(text)]
        is_regular = np.isin(text[before], self._breaks).all() and np.isin(text[after], self._breaks).all()
        return quotes if is_regular else None

    def ends(self, data: bytes, *, whole: bool = False) -> Iterator[int]:
        """The end of each record, its newline included; `whole` leaves out a last record that may be incomplete."""
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1
            is_whole = end > 0
            if data.find(b'"', start, end or len(data)) >= 0:
                end, is_whole, _ = self._find_end(data, start)
            if is_whole or not whole:
                yield end or len(data)
            start = end or len(data)

    def _find_end(self, data: bytes, at: int) -> tuple[int, bool, bool]:
        """Where the record that starts at `at` ends, whether it is complete, and whether a quote is open there."""
        while True:
            field = self._field.match(data, at)
            assert field is not None
            at = field.end()
            if at >= len(data):
                return at, False, field.group("open") is not None
            at += 1
            if data[at - 1] == _NEWLINE:
                return at, True, False

    def fields(self, record: bytes) -> list[str]:
        """The texts of one record's fields."""
        fields, at, record = [], 0, record.rstrip(b"\r\n")
        while True:
            field = self._field.match(record, at)
            assert field is not None
            quoted, plain = field.group("quoted") or b"", field.group("plain")
            fields.append((quoted.replace(b'""', b'"') + plain).decode())
            at = field.end() + 1
            if at > len(record):
                return fields
