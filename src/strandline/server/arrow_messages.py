"""The messages of an Arrow stream as they are written, before anything is made of them.

They are flatbuffers tables: see Schema.fbs and Message.fbs of the Arrow format. Tables and texts of one message may be
shared, so that a few kilobytes describe millions of fields: whatever is looked at here is counted.
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


class Flat:
    """A flatbuffers table, of which fields are asked for by their number."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - self._read("<i", place)
        self._size = self._read("<H", self._fields)

    @staticmethod
    def header(metadata: Any) -> Flat:
        """The content of a message."""
        return Flat.message(metadata).table(2)

    @staticmethod
    def message(metadata: Any) -> Flat:
        data = memoryview(metadata)
        return Flat(data, struct.unpack_from("<I", data, 0)[0])

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self._at(field)
        return default if place is None else self._read(form, place)

    def has(self, field: int) -> bool:
        return self._at(field) is not None

    def table(self, field: int) -> Flat:
        return Flat(self._data, self._target(field))

    def tables(self, field: int) -> Iterator[Flat]:
        """A vector of tables."""
        if self.has(field):
            start = self._target(field) + 4
            for place in range(start, start + 4 * self.length(field), 4):
                yield Flat(self._data, place + self._read("<I", place))

    def length(self, field: int) -> int:
        """How many items a vector has, or a text bytes."""
        return self._read("<I", self._target(field)) if self.has(field) else 0

    def text(self, field: int) -> bytes:
        start = self._target(field) + 4 if self.has(field) else 0
        return bytes(self._data[start : start + self.length(field)])

    def pairs(self, field: int) -> Pairs:
        """A vector of structs of two int64."""
        if not self.has(field):
            return np.zeros((0, 2), np.int64)
        start, count = self._target(field) + 4, self.length(field)
        return np.frombuffer(self._data[start : start + 16 * count], np.int64).reshape(-1, 2)

    def _read(self, form: str, place: int) -> int:
        if place < 0:
            raise struct.error("an offset points out of the message")
        return int(struct.unpack_from(form, self._data, place)[0])

    def _at(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._read("<H", self._fields + entry) if entry < self._size else 0
        return self._place + offset if offset else None

    def _target(self, field: int) -> int:
        place = self._at(field)
        if place is None:
            raise malformed("the body is not an Arrow IPC stream: a message without content")
        return place + self._read("<I", place)


def schema_size(metadata: Any, *, most_fields: int, most_bytes: int) -> tuple[int, int]:
    """How many fields a schema has, at all depths, and how many bytes their texts take; counting ends where one of the
    two is passed. Raises `UnicodeDecodeError` for a name that is no text."""
    waiting = [Flat.header(metadata).tables(1)]
    fields, size = 0, texts_size(Flat.header(metadata), 2, most_bytes)
    while waiting and fields <= most_fields and size <= most_bytes:
        field = next(waiting[-1], None)
        if field is None:
            waiting.pop()
            continue
        fields += 1
        size += len(field.text(0).decode()) + _type_size(field) + texts_size(field, 6, most_bytes)
        waiting.append(field.tables(5))
    return fields, size


def texts_size(table: Flat, field: int, most: int) -> int:
    """How many bytes the keys and values of metadata take, or more than `most`."""
    size = 0
    for pair in table.tables(field):
        size += pair.length(0) + pair.length(1) + 2
        if size > most:
            break
    return size


def _type_size(field: Flat) -> int:
    kind = field.number(2, "<B")
    if kind == _TIMESTAMP:
        return field.table(3).length(1)
    return 4 * field.table(3).length(1) if kind == _UNION else 0
