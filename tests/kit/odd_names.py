"""Names of columns that some engine, language or format could stumble over, and rows of a table that has them all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

NUMBER = "Order Date"
TEXT = "a.b"
ODD = [
    NUMBER, TEXT, "c,d", "it's", 'say "hi"', "back`tick", "semi;colon", "new\nline", "tab\there", "_id", "_seq2", "😀",
    "x" * 300, "100%", "why?", "star*", "a=b", "a/b", " lead", "trail ", "{b}", "(p)", "[s]", "select", "file_index",
    "filename", "file_row_number", "_metadata", "_version", "_name", "back\\slash", "$1", "a:b", "-", "#", "é", "1st",
    "\u200b", "<t>", "a->b", "null", "true", "_deleted", "_file",
]  # fmt: skip
SCHEMA = pa.schema([(NUMBER, pa.int64()), *((name, pa.string()) for name in ODD[1:])])
KEY = [NUMBER, TEXT]


def odd_rows(start: int, stop: int) -> list[dict[str, Any]]:
    """Rows that have the same values whenever they are made, another one in each column."""
    return [{name: f"{row}-{at}" if at else row for at, name in enumerate(ODD)} for row in range(start, stop)]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row[NUMBER])


def quoted(name: str) -> str:
    """A name as people write it in SQL."""
    return '"' + name.replace('"', '""') + '"'
