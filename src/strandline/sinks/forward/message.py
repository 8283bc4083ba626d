"""The headers of a request with rows: the sender, and the positions of the rows in its table.

A position is (seq, index) within a vnode of the sender's table, packed into one number that orders as the pair does.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from strandline.model.definition import MAX_VNODES
from strandline.sinks.forward.protocol import CHUNK_HEADER, INDEX, INDEX_BITS, INDEXES, REPLAY_HEADER, SEQS, VERSION
from strandline.sinks.forward.refusal import malformed, other_version

_MAX_LIVES = 1 << 53
_SINK = re.compile(r"[A-Za-z0-9_.-]{1,200}\Z")

Numbers = npt.NDArray[np.int64]


def pack(seq: int, index: int) -> int:
    return seq << INDEX_BITS | index


def unpack(position: int) -> tuple[int, int]:
    return position >> INDEX_BITS, position & (INDEXES - 1)


@dataclass(frozen=True)
class Sender:
    """One life of a sink. A sink that starts again has a higher `life`; the log keeps the highest life that sent."""

    sink: str
    life: int

    @staticmethod
    def of(sink: object, life: object) -> Sender:
        if not isinstance(sink, str) or not _SINK.match(sink):
            raise malformed(f"sink is {sink!r:.220}; expected 1 to 200 of A-Z a-z 0-9 _ . -")
        if type(life) is not int or not 0 <= life < _MAX_LIVES:
            raise malformed(f"life is {life!r:.40}; expected a number from 0 to {_MAX_LIVES - 1}")
        return Sender(sink, life)

    @property
    def life_app(self) -> str:
        """The transaction whose version is the highest life."""
        return f"life/{self.sink}"

    def position_app(self, vnode: int) -> str:
        """The transaction whose version is the position in a vnode."""
        return f"from/{self.sink}/{self.life}/{vnode}"

    @property
    def replay_app(self) -> str:
        """The transaction whose version is the highest `as_of` of the replays that were applied."""
        return f"from/{self.sink}/{self.life}/replay"


@dataclass(frozen=True)
class Replay:
    """The header `Strandline-Replay`: dead letters that are sent again, with each key as it was at seq `as_of` of the
    sender's table."""

    sender: Sender
    as_of: int

    @staticmethod
    def parse(text: str) -> Replay:
        facts = _parse_header(text, REPLAY_HEADER)
        sender = Sender.of(facts.get("sink"), facts.get("life"))
        as_of = facts.get("as_of")
        if type(as_of) is not int or not 0 <= as_of < SEQS:
            raise malformed(f"as_of is {as_of!r:.40}; expected a number from 0 to {SEQS - 1}")
        return Replay(sender, as_of)


@dataclass(frozen=True)
class Places:
    """The vnode and the position of each row."""

    vnodes: Numbers
    positions: Numbers

    def slice(self, start: int, stop: int) -> Places:
        return Places(self.vnodes[start:stop], self.positions[start:stop])


