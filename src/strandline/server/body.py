"""A request's body: taken in as a stream up to a limit, then decoded into rows of a table's columns."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pyarrow as pa

from strandline.change import SEQ, VNODE
from strandline.rows import checked
from strandline.server import arrow, ndjson
from strandline.server.errors import malformed, too_large, too_slow, unsupported

INDEX = "_index"
PLACE = (VNODE, SEQ, INDEX)
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
UNFOLDED = 4
"""How many times the limit of a body its rows may take in memory."""
_TIMEOUT_S = 300.0
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Form:
    """How a body is written."""

    is_arrow: bool
    is_gzip: bool

    @property
    def name(self) -> str:
        return f"{ARROW if self.is_arrow else NDJSON} {'gzip' if self.is_gzip else 'identity'}"

    @staticmethod
    def of(content_type: str | None, encoding: str | None) -> Form:
        kind = (content_type or "").partition(";")[0].strip().lower()
        if kind not in (ARROW, NDJSON):
            raise unsupported(f"the body is {kind or 'of no type'}", hint=f"Send {ARROW} or {NDJSON}.")
        coding = (encoding or "identity").strip().lower()
        if coding not in ("identity", "gzip"):
            raise unsupported(f"the body is encoded with {coding!r}", hint="Send it plain or with gzip.")
        return Form(kind == ARROW, coding == "gzip")


@dataclass(frozen=True)
class Body:
    """A decoded body of `count` rows. Lines of JSON have no `schema`: what they hold is known when they are read."""

    count: int
    schema: pa.Schema | None
    _data: pa.Table | bytes
    _most: int

    def rows(self, wanted: pa.Schema) -> pa.Table:
        """The rows with exactly the columns of `wanted`; what it declares not null has values. A place that is not
        wanted is left out; `Invalid` names the row and the column of anything else."""
        if not self.count:
            # Nothing in it can be wrong; a chunk whose rows were all refused still moves its positions.
            return wanted.empty_table()
        missing = [name for name in wanted.names if self.schema is None or name not in self.schema.names]
        arrow.check_weight(arrow.missing_weight(self.count, len(missing)), self._most)
        if isinstance(self._data, bytes):
            others = [pa.field(name, pa.int64()) for name in PLACE if name not in wanted.names]
            return ndjson.read_lines(self._data, pa.schema([*wanted, *others])).select(wanted.names)
        left_out = [name for name in PLACE if name in self._data.column_names and name not in wanted.names]
        return next(checked(self._data.drop_columns(left_out), wanted))


def decode(data: bytes, form: Form, *, most: int) -> Body:
    """What a body holds, of which nothing may become larger than `most` bytes."""
    plain = _unzipped(data, most) if form.is_gzip else data
    if form.is_arrow:
        table = arrow.read_stream(plain, most=most)
        return Body(table.num_rows, table.schema, table, most)
    return Body(ndjson.count_lines(plain), None, plain, most)


async def received(stream: AsyncIterator[bytes], *, most: int, hold: Callable[[int], None]) -> bytes:
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
    return bytes(data)


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


def _unzipped(data: bytes, most: int) -> bytes:
    plain = bytearray()
    rest = data
    try:
        while rest:
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                piece = member.decompress(rest, _PIECE_BYTES)
                rest = member.unconsumed_tail
                plain += piece
                if len(plain) > most:
                    raise too_large(f"the body is more than {most} bytes long once it is unzipped", limit=most)
                if not piece and not rest and not member.eof:
                    raise malformed("the body ends in the middle of its gzip data")
            rest = member.unused_data
    except zlib.error as error:
        raise malformed(f"the body is not gzip: {error}") from error
    return bytes(plain)
