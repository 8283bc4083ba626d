"""Cut the rows of a batch into chunks with positions.

A position is (vnode, seq, index), where index counts the changes of that vnode and seq in the order of their keys,
withheld ones included. A chunk covers everything from `start` on and before `end`: rows that are sent, rows that are
withheld, and vnodes without rows. Each chunk begins where the one before it ends; together they cover the batch.

Where a chunk ends depends on the rows and the rule alone, not on the record batches: a repeated run, even by the other
engine, cuts the same chunks with the same keys. Memory holds one chunk and the record batch that is being cut.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Internal
from strandline.model.change import OP, ROW, SEQ, VNODE
from strandline.model.types import conform
from strandline.sinks.contract import WITHHELD, Batch
from strandline.sinks.forward.protocol import INDEX, INDEXES, SEQS
from strandline.storage.parquet.rowgroup import Sizes, row_bytes

# A receiver keeps `seq << 31 | index` in 63 bits.

MOST_RANGES = 64
"""The ranges of one request, at most 64 characters each: some servers take no header above 8 KiB. While a history is
delivered, each vnode has a place of its own."""

Position = tuple[int, int, int]
Span = tuple[Position, Position]
"""From a position on, and before another."""

Range = tuple[int, int, int, int, int, int]
"""(first vnode, last vnode, from seq, from index, to seq, to index), as the forward protocol writes it."""

_Mask = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CutRule:
    """How a batch is cut: a chunk closes before the row that would exceed `rows` or `bytes`. Rows before `done` are
    acknowledged; rows in `dead` are refused for good and recorded."""

    rows: int
    bytes: int
    done: Position | None = None
    dead: tuple[Span, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "bytes": self.bytes,
            "done": None if self.done is None else list(self.done),
            "dead": [[list(start), list(end)] for start, end in self.dead],
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        done = facts.get("done")
        dead = tuple((_to_position(start), _to_position(end)) for start, end in facts.get("dead", ()))
        return cls(facts["rows"], facts["bytes"], None if done is None else _to_position(done), dead)

    def skip_refused(self, chunk: Chunk, row: int | None) -> CutRule:
        """The rule that leaves out a refused row of a chunk, or all its rows; rows before the chunk are done."""
        span = (chunk.start, chunk.end) if row is None else _span_of(chunk.at(row))
        kept = (each for each in self.dead if each[1] > chunk.start and not (span[0] <= each[0] and each[1] <= span[1]))
        return replace(self, done=chunk.start, dead=(*kept, span))

    def halve(self, chunk: Chunk) -> CutRule:
        """The rule that halves this chunk and all later ones; rows before the chunk are done."""
        return replace(self, rows=max(1, chunk.rows.num_rows // 2), done=chunk.start)


@dataclass(frozen=True)
class Chunk:
    """Rows that are sent together. `missing` are refused rows within its span."""

    of: Batch = field(repr=False)
    start: Position
    end: Position
    rows: pa.RecordBatch = field(repr=False)
    missing: tuple[Span, ...] = ()
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)
    """Where each vnode of the batch ends, of those that have rows, while their history goes on."""

    @property
    def bytes(self) -> int:
        return int(_row_sizes(self.rows).sum())

    @property
    def ranges(self) -> list[Range]:
        """The range of each vnode; neighbouring vnodes with equal ranges are one."""
        found: list[Range] = []
        for vnode in sorted(self.of.vnodes):
            if not self.start[0] <= vnode <= self.end[0]:
                continue
            begin = self.start[1:] if vnode == self.start[0] else self.of.first_place(vnode)
            end = self.end[1:] if vnode == self.end[0] else self._end_of(vnode)
            is_named = self.of.is_first and self.of.is_backfill and begin == self.of.first_place(vnode)
            # The receiver must know every vnode of a first batch, also without rows.
            if begin >= end and not (is_named and vnode != self.end[0]):
                continue
            if found and found[-1][1] == vnode - 1 and found[-1][2:] == (*begin, *end):
                found[-1] = (found[-1][0], vnode, *begin, *end)
            else:
                found.append((vnode, vnode, *begin, *end))
        return found

    @property
    def is_first(self) -> bool:
        """Whether the receiver gets the first rows of a vnode. A chunk that continues a vnode is not first: a receiver
        that has lost the rows before it must not take it."""
        return self.of.is_first and any(range[2:4] == self.of.first_place(range[0]) for range in self.ranges)

    def _end_of(self, vnode: int) -> tuple[int, int]:
        """The place behind the last row of a vnode."""
        if self.of.end.has_history:
            return (self.of.upto + 1, 0)
        return self.ends.get(vnode, self.of.first_place(vnode))

    def key(self, generation: str) -> str:
        """A text that is unique to these rows of this batch and producer. It contains the batch's id because a lake
        restored from a copy gives seqs out again."""
        facts = json.dumps([generation, self.of.id, self.ranges, self.missing])
        return hashlib.sha256(facts.encode()).hexdigest()

    def at(self, row: int) -> Position:
        vnode, seq, index = (self.rows.column(name)[row].as_py() for name in (VNODE, SEQ, INDEX))
        return vnode, seq, index

    def identities(self, row: int | None) -> pa.RecordBatch:
        """The identities of one row, or of all rows, in the lake."""
        names = [*self.of.key] if self.of.key else [SEQ, ROW]
        return (self.rows if row is None else self.rows.slice(row, 1)).select(names)

    def halves(self) -> list[Chunk]:
        """Two chunks that together cover the same, each with half of the rows."""
        return self._split_before(self.rows.num_rows // 2)

    def split_held(self, held: Mapping[int, tuple[int, int]]) -> list[Chunk]:
        """Two chunks that together cover the same: a receiver with these positions has all rows of the first, or none.
        Only this chunk when the receiver has no row of it, or has all rows and the chunk ends with the last."""
        numbers = (self.rows.column(name).to_pylist() for name in (VNODE, SEQ, INDEX))
        is_held = [(seq, index) < held.get(vnode, (0, 0)) for vnode, seq, index in zip(*numbers, strict=True)]
        if not any(is_held):
            return [self]
        if not all(is_held):
            return self._split_before(is_held.index(not is_held[0]))
        # The receiver has all rows; the part behind them only moves its position.
        border = _span_of(self.at(self.rows.num_rows - 1))[1]
        return [self] if border == self.end else self._split(self.rows.num_rows, border)

    def split_vnodes(self) -> list[Chunk]:
        """The chunks that go out instead of this one: with one value of `is_first`, and no more than `MOST_RANGES`."""
        ranges = self.ranges
        is_within = self.start[1:] != self.of.first_place(self.start[0])
        if self.of.is_first and is_within and ranges and ranges[-1][1] > self.start[0]:
            border = self.start[0] + 1  # it continues its first vnode, and begins others
        elif len(ranges) > MOST_RANGES:
            border = ranges[MOST_RANGES][0]
        else:
            return [self]
        rows = int(np.searchsorted(_column_numbers(self.rows, VNODE), border))
        left, right = self._split(rows, (border, *self.of.first_place(border)))
        return [*left.split_vnodes(), *right.split_vnodes()]

    def _split_before(self, row: int) -> list[Chunk]:
        """Cut between two rows: at the second one, or where its vnode begins."""
        left, right = self.at(row - 1), self.at(row)
        return self._split(row, right if left[0] == right[0] else (right[0], *self.of.first_place(right[0])))

    def _split(self, row: int, border: Position) -> list[Chunk]:
        """Cut at a position with `row` rows before it. The two chunks meet there, so nothing is left out."""
        left = replace(self, end=border, rows=self.rows.slice(0, row))
        right = replace(self, start=border, rows=self.rows.slice(row))
        return [replace(half, missing=_spans_within(self.missing, half.start, half.end)) for half in (left, right)]


class Cutter:
    """Cuts one batch, once. `withheld` counts the rows that are not sent, also those before `done`."""

    def __init__(self, batch: Batch, rule: CutRule) -> None:
        self.rule = rule
        self.withheld = 0
        self._batch = batch
        at = list(batch.lane_schema.names).index(SEQ) + 1
        self._schema = batch.lane_schema.insert(at, pa.field(INDEX, pa.int64(), False))
        self._vnodes = sorted(batch.vnodes)
        self._start: Position = rule.done or (self._vnodes[0], *batch.first_place(self._vnodes[0]))
        self._last_vnode = self._start[0]
        self._pieces: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._passed: Position = (-1, 0, 0)
        self._ends: dict[int, tuple[int, int]] = {}
        self._firsts = np.array([batch.first_place(vnode) for vnode in range(self._vnodes[-1] + 1)], np.int64)

    def shrink(self, *, bytes: int | None = None, rows: int | None = None) -> None:
        """From the next chunk on, close earlier."""
        self.rule = replace(
            self.rule,
            bytes=self.rule.bytes if bytes is None else max(1, min(self.rule.bytes, bytes)),
            rows=self.rule.rows if rows is None else max(1, min(self.rule.rows, rows)),
        )

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        """Every chunk of the batch. The last one has no rows when none is left."""
        for batch in batches:
            if batch.num_rows:
                yield from self._cut_rows(self._select_leaving(batch))
            del batch  # before the next one is made
        yield self._close_chunk((self._vnodes[-1] + 1, *self._batch.first_place(self._vnodes[-1] + 1)))

    def _cut_rows(self, rows: pa.RecordBatch) -> Iterator[Chunk]:
        vnodes = _column_numbers(rows, VNODE)
        ends = np.cumsum(_row_sizes(rows))
        at = 0
        while at < rows.num_rows:
            count = self._count_fitting(ends, at)
            if count:
                piece = rows.slice(at, count)
                # Copied, so that a waiting piece does not keep this record batch in memory.
                self._pieces.append(_copy_rows(piece) if at + count == rows.num_rows else piece)
                self._rows += count
                self._bytes += int(ends[at + count - 1] - (ends[at - 1] if at else 0))
                at += count
                self._last_vnode = int(vnodes[at - 1])
            if at < rows.num_rows:
                yield self._close_chunk(self._border_before(rows, at))

    def _count_fitting(self, ends: Sizes, at: int) -> int:
        """How many rows from `at` on fit the chunk; a row that is too large for any chunk goes alone."""
        room = self.rule.bytes - self._bytes + (int(ends[at - 1]) if at else 0)
        count = min(self.rule.rows - self._rows, int(np.searchsorted(ends, room, side="right")) - at)
        count = max(count, 0 if self._rows else 1)
        return min(count, len(ends) - at)

    def _border_before(self, rows: pa.RecordBatch, at: int) -> Position:
        """The end of a chunk before this row: the row, or the begin of its vnode."""
        vnode, seq, index = (int(rows.column(name)[at].as_py()) for name in (VNODE, SEQ, INDEX))
        return (vnode, seq, index) if vnode == self._last_vnode else (vnode, *self._batch.first_place(vnode))

    def _close_chunk(self, end: Position) -> Chunk:
        rows = self._pieces[0] if len(self._pieces) == 1 else _join_rows(self._pieces, self._schema)
        missing = _spans_within(self.rule.dead, self._start, end)
        chunk = Chunk(self._batch, self._start, end, rows, missing, self._ends)
        self._start, self._last_vnode = end, end[0]
        self._pieces, self._rows, self._bytes = [], 0, 0
        return chunk

    def _select_leaving(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are still to be sent, with their indexes."""
        if not batch.schema.equals(self._batch.lane_schema):
            batch = conform(pa.Table.from_batches([batch]), self._batch.lane_schema).combine_chunks().to_batches()[0]
        vnodes, seqs = _column_numbers(batch, VNODE), _column_numbers(batch, SEQ)
        indexes = self._number_rows(vnodes, seqs)
        is_withheld = pc.equal(batch.column(OP), WITHHELD).to_numpy(zero_copy_only=False)
        self.withheld += int(is_withheld.sum())
        leaves = ~is_withheld
        if self.rule.done is not None:
            leaves &= _is_from(self.rule.done, vnodes, seqs, indexes)
        for start, end in self.rule.dead:
            leaves &= ~(_is_from(start, vnodes, seqs, indexes) & ~_is_from(end, vnodes, seqs, indexes))
        columns = list(batch.columns)
        columns.insert(self._schema.get_field_index(INDEX), pa.array(indexes, pa.int64()))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return rows if leaves.all() else rows.filter(pa.array(leaves))

    def _number_rows(self, vnodes: _Numbers, seqs: _Numbers) -> _Numbers:
        """The index of each row within its vnode and seq. `Internal` for rows out of order."""
        vnode, seq, index = self._passed
        last_vnodes, last_seqs = np.append(vnode, vnodes[:-1]), np.append(seq, seqs[:-1])
        is_new = (vnodes != last_vnodes) | (seqs != last_seqs)
        is_back = (vnodes < last_vnodes) | ((vnodes == last_vnodes) & (seqs < last_seqs))
        firsts = self._firsts[np.clip(vnodes, 0, len(self._firsts) - 1)]
        is_foreign = (seqs < firsts[:, 0]) | (seqs > self._batch.upto) | ~np.isin(vnodes, self._vnodes)
        wrong = np.flatnonzero(is_back | is_foreign)
        if len(wrong):
            at = int(wrong[0])
            raise Internal(
                f"a row of vnode {vnodes[at]} and seq {seqs[at]} is out of order, or not of the batch {self._batch.id},"
                f" which is ({self._batch.after}, {self._batch.upto}]",
                hint="Nothing of the chunk was sent. Please report this.",
                vnode=int(vnodes[at]),
                seq=int(seqs[at]),
            )
        places = np.arange(len(vnodes))
        starts = np.maximum.accumulate(np.where(is_new, places, -1))
        # Rows that follow others of their seq, which an earlier batch sent, go on with their numbers.
        before = np.where(seqs == firsts[:, 0], firsts[:, 1], 0)
        indexes = np.where(starts < 0, places + index + 1, places - starts + before).astype(np.int64)
        self._passed = int(vnodes[-1]), int(seqs[-1]), int(indexes[-1])
        for at in [*np.flatnonzero(vnodes[1:] != vnodes[:-1]).tolist(), len(vnodes) - 1]:
            self._ends[int(vnodes[at])] = int(seqs[at]), int(indexes[at]) + 1
        return indexes


