"""Rows on their way from the tasks that read files to those that write log files: in blocks of Arrow data.

Spark shuffles a few large values instead of many rows: a task sorts the rows that it has read, keeps the last one of
each key, and cuts them by ranges of hashes. The task of a range merges its blocks. There are so many ranges that each
one fits into memory. Equal keys have equal hashes, so a key has one row in a commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.log_lane import LogLane
from strandline.jobs.ingest.part_lane import ORDER, PartLane
from strandline.model.change import HASH
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, same_as_next, shift_for
from strandline.storage.open import Storage

BLOCKS = "range int, block binary"
RANGE_BYTES = 64 << 20
MOST_RANGES = 1024
_BLOCK_BYTES = 64 << 20


def count_ranges(raw_bytes: int, least: int) -> int:
    """The number of ranges for so many bytes of rows: a power of two."""
    count = least
    while count < MOST_RANGES and count * RANGE_BYTES < raw_bytes:
        count *= 2
    return count


@dataclass(frozen=True)
class CutLane:
    """Reads parts of files, as `PartLane` does, into sorted blocks, one for each range of hashes."""

    lane: PartLane
    ranges: int

    @property
    def storage(self) -> Storage:
        return self.lane.storage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for rows in self.lane(batches):
            held.append(rows)
            size += rows.nbytes
            if size >= _BLOCK_BYTES:
                yield self._cut_blocks(held)
                held, size = [], 0
        if held:
            yield self._cut_blocks(held)

    def _cut_blocks(self, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        definition = self.lane.definition
        rows = pa.Table.from_batches(held)
        rows = rows.append_column(HASH, hash_keys([rows.column(name) for name in definition.key]))
        rows = _sort_rows(rows, definition)
        rows = rows.filter(pc.invert(same_as_next(rows, [HASH, *definition.key]))).combine_chunks()
        hashes = rows.column(HASH).to_numpy()
        shift = shift_for(self.ranges)
        stops = np.searchsorted(hashes, np.arange(1, self.ranges + 1, dtype=np.int64) << shift)
        numbers, blocks, start = [], [], 0
        for number, stop in enumerate(stops.tolist()):
            if stop > start:
                numbers.append(number)
                blocks.append(_pack_rows(rows.slice(start, stop - start)))
            start = stop
        return pa.record_batch({"range": pa.array(numbers, pa.int32()), "block": pa.array(blocks, pa.binary())})


@dataclass(frozen=True)
class MergeLane:
    """Merges the blocks of a range and writes its rows as log files. Of the rows of a key the last one wins, in the
    order of the files; with a version column, the last one of the highest version."""

    log: LogLane

    @property
    def storage(self) -> Storage:
        return self.log.storage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.log(self._merge(batches))

    def _merge(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks = [
            pa.ipc.open_stream(block.as_buffer()).read_all() for batch in batches for block in batch.column("block")
        ]
        if blocks:
            rows = pa.concat_tables(blocks).combine_chunks()
            blocks.clear()
            # The lane sorts by key and keeps this order among equal keys.
            yield from rows.sort_by(ORDER).drop_columns([ORDER]).to_batches()


def _sort_rows(rows: pa.Table, definition: TableDef) -> pa.Table:
    """The rows by hash, key, version and place in the load."""
    names = dict.fromkeys([HASH, *definition.key, *filter(None, [definition.version]), ORDER])
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


def _pack_rows(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())
