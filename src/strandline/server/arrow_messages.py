"""The messages of an Arrow stream, read without decoding the stream.

They are flatbuffers tables: see Schema.fbs and Message.fbs of the Arrow format. Parts of one message may share tables
and texts, so a few kilobytes can describe millions of fields. So everything that is read here is counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from strandline.sinks.forward.refusal import malformed

Pairs = npt.NDArray[np.int64]

_TIMESTAMP, _UNION = 10, 14


class FlatTable:
    """A flatbuffers table. Fields are read by their number."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - self._read("<i", place)
        self._size = self._read("<H", self._fields)

    @staticmethod
    def header(metadata: Any) -> FlatTable:
        """The content of a message."""
        return FlatTable.message(metadata).table(2)

    @staticmethod
    def message(metadata: Any) -> FlatTable:
        data = memoryview(metadata)
        return FlatTable(data, struct.unpack_from("<I", data, 0)[0])

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self._find_field(field)
        return default if place is None else self._read(form, place)

    def has(self, field: int) -> bool:
        return self._find_field(field) is not None

    def table(self, field: int) -> FlatTable:
        return FlatTable(self._data, self._follow_offset(field))

    def tables(self, field: int) -> Iterator[FlatTable]:
        """A vector of tables."""
        if self.has(field):
            start = self._follow_offset(field) + 4
            for place in range(start, start + 4 * self.length(field), 4):
                yield FlatTable(self._data, place + self._read("<I", place))

    def length(self, field: int) -> int:
        """The number of items of a vector, or of bytes of a text."""
        return self._read("<I", self._follow_offset(field)) if self.has(field) else 0

    def text(self, field: int) -> bytes:
        start = self._follow_offset(field) + 4 if self.has(field) else 0
        return bytes(self._data[start : start + self.length(field)])

    def pairs(self, field: int) -> Pairs:
        """A vector of structs of two int64."""
        if not self.has(field):
            return np.zeros((0, 2), np.int64)
        start, count = self._follow_offset(field) + 4, self.length(field)
        return np.frombuffer(self._data[start : start + 16 * count], np.int64).reshape(-1, 2)

    def _read(self, form: str, place: int) -> int:
        if place < 0:
            raise struct.error("an offset points out of the message")
        return int(struct.unpack_from(form, self._data, place)[0])

    def _find_field(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._read("<H", self._fields + entry) if entry < self._size else 0
        return self._place + offset if offset else None

    def _follow_offset(self, field: int) -> int:
        place = self._find_field(field)
        if place is None:
            raise malformed("the body is not an Arrow IPC stream: a message without content")
        return place + self._read("<I", place)


def schema_size(metadata: Any, *, most_fields: int, most_bytes: int) -> tuple[int, int]:
    """The number of fields of a schema, at all depths, and the bytes of their texts. Counting stops when a limit is
    passed. Raises `UnicodeDecodeError` for a name that is not UTF-8."""
    waiting = [FlatTable.header(metadata).tables(1)]
    fields, size = 0, texts_size(FlatTable.header(metadata), 2, most_bytes)
    while waiting and fields <= most_fields and size <= most_bytes:
        field = next(waiting[-1], None)
        if field is None:
            waiting.pop()
            continue
        fields += 1
        size += len(field.text(0).decode()) + _type_size(field) + texts_size(field, 6, most_bytes)
        waiting.append(field.tables(5))
    return fields, size


def texts_size(table: FlatTable, field: int, most: int) -> int:
    """The bytes of the keys and values of metadata; counting stops after `most`."""
    size = 0
    for pair in table.tables(field):
        size += pair.length(0) + pair.length(1) + 2
        if size > most:
            break
    return size


def _type_size(field: FlatTable) -> int:
    kind = field.number(2, "<B")
    if kind == _TIMESTAMP:
        return field.table(3).length(1)
    return 4 * field.table(3).length(1) if kind == _UNION else 0