def parse_positions(told: object, vnodes: int) -> dict[int, tuple[int, int]] | None:
    """A receiver's positions, `[[first vnode, last vnode, seq, index], …]`, by vnode; None when the answer is not of
    this form, names a vnode twice or has numbers out of range. Vnodes beyond `vnodes` are left out."""
    found: dict[int, tuple[int, int]] = {}
    if not isinstance(told, list):
        return None
    last_before = -1
    for each in sorted(told) if all(map(_is_range, told)) else [None]:
        if each is None or each[0] <= last_before:
            return None
        first, last_before, seq, index = each
        found |= dict.fromkeys(range(first, min(last_before, vnodes - 1) + 1), (seq, index))
    return found


def _is_range(told: object) -> bool:
    if not isinstance(told, list) or len(told) != 4 or not all(type(number) is int for number in told):
        return False
    first, last, seq, index = cast(list[int], told)
    return 0 <= first <= last and 0 <= seq < SEQS and 0 <= index < INDEXES


def _column_numbers(rows: pa.RecordBatch, name: str) -> _Numbers:
    return np.asarray(rows.column(name).to_numpy(), np.int64)


def _row_sizes(rows: pa.RecordBatch) -> Sizes:
    """The size of each row when written. A null counts 0, since the bytes below it are arbitrary."""
    total = np.zeros(rows.num_rows, np.int64)
    for values in rows.columns:
        sizes = row_bytes(values)
        total += np.where(values.is_null().to_numpy(zero_copy_only=False), 0, sizes) if values.null_count else sizes
    return total


def _is_from(position: Position, vnodes: _Numbers, seqs: _Numbers, indexes: _Numbers) -> _Mask:
    """For each row, whether it lies at the position or after it."""
    vnode, seq, index = position
    within = (seqs > seq) | ((seqs == seq) & (indexes >= index))
    return np.asarray((vnodes > vnode) | ((vnodes == vnode) & within))


def _spans_within(spans: Iterable[Span], start: Position, end: Position) -> tuple[Span, ...]:
    return tuple(span for span in spans if span[0] < end and span[1] > start)


def _span_of(position: Position) -> Span:
    vnode, seq, index = position
    return position, (vnode, seq, index + 1)


def _to_position(numbers: Sequence[int]) -> Position:
    vnode, seq, index = numbers
    return vnode, seq, index


def _copy_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.concat_arrays([each]) for each in rows.columns], schema=rows.schema)


def _join_rows(pieces: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
    return pa.concat_batches(pieces)
