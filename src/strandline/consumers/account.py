"""Check a fold before it commits: every row of the baseline and every change must be accounted for.

For each vnode: kept rows + removed rows = the rows of the baseline, by its commits. Added rows + rows that expired at
once = the keys whose last change is an upsert. Written rows = kept rows + added rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from strandline.errors import Corrupt, Internal
from strandline.model.change import CAME, GONE, KEPT, LOST, VNODE
from strandline.storage.snapshot import DataFile
from strandline.tables.log import first_seq
from strandline.tables.merge import TableAt, vnodes_of


@dataclass(frozen=True)
class ExpectedRows:
    """What a fold has to account for: rows of the baseline and winning upserts by vnode, and the number of changes;
    None when unknown."""

    base: Mapping[int, int]
    upserts: Mapping[int, int] | None = None
    changes: int | None = None


def rows_by_vnode(files: Sequence[DataFile]) -> Counter[int]:
    found: Counter[int] = Counter()
    for file in files:
        found[int(file.partition[VNODE] or 0)] += file.rows
    return found


def changes_of(part: TableAt, vnodes: Collection[int]) -> int | None:
    """The number of changes of these vnodes; None when a log file holds other vnodes or folded changes too."""
    rows = 0
    for seq, file in part.log_files():
        touched = vnodes_of(file, part.baseline.vnodes)
        first = first_seq(seq, file)
        if not set(touched) <= set(vnodes) or any(part.baseline.marks[vnode] >= first for vnode in touched):
            return None
        rows += file.rows
    return rows


def check_counts(
    part: TableAt, expected: ExpectedRows, counts: Mapping[tuple[int, int], int], added: Sequence[DataFile]
) -> None:
    """`Corrupt` when the fold read other row counts than the commits name, `Internal` when it did not write all that it
    read."""
    table = part.log.storage.url(part.log.folder)
    written = rows_by_vnode(added)
    for vnode in sorted(part.only or ()):
        kept, gone, came, lost = (counts.get((vnode, fate), 0) for fate in (KEPT, GONE, CAME, LOST))
        base = expected.base.get(vnode, 0)
        if kept + gone != base:
            raise Corrupt(
                f"vnode {vnode} of {table}: its baseline files hold {kept + gone} rows, and their commits say {base};"
                " nothing was folded",
                hint="See what is affected: strandline doctor --deep",
                vnode=vnode,
            )
        if expected.upserts is not None and came + lost != expected.upserts.get(vnode, 0):
            raise Internal(
                f"vnode {vnode} of {table}: {came + lost} rows were to be written for {expected.upserts.get(vnode, 0)}"
                " keys that were upserted; nothing was folded",
                vnode=vnode,
            )
        if written[vnode] != kept + came:
            raise Internal(
                f"vnode {vnode} of {table}: {written[vnode]} rows were written of {kept + came}; nothing was folded",
                vnode=vnode,
            )
    found = sum(count for (_, fate), count in counts.items() if fate in (CAME, LOST))
    if expected.changes is not None and found != expected.changes:
        raise Corrupt(
            f"{table}: its files hold {found} changes to fold, and their commits say {expected.changes}; nothing was"
            " folded",
            hint="See what is affected: strandline doctor --deep",
        )