@dataclass(frozen=True)
class ChunkHeader:
    """The header `Strandline-Chunk`: the first position of each vnode's rows and the one behind the last."""

    sender: Sender
    is_first: bool
    ranges: dict[int, tuple[int, int]]

    @staticmethod
    def parse(text: str) -> ChunkHeader:
        facts = _parse_header(text, CHUNK_HEADER)
        sender = Sender.of(facts.get("sink"), facts.get("life"))
        if not isinstance(facts.get("is_first"), bool):
            raise malformed(f"is_first is {facts.get('is_first')!r:.40}; expected true or false")
        ranges = facts.get("ranges")
        if not isinstance(ranges, list) or not ranges:
            raise malformed("ranges is not a list of one range or more")
        found: dict[int, tuple[int, int]] = {}
        for one in ranges:
            first, last, start, end = _parse_range(one)
            for vnode in range(first, last + 1):
                if vnode in found:
                    raise malformed(f"vnode {vnode} is in two ranges")
                found[vnode] = (start, end)
        return ChunkHeader(sender, facts["is_first"], found)

    def places(self, vnodes: Numbers, seqs: Numbers, indexes: Numbers) -> Places:
        """The checked places of the body's rows: they lie in the ranges and rise within each vnode."""
        _refuse_rows(vnodes, "_vnode", (vnodes < 0) | (vnodes >= MAX_VNODES), "expected a vnode of the chunk")
        _refuse_rows(seqs, "_seq", (seqs < 0) | (seqs >= SEQS), f"expected 0 to {SEQS - 1}")
        _refuse_rows(indexes, INDEX, (indexes < 0) | (indexes >= INDEXES), f"expected 0 to {INDEXES - 1}")
        positions = seqs << INDEX_BITS | indexes
        starts, ends = np.zeros(MAX_VNODES, np.int64), np.full(MAX_VNODES, -1, np.int64)
        for vnode, (start, end) in self.ranges.items():
            starts[vnode], ends[vnode] = start, end
        _refuse_rows(vnodes, "_vnode", ends[vnodes] < 0, "expected a vnode of the chunk")
        is_outside = (positions < starts[vnodes]) | (positions >= ends[vnodes])
        _refuse_rows(seqs, "_seq", is_outside, "the row is outside of the chunk's range")
        order = np.argsort(vnodes, kind="stable")
        by_vnode, rising = vnodes[order], positions[order]
        is_late = np.zeros(len(vnodes), np.bool_)
        is_late[order[1:]] = (by_vnode[1:] == by_vnode[:-1]) & (rising[1:] <= rising[:-1])
        _refuse_rows(seqs, "_seq", is_late, "an earlier row of its vnode has the same or a later position")
        return Places(vnodes, positions)

    def split(self, places: Places, cuts: list[int]) -> list[ChunkHeader]:
        """One chunk for each part of the rows; `cuts` are the first rows of the parts, from 0 on. Applied in order they
        have the same effect. Only the first may be `is_first`, so a later one is refused without it."""
        chunks: list[ChunkHeader] = []
        starts = {vnode: start for vnode, (start, _) in self.ranges.items()}
        for cut in [*cuts[1:], len(places.vnodes)]:
            rest = places.slice(cut, len(places.vnodes))
            vnodes, first = np.unique(rest.vnodes, return_index=True)
            following = dict(zip(vnodes.tolist(), rest.positions[first].tolist(), strict=True))
            ends = {vnode: following.get(vnode, end) for vnode, (_, end) in self.ranges.items()}
            ranges = {vnode: (starts[vnode], ends[vnode]) for vnode in self.ranges}
            chunks.append(replace(self, is_first=self.is_first and not chunks, ranges=ranges))
            starts = ends
        return chunks


def _parse_header(text: str, header: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the header {header} is not JSON: {error}") from error
    if not isinstance(facts, dict):
        raise malformed(f"the header {header} is not a JSON object")
    if facts.get("version") != VERSION:
        found = f"{facts.get('version')!r:.40}"
        raise other_version(f"the header {header} has version {found}; this receiver knows {VERSION}")
    return facts


def _parse_range(one: Any) -> tuple[int, int, int, int]:
    is_whole = isinstance(one, list) and len(one) == 6 and all(type(number) is int for number in one)
    if is_whole:
        first, last, from_seq, from_index, to_seq, to_index = one
        is_known = 0 <= first <= last < MAX_VNODES
        is_held = all(0 <= seq < SEQS for seq in (from_seq, to_seq)) and all(
            0 <= index < INDEXES for index in (from_index, to_index)
        )
        if is_known and is_held and (from_seq, from_index) <= (to_seq, to_index):
            return first, last, pack(from_seq, from_index), pack(to_seq, to_index)
    raise malformed(
        f"range {one!r:.100} is not [first_vnode, last_vnode, from_seq, from_index, to_seq, to_index]: vnodes below"
        f" {MAX_VNODES}, seqs below {SEQS}, indexes below {INDEXES}, none of them backward"
    )


def _refuse_rows(values: Numbers, column: str, is_wrong: npt.NDArray[np.bool_], why: str) -> None:
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise malformed(f"row {row}, column {column!r}: {values[row]}: {why}", row=row, column=column)
