"""A JSON file as blocks of whole objects, whatever its form: one object per line, objects one after another over any
number of lines, one object, or an array of objects.

The first bytes tell the form. Only a few blocks are in memory at a time, unless one object is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import numpy as np

from strandline.errors import Invalid
from strandline.jobs.ingest.bad_rows import FORMS_HINT
from strandline.jobs.ingest.blocks import Reading
from strandline.jobs.ingest.decode import UTF8, sniff_encoding, unpacked_chunks
from strandline.jobs.ingest.json_scan import (
    CLOSE_OBJECT,
    COMMA,
    NEWLINE,
    OPEN_OBJECT,
    Mask,
    Positions,
    Signs,
    count_quotes,
    find_newlines,
    find_spaces,
    scan,
)
from strandline.jobs.ingest.source import WIDE, Source

BLOCK_BYTES = 4 << 20
_HEAD_BYTES = 1 << 20
_MARK_BYTES = 1 << 12
_OBJECT_BYTES = 256 << 20
_SPACE = b" \t\r\n"


class Form(Enum):
    """How the objects stand in a file. In `LINES` nothing of a broken line reaches into the next one."""

    LINES = "lines"
    OBJECTS = "objects"
    ARRAY = "array"


@dataclass(frozen=True)
class JsonBlock:
    """Values of a block, each with closed brackets and strings. Value i has the signs from `first[i]` to `last[i]` and
    begins on line `lines[i]` of the file. `bad` has the lines and texts that are no such values; all other text is
    space."""

    data: bytes
    signs: Signs
    first: Positions
    last: Positions
    lines: Positions
    bad: list[tuple[int, bytes]]

    def __len__(self) -> int:
        return len(self.first)

    def text(self, at: int) -> bytes:
        return self.data[self.signs.at[self.first[at]] : self.signs.at[self.last[at]] + 1]


MakeBlock = Callable[[], JsonBlock]


@dataclass(frozen=True)
class Lines:
    """Whole lines of a file, the first of which has the number `line`; a call makes their block."""

    data: bytes
    line: int

    def __call__(self) -> JsonBlock:
        return split_lines(self.data, self.line)

    def count_objects(self) -> int | None:
        """How many lines there are, if each begins and ends as an object does; None for other text. No newline inside
        of an object is between `}` and `{`, so each line is one whole object or several, if the text is JSON at all."""
        text = np.frombuffer(self.data, np.uint8)
        ends = np.flatnonzero(text == NEWLINE)
        if not self.data.endswith(b"\n"):
            ends = np.append(ends, len(text))
        if not len(text) or text[0] != OPEN_OBJECT or (text[ends - 1] != CLOSE_OBJECT).any():
            return None
        return None if (text[ends[:-1] + 1] != OPEN_OBJECT).any() else len(ends)


def sniff_json(source: Source) -> str:
    """The encoding of a JSON file: what the caller said, or UTF-16 or UTF-32 by its first bytes, else UTF-8."""
    head = next(filter(None, unpacked_chunks(source, source.chunks(0, source.size, _MARK_BYTES))), b"")
    encoding = sniff_encoding(head[:_MARK_BYTES], source.encoding)
    return encoding if source.encoding or encoding in WIDE else UTF8


def find_form(head: bytes, *, is_all: bool) -> Form:
    """The form of a text that begins like this; `is_all` when there is no more of it."""
    text = head.lstrip(_SPACE)
    line, newline, others = text.partition(b"\n")
    if text.startswith(b"["):
        inner = text[1:].lstrip(_SPACE)[:1]
        return Form.ARRAY if inner in (b"{", b"]", b"") or not _is_closed(line.rstrip()) else Form.LINES
    if not text.startswith(b"{"):
        return Form.LINES
    if not newline and not is_all:
        return Form.OBJECTS
    signs = scan(text)
    closed = np.flatnonzero(signs.depth == 0)
    if len(closed):
        return Form.LINES if signs.at[closed[0]] < len(line) else Form.OBJECTS
    if is_all and not others.strip():
        return Form.LINES
    # The first object is broken or long. Other lines that look like objects tell that it is a broken line.
    lines = [each.rstrip() for each in text.split(b"\n", 100)[:100] if each.startswith(b"{")]
    whole = sum(map(_is_closed, lines))
    alike = sum(not each.endswith((b",", b"[", b"{", b":")) for each in lines)
    return Form.LINES if alike > 1 or (whole and is_all) else Form.OBJECTS


def _is_closed(text: bytes) -> bool:
    """Whether the text is one value in brackets."""
    signs = scan(text)
    closed = np.flatnonzero(signs.depth <= 0)
    return bool(len(closed)) and not signs.is_open and int(signs.at[closed[0]]) == len(text) - 1


def sniff_form(reading: Reading) -> Form:
    """The form in which `read_records` reads the same reading. The reading cannot be used after that."""
    chunks = _join_chunks(reading.chunks(BLOCK_BYTES), _HEAD_BYTES)
    head, second = next(chunks, b""), next(chunks, b"")
    return find_form(head, is_all=not second)


def read_records(reading: Reading, *, block_bytes: int = BLOCK_BYTES, form: Form | None = None) -> Iterator[JsonBlock]:
    """The values of a file, or of the part that a reading is about. At the end `reading.is_open` says whether the last
    line has no newline. The text tells its form, unless the caller knows it."""
    return (make() for make in cut_records(reading, block_bytes=block_bytes, form=form))


def cut_records(reading: Reading, *, block_bytes: int = BLOCK_BYTES, form: Form | None = None) -> Iterator[MakeBlock]:
    """The blocks of `read_records`, each still to be made, which takes most of the time: any thread may do it."""
    chunks = _join_chunks(reading.chunks(block_bytes), min(block_bytes, _HEAD_BYTES))
    head, second = next(chunks, b""), next(chunks, b"")
    form = form or find_form(head, is_all=not second)
    cutters: dict[Form, _Cutter] = {Form.LINES: _LineCutter(), Form.OBJECTS: _ObjectCutter()}
    cutter = cutters.get(form) or _ArrayCutter(reading.source)
    rest, last, wanted = b"", b"", 0
    for chunk in _chain(head, second, chunks):
        last = chunk[-1:]
        rest = rest + chunk if rest else chunk
        if len(rest) < wanted:
            continue
        done, records = cutter.cut(rest, reading.lines + 1, is_end=False)
        yield from records
        reading.lines += rest.count(b"\n", 0, done)
        rest = rest[done:]
        # A large object is looked at again only when there is much more of it.
        wanted = 0 if done else 2 * len(rest)
        _refuse_large(reading, len(rest))
    if rest or form is Form.ARRAY:
        _, records = cutter.cut(rest, reading.lines + 1, is_end=True)
        yield from records
        reading.lines += rest.count(b"\n")
    reading.is_open = last not in (b"", b"\n")


def _refuse_large(reading: Reading, size: int) -> None:
    if size > _OBJECT_BYTES:
        line = reading.lines + 1
        raise Invalid(
            f"{reading.source.uri}, line {line}: no end of the object within {_OBJECT_BYTES >> 20} MiB",
            hint="Is a bracket or a quote not closed? An object of this size cannot be one row.",
            file=reading.source.uri,
            line=line,
        )


def _chain(head: bytes, second: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield from filter(None, (head, second))
    yield from chunks


def _join_chunks(chunks: Iterable[bytes], least: int) -> Iterator[bytes]:
    """The same bytes in chunks of at least this size, except the last one."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= least:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)


