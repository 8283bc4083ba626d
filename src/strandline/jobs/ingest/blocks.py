"""A text file as blocks of whole records, read once, hashed as it is read, never held as a whole.

Bytes go through steps, each an iterator over chunks: stored bytes, hashed, then unpacked and decoded by `decode`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from strandline.errors import Invalid
from strandline.jobs.ingest.decode import UTF8, text_chunks
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

    `hasher` has the bytes before `start`, which are `lines` lines. `done` counts the bytes read since. `encoding` and
    `newline` are those of the file; the blocks are UTF-8 and have newlines."""

    source: Source
    start: int
    lines: int
    hasher: Any
    is_open: bool = False
    done: int = 0
    encoding: str = UTF8
    newline: str = "\n"

    @staticmethod
    def whole(source: Source, encoding: str = UTF8, newline: str = "\n") -> Reading:
        return Reading(source, 0, 0, hashlib.sha256(), encoding=encoding, newline=newline)

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

    def chunks(self, size: int) -> Iterator[bytes]:
        """The rest of the text, in pieces of any size above 0. The caller counts `lines`."""
        return self._text_chunks(size)

    def starts_with_newline(self) -> bool:
        """Whether the text at `start` begins with a newline. The reading cannot be used after that."""
        return next(self._text_chunks(64), b"").startswith((b"\n", b"\r"))

    def _new_block(self, data: bytes) -> Block:
        block = Block(data, self.lines + 1)
        self.lines += data.count(b"\n")
        return block

    def _text_chunks(self, size: int) -> Iterator[bytes]:
        raw = self._hash_chunks(self.source.chunks(self.start, self.source.size, size))
        text = text_chunks(self.source, raw, self.encoding, is_start=not self.start)
        if self.newline == "\n":
            return filter(None, text)
        return (chunk.replace(b"\r", b"\n") for chunk in text if chunk)

    def _hash_chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.hasher.update(chunk)
            self.done += len(chunk)
            yield chunk


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
