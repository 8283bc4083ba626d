"""Which vnodes of a table need to be folded, and why, and which files of its log to pack: a plan as data, from commit
files and statistics alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from strandline.consumers.packing import PackNeed, plan_packs
from strandline.model.change import VNODE
from strandline.model.definition import TableDef
from strandline.storage.snapshot import DataFile, schema_id_of
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.collection import Tables
from strandline.tables.horizon import expired_rows
from strandline.tables.log import first_seq
from strandline.tables.merge import TableAt, vnodes_of
from strandline.tables.store import TableStore

# Changes of up to this size are folded from the files of their commits.
DIRECT_BYTES = 256 << 20


@dataclass(frozen=True)
class VnodeNeed:
    """What a vnode's fold would do. `rows` estimates its waiting changes, by spreading those of each file evenly; `why`
    says why the vnode is due, and is empty when it is not."""

    vnode: int
    rows: int
    files: int
    base_rows: int
    base_bytes: int
    expired: int
    why: str

    @property
    def ratio(self) -> float:
        """New and expired rows per folded row."""
        return (self.rows + self.expired) / max(1, self.base_rows)


@dataclass(frozen=True)
class CompactPlan:
    """What a compaction would do now: the vnodes that are due, the neediest first, and the packs of its log."""

    table: str
    upto: int
    due: tuple[VnodeNeed, ...]
    waiting_rows: int
    packs: tuple[PackNeed, ...] = ()

    @property
    def packed_files(self) -> int:
        return sum(need.files for need in self.packs)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(table: TableStore, *, full: bool = False, now: dt.datetime | None = None) -> CompactPlan:
    """Which vnodes are due, from commit files and statistics alone; with `full`, every vnode with changes."""
    merge = table.merge()
    found, _ = plan_of(table, merge, full, now)
    folded = folded_upto(merge, {need.vnode for need in found.due})
    return replace(found, packs=tuple(PackNeed.of(bundle) for bundle in plan_packs(merge.log, folded)))


def folded_upto(merge: TableAt, due: Collection[int]) -> int:
    """The seq up to which no change will wait in the log when the due vnodes are folded. Of many changes, those that
    wait now are meant: their fold is quicker when small files are packed before it."""
    files, marks = merge.log_files(), merge.baseline.marks
    if sum(file.raw_bytes for _, file in files) > DIRECT_BYTES:
        due = ()
    for seq, file in files:
        if any(marks[vnode] < seq and vnode not in due for vnode in vnodes_of(file, len(marks))):
            return first_seq(seq, file) - 1
    return merge.seq


def plan_tables(tables: Tables, names: Sequence[str], *, full: bool) -> list[CompactPlan | BrokenTable]:
    """The plans of several tables; a broken one stops no other."""

    def plan_one(name: str) -> CompactPlan:
        return plan(tables.table(name), full=full)

    return [try_table(name, partial(plan_one, name)) for name in names]


def plan_of(table: TableStore, merge: TableAt, full: bool, now: dt.datetime | None) -> tuple[CompactPlan, list[int]]:
    """The plan, and the vnodes without changes, whose marks can move without a fold."""
    definition, marks = merge.definition, np.array(merge.baseline.marks)
    count = len(marks)
    rows, files, oldest_ms = np.zeros(count), np.zeros(count, int), np.full(count, np.inf)
    for seq, file in merge.log_files():
        at = vnodes_of(file, count)
        part = slice(at.start, at.stop)
        open_ = marks[part] < seq
        share = 1.0 if file.pack is None else np.array([file.pack.share(mark, seq) for mark in marks[part]])
        rows[part] += open_ * share * (file.rows / len(at))
        files[part] += open_
        oldest_ms[part] = np.where(open_, np.minimum(oldest_ms[part], file.oldest_ms), oldest_ms[part])
    base = _base_of(merge)
    waiting = np.maximum(np.rint(rows).astype(int), files > 0)
    now_ms = (now or dt.datetime.now(dt.UTC)).timestamp() * 1000
    settings = definition.settings
    is_much = waiting > settings.compact_ratio * base.rows
    is_old = (waiting > 0) & (now_ms - oldest_ms > settings.compact_age * 1000)
    is_expired = base.expired > settings.compact_ratio * base.rows
    is_due = is_much | is_old | is_expired
    if full:
        is_due |= (waiting > 0) | (base.expired > 0) | base.is_stale
    due = []
    for vnode in map(int, np.flatnonzero(is_due)):
        why = "asked for"
        if is_much[vnode]:
            changes = "1 change" if waiting[vnode] == 1 else f"{waiting[vnode]:,} changes"
            why = f"{changes} against {base.rows[vnode]:,} compacted rows"
        elif is_old[vnode]:
            why = "changes have waited too long"
        elif is_expired[vnode]:
            why = f"{base.expired[vnode]:,} of {base.rows[vnode]:,} rows are expired"
        sizes = (int(base.rows[vnode]), int(base.bytes[vnode]), int(base.expired[vnode]))
        due.append(VnodeNeed(vnode, int(waiting[vnode]), int(files[vnode]), *sizes, why))
    due.sort(key=lambda need: -need.ratio)
    idle = [int(vnode) for vnode in np.flatnonzero((waiting == 0) & ~is_due)]
    return CompactPlan(table.name, merge.seq, tuple(due), round(rows.sum())), idle


@dataclass(frozen=True)
class _Base:
    """The contents of the baseline files, by vnode."""

    rows: np.ndarray
    bytes: np.ndarray
    expired: np.ndarray
    is_stale: np.ndarray


def _base_of(merge: TableAt) -> _Base:
    """The contents of the baseline, counted once for each version of it."""
    definition, state = merge.definition, merge.baseline
    place = (definition.schema_id, merge.horizon)
    if place not in state.counted:
        count = state.vnodes
        base = _Base(np.zeros(count, int), np.zeros(count, int), np.zeros(count, int), np.zeros(count, bool))
        for file in state.files():
            vnode = int(file.partition[VNODE] or 0)
            base.rows[vnode] += file.rows
            base.bytes[vnode] += file.raw_bytes
            base.expired[vnode] += expired_rows(file, definition, merge.horizon)
            base.is_stale[vnode] |= has_dropped_column(file, definition)
        state.counted.clear()
        state.counted[place] = base
    found: _Base = state.counted[place]
    return found


def has_dropped_column(file: DataFile, definition: TableDef) -> bool:
    """Whether a file still holds a column that the table has dropped."""
    return schema_id_of(file) in definition.stale_schemas