def split_objects(data: bytes) -> JsonBlock:
    """The values of a whole text, one after another."""
    _, found = _ObjectCutter().cut(data, 1, is_end=True)
    return found[0]()


def split_lines(data: bytes, line: int = 1) -> JsonBlock:
    """The values of whole lines, of which the first has this number."""
    stops = np.append(find_newlines(data), len(data))
    quotes = count_quotes(data, stops)
    odd = np.flatnonzero(np.diff(quotes, prepend=0) % 2)
    return _split_segments(data, _scan_without(data, stops, odd), stops, line, separator=1, unclosed=odd)


class _Cutter(Protocol):
    def cut(self, data: bytes, line: int, *, is_end: bool) -> tuple[int, list[MakeBlock]]:
        """Where the last whole value of a text ends, and the values up to there. The text begins on `line`; `is_end`
        takes the rest too."""
        ...


class _LineCutter:
    """One object per line; a line may also have several."""

    def cut(self, data: bytes, line: int, *, is_end: bool) -> tuple[int, list[MakeBlock]]:
        done = len(data) if is_end else data.rfind(b"\n") + 1
        if not done:
            return 0, []
        return done, [Lines(data[:done], line)]


def _scan_without(data: bytes, stops: Positions, odd: Positions) -> Signs:
    """The signs of the text without these lines, in which a string is not closed."""
    if not len(odd):
        return scan(data)
    blank = bytearray(data)
    for at in odd.tolist():
        begin = int(stops[at - 1]) if at else 0
        blank[begin : stops[at]] = b" " * (int(stops[at]) - begin)
    return scan(blank)


