"""Stored bytes become UTF-8 text: unpacked, decoded, without byte order mark. Each step is an iterator over chunks.

Gzip uses `zlib`, because Arrow's stream refuses the zeros that some programs write after the last gzip member, and
`gzip` reads files, not chunks. Arrow unpacks zstd and bzip2.
"""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.ingest.source import Source

_PIECE_BYTES = 16 << 20
UTF8 = "utf-8"
_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# What each name means that leaves the order of bytes open, when no mark tells it.
_ORDERED = {"utf-16": "utf-16-le", "utf-32": "utf-32-le", "utf-8-sig": UTF8}
# Bytes that are signs of windows-1252 and controls of latin-1, and bytes that hardly stand in a text of either.
_WINDOWS = bytes(sign for sign in range(0x80, 0xA0) if sign not in (0x81, 0x8D, 0x8F, 0x90, 0x9D))
_UNLIKELY = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D, 0xFF])


def sniff_encoding(head: bytes, said: str | None) -> str:
    """The encoding of a text that begins with these bytes. A mark tells it, then the caller, then the bytes."""
    marked = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)
    if said is not None:
        is_same_width = marked is not None and said in _ORDERED and _ORDERED[said][:6] == marked[:6]
        return str(marked) if is_same_width else _ORDERED.get(said, said)
    if marked is not None:
        return marked
    for encoding, zeros in (("utf-16-le", head[1:400:2]), ("utf-16-be", head[0:400:2])):
        if len(zeros) > 1 and zeros.count(0) > 0.6 * len(zeros):
            return encoding
    return _sniff_single_bytes(head)


def _sniff_single_bytes(head: bytes) -> str:
    """UTF-8, or a code with one byte per letter. It is UTF-8 when it has at least one letter of several bytes."""
    text = head.decode(errors="ignore")
    if text.isascii() and not head.isascii() and not head.translate(None, _delete_all_but(_UNLIKELY)):
        try:
            codecs.getincrementaldecoder(UTF8)().decode(head)
        except UnicodeDecodeError:
            return "windows-1252" if head.translate(None, _delete_all_but(_WINDOWS)) else "latin-1"
    return UTF8


def _delete_all_but(signs: bytes) -> bytes:
    return bytes(sign for sign in range(256) if sign not in signs)


def text_chunks(source: Source, chunks: Iterable[bytes], encoding: str, *, is_start: bool) -> Iterator[bytes]:
    """The text of stored bytes in UTF-8. `is_start`: they begin where the file begins."""
    text = unpacked_chunks(source, chunks)
    return _decode_chunks(source, filter(None, text), encoding, is_start)


def unpacked_chunks(source: Source, chunks: Iterable[bytes]) -> Iterator[bytes]:
    if source.compression == "gzip":
        return _unzip_chunks(source, chunks)
    if source.compression is not None:
        return _unpack_chunks(source, chunks, source.compression)
    return iter(chunks)


def _decode_chunks(source: Source, chunks: Iterable[bytes], encoding: str, is_start: bool) -> Iterator[bytes]:
    if encoding == UTF8:
        for at, chunk in enumerate(chunks):
            yield chunk.removeprefix(codecs.BOM_UTF8) if is_start and not at else chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    line, is_first = 1, is_start
    for chunk in _end_with(chunks, b""):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            good = error.object[: error.start].decode(encoding, errors="replace")
            raise Invalid(
                f"{source.uri}, line {line + good.count(chr(10))}, column {len(good.rpartition(chr(10))[2]) + 1}:"
                f" this is not {encoding}: {error.reason}",
                hint="Name the encoding of the file: --encoding",
                file=source.uri,
                line=line + good.count("\n"),
            ) from error
        line += text.count("\n")
        text = text.removeprefix("\ufeff") if is_first and text else text
        is_first = is_first and not text
        # Half of a pair of UTF-16 alone, which UTF-8 cannot hold, was refused by the decoder.
        yield text.encode()


def _end_with(chunks: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    yield from chunks
    yield last


def _unzip_chunks(source: Source, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a gzip file, which has several members when it was appended to."""
    member: Any = None
    try:
        for chunk in chunks:
            while chunk:
                member = member or zlib.decompressobj(wbits=31)
                yield member.decompress(chunk, _PIECE_BYTES)
                chunk = member.unconsumed_tail
                if member.eof:
                    # Zeros between members, or after the last one, are padding.
                    chunk, member = member.unused_data.lstrip(b"\0"), None
        while member is not None and not member.eof:
            text = member.decompress(b"", _PIECE_BYTES)
            if not text and not member.eof:
                raise Invalid(f"{source.uri} ends in the middle of its gzip data", file=source.uri)
            yield text
    except zlib.error as error:
        raise Invalid(f"{source.uri} is not gzip, or it is damaged", file=source.uri) from error


def _unpack_chunks(source: Source, chunks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    stream = pa.PythonFile(_ChunkFile(chunks), "r")
    try:
        with pa.CompressedInputStream(stream, compression) as file:
            while data := file.read(_PIECE_BYTES):
                yield data
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"{source.uri} is not {compression}, or it is damaged", file=source.uri) from error


class _ChunkFile(io.RawIOBase):
    """Chunks as a file, which Arrow reads."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
