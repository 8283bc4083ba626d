"""The body of a request: received as a stream up to a limit, then decoded into rows."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from strandline.model.change import SEQ, VNODE
from strandline.model.stored_names import rename_field
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
class BodyFormat:
    """The content type and compression of a body."""

    is_arrow: bool
    is_gzip: bool

    @property
    def name(self) -> str:
        return f"{ARROW_TYPE if self.is_arrow else NDJSON_TYPE} {'gzip' if self.is_gzip else 'identity'}"

    @staticmethod
    def of(content_type: str | None, encoding: str | None) -> BodyFormat:
        kind = (content_type or "").partition(";")[0].strip().lower()
        if kind not in (ARROW_TYPE, NDJSON_TYPE):
            raise unsupported(f"the body is {kind or 'of no type'}", hint=f"Send {ARROW_TYPE} or {NDJSON_TYPE}.")
        coding = (encoding or "identity").strip().lower()
        if coding not in ("identity", "gzip"):
            raise unsupported(f"the body is encoded with {coding!r}", hint="Send it plain or with gzip.")
        return BodyFormat(kind == ARROW_TYPE, coding == "gzip")


@dataclass(frozen=True)
class Body:
    """A body of `count` rows. Its memory is counted, except the part that depends on the table."""

    count: int
    weight: Weight
    _data: pa.Table | bytes | bytearray

    @property
    def is_typed(self) -> bool:
        """Whether the body has the types of its columns."""
        return isinstance(self._data, pa.Table)

    def rows(self, wanted: pa.Schema, former: Mapping[str, str] | None = None) -> pa.Table:
        """The rows: Arrow in its own types, JSON in the types of `wanted`. `Invalid` names the row and the column of a
        JSON value that does not fit `wanted`. `former` are names that columns of `wanted` had before; a body may use
        them in their place."""
        if isinstance(self._data, pa.Table):
            present = _find_present_names(self._data.column_names, wanted, former or {})
            rows = self._data.rename_columns([present.get(name, name) for name in self._data.column_names])
            names = set(rows.column_names)
            self.weight.add(rows_bytes(self.count, slots(pa.schema([f for f in wanted if f.name not in names]))))
            return rows
        used = ndjson.first_names(self._data) if former else ()
        given = wanted
        for old, now in _find_present_names(used, wanted, former or {}).items():
            given = rename_field(given, now, old)
        return ndjson.read_lines(self._data, given, self.weight).rename_columns(wanted.names)


def _find_present_names(used: Iterable[str], wanted: pa.Schema, former: Mapping[str, str]) -> dict[str, str]:
    """The present names of the columns that a body calls by a former name."""
    used = list(used)
    return {
        name: former[name]
        for name in used
        if name in former and name not in wanted.names and former[name] in wanted.names and former[name] not in used
    }


def decode(data: bytes | bytearray, form: BodyFormat, weight: Weight) -> Body:
    """Decode a body; 413 as soon as it takes too much memory."""
    weight.add(len(data))
    plain = _unzip(data, weight) if form.is_gzip else data
    if form.is_arrow:
        table = arrow.read_stream(plain, weight)
        return Body(table.num_rows, weight, table)
    return Body(ndjson.count_lines(plain, weight), weight, plain)


async def receive(stream: AsyncIterator[bytes], *, most: int, hold: Callable[[int], None]) -> bytearray:
    """Receive a whole body; 413 as soon as it is too large. `hold` gets the size so far and may refuse it."""
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


async def discard(stream: AsyncIterator[bytes]) -> None:
    """Receive a body and keep nothing of it."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            async for _ in stream:
                pass
    except TimeoutError as error:
        raise too_slow(f"the body did not arrive within {_TIMEOUT_S:.0f} s") from error


def check_length(length: int, most: int) -> None:
    if length > most:
        raise too_large(f"the body has {length} bytes or more; the limit is {most}", limit=most)


def _unzip(data: bytes | bytearray, weight: Weight) -> bytearray:
    plain = bytearray()
    whole = memoryview(data)
    at = members = 0
    try:
        while at < len(whole):
            members += 1
            if members > _MEMBERS:
                raise too_large(f"the body has more than {_MEMBERS} gzip members", hint="Compress it as one member.")
            at = _unzip_member(whole, at, plain, weight)
    except zlib.error as error:
        raise malformed(f"the body is not gzip: {error}") from error
    return plain


def _unzip_member(whole: memoryview, at: int, plain: bytearray, weight: Weight) -> int:
    """Add one gzip member to `plain`; returns where the next one begins. At first little is read ahead, because
    bytes after the end of the member are copied."""
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