class _ObjectCutter:
    """Objects one after another, with any space between them."""

    def cut(self, data: bytes, line: int, *, is_end: bool) -> tuple[int, list[MakeBlock]]:
        signs = scan(data)
        # A bracket that closes nothing ends a segment, which is bad.
        lowest = np.minimum.accumulate(np.minimum(signs.depth, 0))
        stops = signs.at[signs.is_closing() & (signs.depth == lowest)] + 1
        unclosed = stops[:0]
        if is_end and (not len(stops) or stops[-1] < len(data)):
            unclosed = np.array([len(stops)] if signs.is_open else [], np.int64)
            stops = np.append(stops, len(data))
        if not len(stops):
            return 0, []
        make = partial(_split_segments, data, signs, stops, line, separator=0, unclosed=unclosed)
        return int(stops[-1]), [make]


class _ArrayCutter:
    """An array of objects, or several such arrays one after another."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_inside = False

    def cut(self, data: bytes, line: int, *, is_end: bool) -> tuple[int, list[MakeBlock]]:
        done = 0
        found: list[MakeBlock] = []
        while True:
            if not self._is_inside:
                done = len(data) - len(data[done:].lstrip(_SPACE))
                if done == len(data):
                    return done, found
                self._open_array(data, done, line)
                done += 1
            part = data[done:]
            signs = scan(part)
            closing = np.flatnonzero(signs.depth < 0)
            inside = signs.upto(int(signs.at[closing[0]])) if len(closing) else signs
            commas = inside.at[(inside.kind == COMMA) & (inside.depth == 0)]
            end = signs.at[closing[:1]] if len(closing) else np.array([len(part)] if is_end else [], np.int64)
            stops = np.append(commas, end)
            unclosed = np.array([len(stops) - 1] if is_end and not len(closing) else [], np.int64)
            if len(stops):
                part = _blank(part, commas)
                at_line = line + data.count(b"\n", 0, done)
                found.append(partial(_split_segments, part, inside, stops, at_line, separator=1, unclosed=unclosed))
                done = min(done + int(stops[-1]) + 1, len(data))
            if not len(closing):
                return done, found
            self._is_inside = False

    def _open_array(self, data: bytes, at: int, line: int) -> None:
        if data[at : at + 1] != b"[":
            line += data.count(b"\n", 0, at)
            shown = data[at : at + 30].decode(errors="backslashreplace")
            raise Invalid(
                f"{self._source.uri}, line {line}: the array has ended, but text follows: {shown!r}",
                hint=FORMS_HINT,
                file=self._source.uri,
                line=line,
            )
        self._is_inside = True


def _split_segments(
    data: bytes, signs: Signs, stops: Positions, line: int, *, separator: int, unclosed: Positions
) -> JsonBlock:
    """The values in brackets of a text in segments, which end at `stops` and have `separator` bytes between them. A
    segment is bad when it has other text, or brackets that do not match; those in `unclosed` are bad already."""
    end = int(stops[-1])
    signs = signs.upto(end)
    begins = np.append(0, stops[:-1] + separator)
    owner = np.searchsorted(stops, signs.at, side="left" if separator else "right")
    before, after = signs.depth_before(begins), signs.depth_before(stops)
    depth = signs.depth - before[owner]
    is_bad = after != before
    is_bad[unclosed] = True
    is_bad[owner[depth < 0]] = True
    spaces = find_spaces(data)
    first, last = _find_values(signs, depth, ~is_bad[owner])
    others = _count_text(spaces, begins, stops)
    np.subtract.at(others, owner[first], _count_text(spaces, signs.at[first], signs.at[last] + 1))
    is_bad |= others > 0
    first, last = _find_values(signs, depth, ~is_bad[owner])
    newlines = find_newlines(data)
    bad = []
    for at in np.flatnonzero(is_bad).tolist():
        text = data[begins[at] : stops[at]]
        place = int(begins[at]) + len(text) - len(text.lstrip(_SPACE))
        bad.append((line + int(np.searchsorted(newlines, place)), text.strip(_SPACE)))
    lines = line + np.searchsorted(newlines, signs.at[first])
    return JsonBlock(data[:end], Signs(signs.at, signs.kind, depth, False), first, last, lines, bad)


def _count_text(spaces: Positions, begins: Positions, ends: Positions) -> Positions:
    """The number of bytes between these positions that are no space."""
    return ends - begins - (np.searchsorted(spaces, ends) - np.searchsorted(spaces, begins))


def _blank(data: bytes, places: Positions) -> bytes:
    """The text with spaces at these places."""
    text = np.frombuffer(data, np.uint8).copy()
    text[places] = _SPACE[0]
    return text.tobytes()


def _find_values(signs: Signs, depth: Positions, is_good: Mask) -> tuple[Positions, Positions]:
    """The first and the last sign of each outermost value."""
    first = np.flatnonzero(is_good & (depth == 1) & signs.is_opening())
    return first, np.flatnonzero(is_good & (depth == 0) & signs.is_closing())
