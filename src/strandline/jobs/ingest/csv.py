"""CSV: one row per line, its fields separated by a sign, quoted where they need it (RFC 4180).

An empty field is null and "" is the empty text, or null where the column does not hold text. A quoted field may hold
newlines. A quote inside a field that does not start with a quote is text.

Arrow splits a block into columns of text, which become values a column at a time. Only for a block with a bad row are
the places of its records found, to name the line of each bad row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import UNFIT, BadRow
from strandline.jobs.ingest.blocks import Block
from strandline.jobs.ingest.cells import cast_texts, find_unfit, reason_for
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.records import Records
from strandline.model.rows import check_rows


@dataclass(frozen=True)
class _Record:
    """A record: its line, counted from the start of its block, and its bytes."""

    line: int
    data: bytes


class Delimited:
    """Rows of `schema` from CSV text whose fields are the columns `names`, in that order."""

    def __init__(self, schema: pa.Schema, names: Sequence[str], dialect: Dialect) -> None:
        self._schema = schema
        self.names = list(names)
        self._dialect = dialect
        self._records = Records(dialect)
        for name in names:
            if pt.is_nested(schema.field(name).type):
                raise Invalid(
                    f"column {name!r} is {schema.field(name).type}, which cannot be read from CSV",
                    hint="Load it from JSON lines or Parquet.",
                    column=name,
                )

    def cut(self, data: bytes) -> int:
        return self._records.cut(data)

    def read(self, block: Block) -> Iterator[pa.Table | BadRow]:
        """The bad rows of whole records by their lines, and the good ones in their order."""
        try:
            yield self.convert(block.data)
        except UNFIT:
            found = list(self._sift(block))
            yield from sorted((one for one in found if isinstance(one, BadRow)), key=lambda one: one.line)
            yield from (one for one in found if isinstance(one, pa.Table))

    def convert(self, data: bytes) -> pa.Table:
        """The rows of whole records, checked; raises one of `UNFIT` when any of them is bad."""
        if self._records.find_open(data) is not None:
            # Arrow would take everything after it for one value.
            raise Invalid("a quote is never closed")
        if self._dialect.is_comment_said and self._dialect.comment.encode() in data:
            data = b"".join(record.data for record in self._find_records(data))
        return self._build_rows(self.split(data))

    def split(self, data: bytes, wrong: list[int] | None = None) -> pa.Table:
        """The texts of whole records, in columns named by their place. Records with a wrong number of fields are left
        out, and their numbers are added to `wrong`; without it they are an error."""
        places = [str(at) for at in range(len(self.names))]
        if not data or not data.strip(b"\r\n"):
            return pa.table({place: pa.array([], pa.string()) for place in places})

        def leave_out(row: pv.InvalidRow) -> str:
            assert wrong is not None
            wrong.append(row.number - 1)
            return "skip"

        return pv.read_csv(
            pa.BufferReader(self._records.unescape(data)),
            read_options=pv.ReadOptions(column_names=places, block_size=len(data) + 1, use_threads=False),
            parse_options=pv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char=self._dialect.quote or False,
                newlines_in_values=True,
                invalid_row_handler=None if wrong is None else leave_out,
            ),
            convert_options=pv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.string()),
                null_values=["", *self._dialect.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _build_rows(self, texts: pa.Table) -> pa.Table:
        columns = {}
        for at, name in enumerate(self.names):
            columns[name] = cast_texts(texts.column(at), self._schema.field(name), self._dialect.null)
        return next(check_rows(pa.table(columns), self._schema))

    def _sift(self, block: Block) -> Iterator[pa.Table | BadRow]:
        data, start = block.data, self._records.find_open(block.data)
        if start is not None:
            line = block.data.count(b"\n", 0, start)
            yield self._bad_row(block, _Record(line, block.data[start:]), None, "a quote is never closed")
            data = block.data[:start]
        records = self._find_records(data)
        if not _is_utf8(data):
            faulty = [record for record in records if not _is_utf8(record.data)]
            for record in faulty:
                column, reason = self._explain_bytes(record.data)
                yield self._bad_row(block, record, column, reason)
            broken = {id(record) for record in faulty}
            records = [record for record in records if id(record) not in broken]
        yield from self._sift_records(block, records)

    def _sift_records(self, block: Block, records: list[_Record]) -> Iterator[pa.Table | BadRow]:
        wrong: list[int] = []
        data = b"".join(record.data for record in records)
        texts = self.split(data, wrong)
        if wrong:
            mended = {at: self._mend(records[at].data) for at in wrong if at < len(records)}
            if any(mend is not None for mend in mended.values()):
                data = b"".join(mended.get(at) or record.data for at, record in enumerate(records))
                wrong = []
                texts = self.split(data, wrong)
        if texts.num_rows + len(wrong) != len(records):
            # Arrow sees other records here.
            if len(records) == 1:
                yield self._bad_row(block, records[0], None, "the line cannot be split into fields")
            elif records:
                middle = len(records) // 2
                yield from self._sift_records(block, records[:middle])
                yield from self._sift_records(block, records[middle:])
            return
        for at in wrong:
            if not self._is_comment(records[at].data):
                yield self._bad_row(block, records[at], None, *self._explain_count(records[at].data))
        left_out = set(wrong)
        fitting = [record for at, record in enumerate(records) if at not in left_out]
        yield from self._sift_values(block, fitting, texts)

    def _sift_values(self, block: Block, records: list[_Record], texts: pa.Table) -> Iterator[pa.Table | BadRow]:
        is_bad = np.zeros(texts.num_rows, bool)
        for at, name in enumerate(self.names):
            field = self._schema.field(name)
            mask = find_unfit(texts.column(at), field, self._dialect.null)
            if mask is None:
                continue
            found = np.flatnonzero(mask.to_numpy())
            # A row is named once, by its first bad column.
            for row in found[~is_bad[found]].tolist():
                reason = reason_for(texts.column(at)[row].as_py(), field, self._dialect.null)
                yield self._bad_row(block, records[row], name, reason)
            is_bad[found] = True
        yield self._build_rows(texts.filter(pa.array(~is_bad)) if is_bad.any() else texts)

    def _find_records(self, data: bytes) -> list[_Record]:
        """The records without blank lines and comments."""
        found, start, line = [], 0, 0
        is_comment = self._dialect.comment.encode() if self._dialect.is_comment_said else None
        blank = b"\r\n" if self._dialect.delimiter == " " or len(self.names) < 2 else b" \r\n"
        for end in self._records.ends(data).tolist():
            record = data[start:end]
            if record.strip(blank) and not (is_comment and record.startswith(is_comment)):
                found.append(_Record(line, record if record.endswith(b"\n") else record.rstrip(b"\r") + b"\n"))
            line += record.count(b"\n")
            start = end
        return found

    def _mend(self, record: bytes) -> bytes | None:
        """A record with the right number of fields, if nothing is lost: without empty fields at its end that are too
        many, or with fields that are missing when these are to be filled."""
        text, sign = record.rstrip(b"\r\n"), self._dialect.delimiter.encode()
        missing = len(self.names) - len(self._records.fields(record))
        if missing > 0:
            if self._dialect.short_rows != "fill" or self._is_comment(record):
                return None
            return text + sign * missing + b"\n"
        return text[:missing] + b"\n" if missing < 0 and text.endswith(sign * -missing) else None

    def _is_comment(self, record: bytes) -> bool:
        return bool(self._dialect.comment) and record.startswith(self._dialect.comment.encode())

    def _bad_row(self, block: Block, record: _Record, column: str | None, reason: str, hint: str = "") -> BadRow:
        text = record.data.decode(errors="backslashreplace").rstrip("\r\n")
        return BadRow(block.line + record.line, column, reason, text, self.names, self._dialect.to_text(), hint)

    def _explain_count(self, record: bytes) -> tuple[str, str]:
        """The reason, and what would let the row in."""
        found, expected = len(self._records.fields(record)), len(self.names)
        reason = f"the line has {'1 field' if found == 1 else f'{found} fields'}; expected {expected}"
        return reason, "If its last columns have no value: --short-rows fill" if found < expected else ""

    def _explain_bytes(self, record: bytes) -> tuple[str | None, str]:
        """The column and the reason of a record that is not UTF-8."""
        for at, field in enumerate(self._records.fields(record)):
            if not _is_utf8(field) and at < len(self.names):
                shown = field.decode(errors="backslashreplace")[:60]
                return self.names[at], f"'{shown}' is not UTF-8; if the file has another encoding, name it: --encoding"
        return None, "the line is not UTF-8; if the file has another encoding, name it: --encoding"

    def explain(self, record: bytes) -> tuple[str | None, str]:
        """The column and the reason why a record is bad."""
        for found in self._sift(Block(record, 1)):
            if isinstance(found, BadRow):
                return found.column, found.reason
        return None, "the line does not fit the table"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
        return True
    except UnicodeDecodeError:
        return False
