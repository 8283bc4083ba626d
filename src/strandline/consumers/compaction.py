"""Fold the log into the baseline.

Vnodes without changes keep their files; of the others the old files go and the new ones come in the commit that
also moves the marks. The rows are merged and sorted by DuckDB on the driver when they are few, by Spark when they
are many; the same lane writes them in both cases.

After a crash: either the commit landed, files and marks together, or the new files are orphans and the old fold
holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline import fold as folds
from strandline.change import HASH, VNODE
from strandline.crash import crash_point
from strandline.dialect import listed
from strandline.errors import Conflict
from strandline.frames import spark_frame
from strandline.lanes import RECEIPT, BaselineLane, files_of
from strandline.log import check_there
from strandline.merge import Merge, duck_sql
from strandline.spark import run_lane, session
from strandline.storage.delta import DataFile
from strandline.vnode import shift_for, vnode_of

if TYPE_CHECKING:
    from strandline.table import Table

DRIVER_ROWS = 2_000_000
DRIVER_BYTES = 512 << 20


def fold(table: Table, *, driver_rows: int = DRIVER_ROWS) -> int:
    """Fold everything up to the head; returns that seq."""
    with table.folding:
        merge = table.merge()
        if not merge.log_files():
            return merge.seq
        log = [file for _, file in merge.log_files()]
        is_small = sum(f.rows for f in log) <= driver_rows
        touched = _touched(table, merge) if is_small else _touched_by_statistics(merge)
        removed = [file for vnode in touched for file in merge.baseline.files(vnode)]
        sources = [*removed, *log]
        is_small = sum(f.rows for f in sources) <= driver_rows and sum(f.raw_bytes for f in sources) <= DRIVER_BYTES
        added = (_on_driver if is_small else _on_spark)(table, merge, touched)
        crash_point("fold.files_written")
        check_there(table.baseline.storage, table.baseline.folder, added)
        try:
            table.baseline.commit_fold(merge.baseline, merge.definition, upto=merge.seq, removed=removed, added=added)
        except Conflict:
            _discard(table, added)
            raise
        crash_point("fold.committed")
        return merge.seq


def _touched(table: Table, merge: Merge) -> list[int]:
    """The vnodes that have changes to fold."""
    with table.duck.transaction() as cursor:
        source = table.pinned_fold(cursor, merge)
        if source is None:
            source = f"({folds.changes_sql(merge.log, merge.log_files(), [HASH], merge.baseline.marks)})"
        vnode = f"{HASH} >> {shift_for(merge.baseline.vnodes)}"
        found = cursor.sql(f"SELECT DISTINCT {vnode} AS v FROM {source} ORDER BY v").to_arrow_table()
    return [int(v) for v in found.column("v").to_pylist()]


def _touched_by_statistics(merge: Merge) -> list[int]:
    """The vnodes that may have changes: those between each log file's lowest and highest hash."""
    vnodes: set[int] = set()
    for _, file in merge.log_files():
        low, high = file.stats["minValues"][HASH], file.stats["maxValues"][HASH]
        vnodes.update(range(vnode_of(low, merge.baseline.vnodes), vnode_of(high, merge.baseline.vnodes) + 1))
    return sorted(vnodes)


def _on_driver(table: Table, merge: Merge, touched: Sequence[int]) -> list[DataFile]:
    order = listed([VNODE, *merge.definition.identity])
    numbers = ", ".join(map(str, touched))
    with table.duck.transaction() as cursor:
        rows = duck_sql(merge, table.pinned_fold(cursor, merge), merge.definition.schema.names, hidden=True)
        reader = cursor.sql(f"SELECT * FROM ({rows}) WHERE {VNODE} IN ({numbers}) ORDER BY {order}").to_arrow_reader(
            50_000
        )
        receipts = [row for batch in _lane(table, merge)(iter(reader)) for row in batch.to_pylist()]
    return _files(table, receipts)


def _on_spark(table: Table, merge: Merge, touched: Sequence[int]) -> list[DataFile]:
    from pyspark.sql import functions as F

    spark = session(table.spark)
    names = merge.definition.schema.names
    rows = spark_frame(spark, merge, table.fold_frame(spark, merge), names, hidden=True)
    lanes = rows.where(F.col(VNODE).isin(*touched)).repartitionById(merge.baseline.vnodes, F.col(VNODE).cast("int"))
    ordered = lanes.sortWithinPartitions(VNODE, *[f"`{name}`" for name in merge.definition.identity])
    return _files(table, run_lane(ordered, _lane(table, merge), RECEIPT).collect())


def _lane(table: Table, merge: Merge) -> BaselineLane:
    return BaselineLane(merge.log.storage, table.baseline.folder, merge.definition)


def _files(table: Table, receipts: Sequence[object]) -> list[DataFile]:
    files, failure = files_of(receipts)
    if failure is not None:
        _discard(table, files)
        raise failure
    return files


def _discard(table: Table, files: Sequence[DataFile]) -> None:
    """Delete files of ours that no commit claims and none will."""
    table.baseline.storage.delete(f"{table.baseline.folder}/{file.path}" for file in files)
