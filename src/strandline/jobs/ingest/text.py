"""Read text files, CSV or JSON lines: tables of good rows, and the bad rows between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import UNFIT, BadRow, sift
from strandline.jobs.ingest.blocks import Block, Reading
from strandline.jobs.ingest.csv import Delimited, Records
from strandline.jobs.ingest.jsonl import JsonLines
from strandline.jobs.ingest.source import Source

_HEADER_BYTES = 1 << 20
_AHEAD = 2


class Format(Protocol):
    """A text format. `names` are the columns of a CSV record, in order."""

    @property
    def names(self) -> list[str] | None: ...

    def cut(self, data: bytes) -> int:
        """Where the last whole record ends; 0 when none does."""
        ...

    def records(self, data: bytes) -> list[tuple[int, bytes]]:
        """Each record, with the number of newlines before it."""
        ...

    def convert(self, data: bytes) -> pa.Table:
        """The rows of whole records; raises one of `UNFIT` when any is bad."""
        ...

    def explain(self, record: bytes) -> tuple[str | None, str]:
        """The column and the reason why a record is bad."""
        ...


@dataclass(frozen=True)
class Header:
    """A CSV file's first record."""

    names: list[str]
    data: bytes


def delimiter_of(source: Source, given: str | None) -> str:
    if given is None:
        return "\t" if source.path.removesuffix(".gz").lower().endswith(".tsv") else ","
    if len(given) != 1 or given in '"\r\n' or not given.isascii():
        raise Invalid(f"delimiter is {given!r}; expected one character")
    return given


def header_of(source: Source, delimiter: str) -> Header | None:
    """The header, or None when the file is empty."""
    records = Records(delimiter)

    def first(data: bytes) -> int:
        return next(records.ends(data, whole=True), 0)

    for block in Reading.whole(source).blocks(first, block_bytes=_HEADER_BYTES):
        try:
            names = records.fields(block.data)
        except UnicodeDecodeError as error:
            raise Invalid(f"{source.uri}, line 1: the header is not UTF-8", file=source.uri, line=1) from error
        others = [sign for sign in ";\t," if sign != delimiter and sign in names[0]]
        if len(names) == 1 and others:
            sign = "$'\\t'" if others[0] == "\t" else f"'{others[0]}'"
            raise Invalid(
                f"{source.uri}, line 1: the header is one column, {names[0]!r}; expected {delimiter!r} between columns",
                hint=f"Name the delimiter: --delimiter {sign}",
                file=source.uri,
                line=1,
                column=names[0],
            )
        for name in names:
            if names.count(name) > 1:
                raise Invalid(
                    f"{source.uri}, line 1: the header names {name!r} twice", file=source.uri, line=1, column=name
                )
        return Header(names, block.data)
    return None


def format_of(source: Source, schema: pa.Schema, delimiter: str | None) -> tuple[Format, bytes]:
    """The format of a file, and the bytes of its header, which is checked against the table."""
    if source.kind == "jsonl":
        return JsonLines(schema), b""
    sign = delimiter_of(source, delimiter)
    header = header_of(source, sign)
    if header is None:
        return Delimited(schema, [], sign), b""
    for name in header.names:
        if name not in schema.names:
            raise Invalid(
                f"{source.uri}, line 1: the table has no column {name!r}",
                hint=f"Columns: {', '.join(schema.names)}",
                file=source.uri,
                line=1,
                column=name,
            )
    for field in schema:
        if not field.nullable and field.name not in header.names:
            raise Invalid(
                f"{source.uri}, line 1: the header lacks {field.name!r}, for which the table requires values",
                file=source.uri,
                line=1,
                column=field.name,
            )
    return Delimited(schema, header.names, sign), header.data


def read_text(reading: Reading, form: Format, header: bytes) -> Iterator[pa.Table | BadRow]:
    """The rows of a reading: good ones as tables, bad ones with their lines."""
    for block, table in _convert_ahead(_skip_header(reading, form, header), form):
        if table is not None:
            yield table
        else:
            yield from _convert_singly(block, form)


def _skip_header(reading: Reading, form: Format, header: bytes) -> Iterator[Block]:
    for block in reading.blocks(form.cut):
        if header and block.line == 1 and not reading.start:
            block = Block(block.data.removeprefix(header), 1 + header.count(b"\n"))
        yield block


def _convert_ahead(blocks: Iterator[Block], form: Format) -> Iterator[tuple[Block, pa.Table | None]]:
    """Each block with its rows, or with None when some rows are bad. Other threads convert the next blocks while the
    caller takes the rows."""
    waiting: deque[tuple[Block, Future[pa.Table | None]]] = deque()
    with ThreadPoolExecutor(_AHEAD) as pool:
        for block in blocks:
            waiting.append((block, pool.submit(_try_convert, form, block.data)))
            if len(waiting) > _AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        for last, future in waiting:
            yield last, future.result()


def _try_convert(form: Format, data: bytes) -> pa.Table | None:
    try:
        return form.convert(data)
    except UNFIT:
        return None


def _convert_singly(block: Block, form: Format) -> Iterator[pa.Table | BadRow]:
    records = form.records(block.data)

    def convert(start: int, stop: int) -> pa.Table:
        return form.convert(b"".join(record for _, record in records[start:stop]))

    for found in sift(len(records), convert):
        if isinstance(found, pa.Table):
            yield found
        else:
            line, record = records[found]
            column, reason = form.explain(record)
            text = record.decode(errors="backslashreplace").rstrip("\r\n")
            yield BadRow(block.line + line, column, reason, text, form.names)
