"""Read JSON lines: tables of good rows, and the bad rows between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa

from strandline.jobs.ingest.bad_rows import UNFIT, BadRow, sift
from strandline.jobs.ingest.blocks import Block, Reading

_AHEAD = 2


class Format(Protocol):
    """A text format."""

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


def read_text(reading: Reading, form: Format) -> Iterator[pa.Table | BadRow]:
    """The rows of a reading: good ones as tables, bad ones with their lines."""
    for block, table in _convert_ahead(reading.blocks(form.cut), form):
        if table is not None:
            yield table
        else:
            yield from _convert_singly(block, form)


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
            yield BadRow(block.line + line, column, reason, text)
