"""Slices of a table: ranges of vnodes, which one Spark task reads each.

A vnode is a range of key hashes. So a slice is the same rows whatever compaction does meanwhile, and all changes of
one key are in one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from strandline.model.keys import hash_condition
from strandline.storage.snapshot import DataFile
from strandline.tables.merge import TableAt, vnodes_of

# Of rows in memory: a task that reads fewer costs more than it saves.
TASK_BYTES = 32 << 20


@dataclass(frozen=True)
class Slice:
    """The vnodes in `[first, end)` of `vnodes`."""

    first: int
    end: int
    vnodes: int

    @property
    def hashes(self) -> str:
        """SQL for the condition that a change's hash lies in the slice."""
        return hash_condition(range(self.first, self.end), self.vnodes)

    @property
    def is_whole(self) -> bool:
        return self.end - self.first == self.vnodes


class SlicePartition(InputPartition):  # type: ignore[misc]
    """A slice of the table at a seq, or with `after` of the changes in `(after, seq]`."""

    def __init__(self, part: Slice, seq: int, after: int | None = None) -> None:
        super().__init__((part, seq, after))
        self.part = part
        self.seq = seq
        self.after = after


def vnode_sizes(base: Iterable[DataFile], log: Iterable[DataFile], vnodes: int) -> tuple[list[int], list[int]]:
    """The rows and the bytes in memory of each vnode, by statistics: a log file counts evenly for its vnodes."""
    rows, sizes = [0] * vnodes, [0] * vnodes
    pairs = [(file, range(int(file.partition["_vnode"] or 0), int(file.partition["_vnode"] or 0) + 1)) for file in base]
    for file, held in [*pairs, *((file, vnodes_of(file, vnodes)) for file in log)]:
        for vnode in held:
            rows[vnode] += -(-file.rows // len(held))
            sizes[vnode] += -(-file.raw_bytes // len(held))
    return rows, sizes


def table_sizes(merge: TableAt) -> tuple[list[int], list[int]]:
    """`vnode_sizes` of a table at a seq."""
    log = [file for _, file in merge.log_files()]
    return vnode_sizes(merge.base_files(), log, merge.baseline.vnodes)


def cut(sizes: Sequence[int], first: int = 0, end: int | None = None) -> Iterator[Slice]:
    """Slices of about `TASK_BYTES` over the vnodes in `[first, end)`, without those that hold nothing."""
    end = len(sizes) if end is None else end
    begin, held = first, 0
    for vnode in range(first, end):
        if held and held + sizes[vnode] > TASK_BYTES:
            yield Slice(begin, vnode, len(sizes))
            held = 0
        if sizes[vnode] and not held:
            begin = vnode
        held += sizes[vnode]
    if held:
        yield Slice(begin, end, len(sizes))
