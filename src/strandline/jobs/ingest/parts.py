"""The files of a load, cut into parts. A Spark task reads each part.

The parts follow the order of the files, so a row's place in its part gives its place in the load. A large file with one
JSON object per line is cut at the ends of lines. One task reads any other file: in CSV a line may end inside of quotes,
and compressed text can only be read from its start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from strandline.jobs.ingest.decode import UTF8
from strandline.jobs.ingest.file_reader import LineRange
from strandline.jobs.ingest.json_stream import Form, sniff_form, sniff_json
from strandline.jobs.ingest.loaded_files import Loaded
from strandline.jobs.ingest.plan import Step

PART_BYTES = 64 << 20
LEAST_BYTES = 8 << 20
MOST_PARTS = 1024
# So many parts for each task that runs at once: a slow one delays the end less.
_PER_TASK = 4
_CHUNK_BYTES = 4 << 20
_THREADS = 4


@dataclass(frozen=True)
class Piece:
    """A file, or some lines of one. `at` is the place of its step in the load."""

    at: int
    step: Step
    lines: LineRange | None = None

    @property
    def bytes(self) -> int:
        return self.step.bytes if self.lines is None else self.lines.stop - self.lines.start


@dataclass(frozen=True)
class Parts:
    """The pieces of each task. `cut` has the files of which several tasks read a piece, as they are remembered when
    they are loaded."""

    pieces: tuple[tuple[Piece, ...], ...]
    cut: Mapping[int, Loaded]

    def __len__(self) -> int:
        return len(self.pieces)


def cut_parts(steps: Sequence[Step], at_once: int) -> Parts:
    """The parts for so many tasks at once."""
    whole = sum(step.bytes for step in steps)
    size = max(LEAST_BYTES, min(PART_BYTES, whole // (_PER_TASK * at_once)), whole // MOST_PARTS)
    large = [at for at, step in enumerate(steps) if step.bytes >= 2 * size and _has_lines(step)]
    # A hash of a whole file has one order, so the driver makes it.
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        found = dict(zip(large, pool.map(lambda at: _cut_lines(steps[at], size), large), strict=True))
    pieces: list[Piece] = []
    for at, step in enumerate(steps):
        # The hash of a continued file cannot be pickled: the task makes it again.
        bare = replace(step, hasher=None)
        ranges = found[at][0] if at in found else [None]
        pieces += [Piece(at, bare, lines) for lines in ranges]
    return Parts(_group_pieces(pieces, size, at_once), {at: loaded for at, (_, loaded) in found.items()})


def _group_pieces(pieces: Sequence[Piece], size: int, at_once: int) -> tuple[tuple[Piece, ...], ...]:
    most = max(-(-len(pieces) // (_PER_TASK * at_once)), -(-len(pieces) // MOST_PARTS))
    groups: list[list[Piece]] = []
    held = 0
    for piece in pieces:
        if not groups or held + piece.bytes > size or len(groups[-1]) >= most:
            groups.append([])
            held = 0
        groups[-1].append(piece)
        held += piece.bytes
    return tuple(map(tuple, groups))


def _has_lines(step: Step) -> bool:
    """Whether every line of the file is read for itself."""
    source = step.source
    is_plain = source.kind == "jsonl" and source.compression is None and not source.is_wide
    return is_plain and sniff_json(source) == UTF8 and sniff_form(step.reading()) is Form.LINES


def _cut_lines(step: Step, size: int) -> tuple[list[LineRange], Loaded]:
    """Ranges of about `size` bytes, and how the file is remembered."""
    reading, source = step.reading(), step.source
    ranges: list[LineRange] = []
    at = start = reading.start
    lines = before = reading.lines
    last = b""
    for chunk in source.chunks(start, source.size, _CHUNK_BYTES):
        reading.hasher.update(chunk)
        end = chunk.rfind(b"\n") + 1
        if end and at + end - start >= size:
            ranges.append(LineRange(start, at + end, before))
            start, before = at + end, lines + chunk.count(b"\n", 0, end)
        lines += chunk.count(b"\n")
        at += len(chunk)
        last = chunk[-1:]
    if start < source.size:
        ranges.append(LineRange(start, source.size, before))
    is_open = last not in (b"", b"\n")
    return ranges, Loaded.of(source, lines=lines, is_open=is_open, digest=reading.digest)
