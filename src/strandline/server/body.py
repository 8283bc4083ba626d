"""A request's body: taken in as a stream up to a limit, then decoded into rows of a table's columns."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pyarrow as pa

from strandline.model.change import SEQ, VNODE
from strandline.server import arrow, ndjson
from strandline.server.memory_cost import Weight, rows_bytes, slots
from strandline.sinks.forward.protocol import ARROW_TYPE, INDEX, NDJSON_TYPE
from strandline.sinks.forward.refusal import malformed, too_large, too_slow, unsupported

PLACE = (VNODE, SEQ, INDEX)
_TIMEOUT_S = 300.0
_PIECE_BYTES = 1 << 20
_AHEAD_BYTES = 1 << 10
_MEMBERS = 10_000


@dataclass(frozen=True)
class Form:
    """How a body is written."""

    is_arrow: bool
    is_gzip: bool

    @property
    def name(self) -> str:
        return f"{ARROW_TYPE if self.is_arrow else NDJSON_TYPE} {'gzip' if self.is_gzip else 'identity'}"

    @staticmethod
    def of(content_type: str | None, encoding: str | None) -> Form:
        kind = (content_type or "").partition(";")[0].strip().lower()
        if kind not in (ARROW_TYPE, NDJSON_TYPE):
            raise unsupported(f"the body is {kind or 'of no type'}", hint=f"Send {ARROW_TYPE} or {NDJSON_TYPE}.")
        coding = (encoding or "identity").strip().lower()
        if coding not in ("identity", "gzip"):
            raise unsupported(f"the body is encoded with {coding!r}", hint="Send it plain or with gzip.")
        return Form(kind == ARROW_TYPE, coding == "gzip")


@dataclass(frozen=True)
class Body:
    """A body of `count` rows, weighed but for what depends on the table."""

    count: int
    weight: Weight
    _data: pa.Table | bytes | bytearray

    @property
    def is_typed(self) -> bool:
        """Whether the body says of what types its columns are."""
        return isinstance(self._data, pa.Table)

    def rows(self, wanted: pa.Schema) -> pa.Table:
        """The rows, with columns in the types in which they came: Arrow as it is, lines of JSON in those of `wanted`.
        `Invalid` names the row and the column of anything that JSON says and `wanted` does not hold."""
        if isinstance(self._data, pa.Table):
            names = set(self._data.column_names)
            self.weight.add(rows_bytes(self.count, slots(pa.schema([f for f in wanted if f.name not in names]))))
            return self._data
        return ndjson.read_lines(self._data, wanted, self.weight)


def decode(data: bytes | bytearray, form: Form, weight: Weight) -> Body:
    """What a body holds; 413 as soon as it weighs too much."""
    weight.add(len(data))
    plain = _unzipped(data, weight) if form.is_gzip else data
    if form.is_arrow:
        table = arrow.read_stream(plain, weight)
        return Body(table.num_rows, weight, table)
    return Body(ndjson.count_lines(plain, weight), weight, plain)


async def received(stream: AsyncIterator[bytes], *, most: int, hold: Callable[[int], None]) -> bytearray:
    """All of a body, or 413 as soon as it is too large. `hold` is told how much is held, and may refuse it."""
    data = bytearray()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            async for piece in stream:
                check_length(len(data) + len(piece), most)
                data += piece
                hold(len(data))
    except TimeoutError as error:
        raise too_slow(f"the body did not arrive within {_TIMEOUT_S:.0f} s") from error
    return data


async def passed(stream: AsyncIterator[bytes]) -> None:
    """Let a body pass without keeping any of it."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            async for _ in stream:
                pass
    except TimeoutError as error:
        raise too_slow(f"the body did not arrive within {_TIMEOUT_S:.0f} s") from error


def check_length(length: int, most: int) -> None:
    if length > most:
        raise too_large(f"the body has {length} bytes or more; at most {most} are taken", limit=most)


def _unzipped(data: bytes | bytearray, weight: Weight) -> bytearray:
    plain = bytearray()
    whole = memoryview(data)
    at = members = 0
    try:
        while at < len(whole):
            members += 1
            if members > _MEMBERS:
                raise too_large(f"the body has more than {_MEMBERS} gzip members", hint="Compress it as one.")
            at = _unzip_member(whole, at, plain, weight)
    except zlib.error as error:
        raise malformed(f"the body is not gzip: {error}") from error
    return plain


def _unzip_member(whole: memoryview, at: int, plain: bytearray, weight: Weight) -> int:
    """Add one gzip member to `plain`; where the next one begins. Little is read ahead at first: it is copied when the
    member ends before it."""
    member = zlib.decompressobj(wbits=31)
    ahead = _AHEAD_BYTES
    while not member.eof:
        if at >= len(whole):
            raise malformed("the body ends in the middle of its gzip data")
        rest: bytes | memoryview = whole[at : at + ahead]
        at += len(rest)
        ahead = min(2 * ahead, _PIECE_BYTES)
        while rest and not member.eof:
            piece = member.decompress(rest, _PIECE_BYTES)
            weight.add(len(piece))
            plain += piece
            rest = member.unconsumed_tail
    return at - len(member.unused_data)
