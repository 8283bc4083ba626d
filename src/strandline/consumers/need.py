"""Which vnodes of a table need to be folded, and why: a plan as data, from commit files and statistics alone."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strandline.change import VNODE
from strandline.expiry import expired_rows
from strandline.merge import Merge, vnodes_of
from strandline.storage.snapshot import DataFile

if TYPE_CHECKING:
    from strandline.table import Table


@dataclass(frozen=True)
class Need:
    """What a vnode's fold would do. `rows` is how many changes wait, evenly spread over each file's hashes; `why`
    says why it is due, and is empty when it is not."""

    vnode: int
    rows: int
    files: int
    base_rows: int
    base_bytes: int
    expired: int
    why: str

    @property
    def ratio(self) -> float:
        """How much of it is new or expired, against what is folded."""
        return (self.rows + self.expired) / max(1, self.base_rows)


@dataclass(frozen=True)
class CompactPlan:
    """What a compaction would do now: the vnodes that are due, the neediest first."""

    table: str
    upto: int
    due: tuple[Need, ...]
    waiting_rows: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(table: Table, *, full: bool = False, now: dt.datetime | None = None) -> CompactPlan:
    """Which vnodes are due, from commit files and statistics alone; with `full`, every one that has changes."""
    return plan_of(table, table.merge(), full, now)[0]


def plan_of(table: Table, merge: Merge, full: bool, now: dt.datetime | None) -> tuple[CompactPlan, list[int]]:
    """The plan, and the vnodes without changes: their marks move for free."""
    definition, marks = merge.definition, np.array(merge.baseline.marks)
    count = len(marks)
    rows, files, oldest_ms = np.zeros(count), np.zeros(count, int), np.full(count, np.inf)
    for seq, file in merge.log_files():
        at = vnodes_of(file, count)
        part = slice(at.start, at.stop)
        open_ = marks[part] < seq
        rows[part] += open_ * (file.rows / len(at))
        files[part] += open_
        oldest_ms[part] = np.where(open_, np.minimum(oldest_ms[part], file.modified_ms), oldest_ms[part])
    base_rows, base_bytes, expired = np.zeros(count, int), np.zeros(count, int), np.zeros(count, int)
    stale = np.zeros(count, bool)
    for file in merge.baseline.files():
        vnode = int(file.partition[VNODE] or 0)
        base_rows[vnode] += file.rows
        base_bytes[vnode] += file.raw_bytes
        expired[vnode] += expired_rows(file, definition, merge.horizon)
        stale[vnode] |= has_dropped(file, merge)
    now_ms = (now or dt.datetime.now(dt.UTC)).timestamp() * 1000
    care = definition.care
    needs = []
    for vnode in range(count):
        waiting = round(rows[vnode]) or int(files[vnode] > 0)
        why = ""
        if waiting > care.fold_ratio * base_rows[vnode]:
            changes = "1 change" if waiting == 1 else f"{waiting:,} changes"
            why = f"{changes} against {base_rows[vnode]:,} folded rows"
        elif files[vnode] > care.fold_files:
            why = f"changes lie in {files[vnode]:,} files"
        elif waiting and now_ms - oldest_ms[vnode] > care.fold_age * 1000:
            why = "changes wait for too long"
        elif expired[vnode] > care.fold_ratio * base_rows[vnode]:
            why = f"{expired[vnode]:,} of {base_rows[vnode]:,} rows are expired"
        elif full and (waiting or expired[vnode] or stale[vnode]):
            why = "asked for"
        sizes = (int(base_rows[vnode]), int(base_bytes[vnode]), int(expired[vnode]))
        needs.append(Need(vnode, waiting, int(files[vnode]), *sizes, why))
    due = sorted((need for need in needs if need.why), key=lambda need: -need.ratio)
    idle = [need.vnode for need in needs if not need.rows and not need.why]
    return CompactPlan(table.name, merge.seq, tuple(due), round(rows.sum())), idle


def has_dropped(file: DataFile, merge: Merge) -> bool:
    """Whether a file still holds a column that the table has dropped."""
    definition = merge.definition
    inside = definition.schemas[int(file.path.split("-", 1)[0])]
    return not set(inside.names) <= set(definition.schema.names)
