"""A text file as blocks of whole records, read once, hashed as it is read, never held as a whole.

Bytes go through steps, each an iterator over chunks: stored bytes, hashed, unzipped, without byte order mark. Another
compression or encoding is one more step in `Reading._text_chunks`. It uses `zlib`, because Arrow's stream refuses the
zeros that some programs write after the last gzip member, and `gzip` reads files, not chunks.
"""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from strandline.errors import Invalid
from strandline.jobs.ingest.source import Source

BLOCK_BYTES = 16 << 20
RECORD_BYTES = 1 << 30
_DIGEST_CHARS = 32

Cut = Callable[[bytes], int]
"""Where the last whole record of some bytes ends; 0 when none does."""


@dataclass(frozen=True)
class Block:
    """Whole records. The first one starts on line `line` of the file."""

    data: bytes
    line: int


@dataclass
class Reading:
    """A pass over a text file from byte `start` on.

    `hasher` has the bytes before `start`, which are `lines` lines. `done` counts the bytes read since."""

    source: Source
    start: int
    lines: int
    hasher: Any
    is_open: bool = False
    done: int = 0

    @staticmethod
    def whole(source: Source) -> Reading:
        return Reading(source, 0, 0, hashlib.sha256())

    @property
    def digest(self) -> str:
        return str(self.hasher.hexdigest()[:_DIGEST_CHARS])

    def blocks(self, cut: Cut, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """The rest of the file, cut between records. At the end `is_open` says whether the last line has no newline."""
        rest = b""
        for chunk in self._text_chunks(block_bytes):
            data = rest + chunk
            end = cut(data)
            if not end and len(data) > RECORD_BYTES:
                raise Invalid(
                    f"{self.source.uri}, line {self.lines + 1}: no end of the row within {RECORD_BYTES >> 20} MiB",
                    hint="Is a quote not closed?",
                    file=self.source.uri,
                    line=self.lines + 1,
                )
            rest = data[end:]
            if end:
                yield self._new_block(data[:end])
        self.is_open = bool(rest)
        if rest:
            yield self._new_block(rest)

    def starts_with_newline(self) -> bool:
        """Whether the text at `start` begins with a newline. The reading cannot be used after that."""
        return next(self._text_chunks(64), b"").startswith((b"\n", b"\r\n"))

    def _new_block(self, data: bytes) -> Block:
        block = Block(data, self.lines + 1)
        self.lines += data.count(b"\n")
        return block

    def _text_chunks(self, size: int) -> Iterator[bytes]:
        raw = self._hash_chunks(self.source.chunks(self.start, self.source.size, size))
        text = _unzip_chunks(self.source, raw) if self.source.is_gzip else raw
        first = self.start == 0
        for chunk in filter(None, text):
            if first and chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise Invalid(
                    f"{self.source.uri} is UTF-16 text; expected UTF-8",
                    hint=f"Convert it: iconv -f UTF-16 -t UTF-8 {self.source.uri}",
                    file=self.source.uri,
                )
            yield chunk.removeprefix(codecs.BOM_UTF8) if first else chunk
            first = False

    def _hash_chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.hasher.update(chunk)
            self.done += len(chunk)
            yield chunk


def _unzip_chunks(source: Source, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a gzip file, which has several members when it was appended to."""
    member: Any = None
    try:
        for chunk in chunks:
            while chunk:
                member = member or zlib.decompressobj(wbits=31)
                yield member.decompress(chunk, BLOCK_BYTES)
                chunk = member.unconsumed_tail
                if member.eof:
                    # Zeros between members, or after the last one, are padding.
                    chunk, member = member.unused_data.lstrip(b"\0"), None
        while member is not None and not member.eof:
            text = member.decompress(b"", BLOCK_BYTES)
            if not text and not member.eof:
                raise Invalid(f"{source.uri} ends in the middle of its gzip data", file=source.uri)
            yield text
    except zlib.error as error:
        raise Invalid(f"{source.uri} is not gzip: {error}", file=source.uri) from error


def digest_of(source: Source) -> str:
    """The digest of a whole file, for a file that is only compared or is not text."""
    hasher = hashlib.sha256()
    for chunk in source.chunks(0, source.size, BLOCK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest()[:_DIGEST_CHARS]


def resume(source: Source, at: int, digest: str, lines: int) -> Reading | None:
    """A reading from byte `at` on; None when the bytes before it do not have that digest."""
    if at > source.size:
        return None
    hasher = hashlib.sha256()
    for chunk in source.chunks(0, at, BLOCK_BYTES):
        hasher.update(chunk)
    reading = Reading(source, at, lines, hasher)
    return reading if reading.digest == digest else None
