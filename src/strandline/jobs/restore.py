"""Set a table back to an earlier seq: the difference between then and now, as one commit of upserts and deletes.

Only keys that changed since are written, so the cost depends on the changes, not on the table. Readers see the table
before or after. Rows that others write during the restore stay. If they write a key that the restore changes, the
difference is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.consumers.feed import size_of
from strandline.engines.choice import BULK, DriverLimit
from strandline.engines.scan import listed
from strandline.engines.spark import session
from strandline.errors import Conflict, Invalid
from strandline.model.change import DELETE, HASH, OP, PACKED, UPSERT, Commit
from strandline.retry import until_landed
from strandline.storage.snapshot import DataFile, Draft, Snapshot
from strandline.tables import fold as folds
from strandline.tables.log import Amend, LogState, prepare
from strandline.tables.merge import TableAt, duck_sql
from strandline.tables.spark_files import changed_keys
from strandline.tables.spark_read import read_frame
from strandline.tables.store import At, TableStore
from strandline.tables.writing import write_frame


@dataclass(frozen=True)
class RestorePlan:
    """A restore to the seq `at`; `changed` keys were written or deleted since."""

    table: str
    at: int
    changed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_restore(table: TableStore, at: At) -> RestorePlan:
    """What a restore would change."""
    then = table.merge(at).seq
    check_restorable(table, then)
    names = list(table.definition.key)
    keys = table.changes(after=then).select(names).group_by(names, use_threads=False).aggregate([])
    return RestorePlan(table.name, then, keys.num_rows)


def restore(table: TableStore, at: At, *, limit: DriverLimit = BULK) -> Commit:
    """Set the table back to `at`, in one commit. More changes than `limit` are computed by Spark."""

    def attempt() -> Commit:
        then = table.merge(at)
        check_restorable(table, then.seq)
        changed = size_of(then.log.files(then.seq, then.log.head))
        if not changed.rows:
            return Commit(then.log.head, 0)
        is_small = limit.takes(rows=changed.rows, raw_bytes=changed.raw_bytes)
        return (_restore_on_driver if is_small else _restore_on_spark)(table, then)

    return until_landed(attempt)


def check_restorable(table: TableStore, seq: int) -> None:
    """`Invalid` for a table that cannot be restored."""
    definition = table.definition
    hint = f"Read it as it was: to_arrow(at={seq})."
    if not definition.is_keyed:
        raise Invalid(
            f"table {table.name!r} has no key: appended rows cannot be removed",
            hint=hint,
            table=table.name,
        )
    if definition.version is not None:
        raise Invalid(
            f"table {table.name!r} has a version column: a restored row with a lower version would not count",
            hint=hint,
            table=table.name,
        )


def _files_to_read(then: TableAt) -> dict[str, DataFile]:
    """The files that a restore reads, by their paths in the storage."""
    changes = then.log.files(then.seq, then.log.head)
    base, log = then.baseline.folder, then.log.folder
    return {
        **{f"{base}/{file.path}": file for file in then.base_files()},
        **{f"{log}/{file.path}": file for _, file in [*then.log_files(), *changes]},
    }


def _restore_on_driver(table: TableStore, then: TableAt) -> Commit:
    definition = then.definition
    table.verify(_files_to_read(then), spark=None, is_folded=True)
    key = listed(definition.key)
    changes = folds.changes_sql(then.log, then.log.files(then.seq, then.log.head), [*definition.key], None)
    with table.duck.transaction() as cursor:
        fold = table.pinned_fold(cursor, then)
        cursor.execute(f"CREATE TEMP TABLE _changed AS SELECT DISTINCT {key} FROM ({changes})").fetchall()
        rows = duck_sql(then, fold, definition.schema.names)
        cursor.execute(f"CREATE TEMP TABLE _was AS SELECT * FROM ({rows}) SEMI JOIN _changed USING ({key})").fetchall()
        batch_rows = then.batch_rows()
        upserts = cursor.sql("SELECT * FROM _was").to_arrow_table(batch_rows)
        deletes = cursor.sql(f"SELECT {key} FROM _changed ANTI JOIN _was USING ({key})").to_arrow_table(batch_rows)
    parts = [prepare(upserts, definition, UPSERT), prepare(deletes, definition, DELETE)]
    both = pa.concat_tables(parts).sort_by([(name, "ascending") for name in (HASH, *definition.key)])
    files = table.log.write(both, definition)
    return table.log.commit(files, operation="RESTORE", amend=_refuse_overlap(then.log))


def _restore_on_spark(table: TableStore, then: TableAt) -> Commit:
    from pyspark.sql import functions as F

    definition = then.definition
    spark = session(table.spark)
    key = list(definition.key)
    table.verify(_files_to_read(then), spark=spark, is_folded=True)
    changed = changed_keys(spark, then, then.log.files(then.seq, then.log.head)).persist()
    try:
        rows = read_frame(spark, then, table.fold_frame(spark, then), definition.schema.names)
        was = rows.join(changed, on=key, how="left_semi").withColumn(OP, F.lit(UPSERT))
        gone = changed.join(was, on=key, how="left_anti").withColumn(OP, F.lit(DELETE))
        both = was.unionByName(gone, allowMissingColumns=True)
        return write_frame(table.log, both, definition, None, order_by=None, tokens=(), amend=_refuse_overlap(then.log))
    finally:
        changed.unpersist()


def _refuse_overlap(log: LogState) -> Amend:
    """Refuse the commit when a commit after `log` changes one of its keys."""

    def amend(snapshot: Snapshot, draft: Draft) -> Draft:
        now = LogState(snapshot, log.storage, log.folder)
        since = [file for _, file in now.files(max(log.head, now.trimmed_to), now.head)]
        if (
            since
            and pc.any(pc.is_in(_read_hashes(log, since), value_set=_read_hashes(log, draft.add)), min_count=0).as_py()
        ):
            raise Conflict(
                "another process wrote rows that the restore would change; nothing was written",
                hint="Try again when fewer writes are running.",
            )
        return draft

    return amend


def _read_hashes(log: LogState, files: Iterable[DataFile]) -> pa.ChunkedArray:
    """The hashes of the keys in log files."""
    return pa.chunked_array([chunk for file in files for chunk in _read_column(log, file).chunks], pa.int64())


def _read_column(log: LogState, file: DataFile) -> pa.ChunkedArray:
    """The hashes of one file; of a pack, those within its range."""
    names = [HASH] if file.within is None else [HASH, PACKED]
    rows = pq.read_table(log.storage.input(f"{log.folder}/{file.path}"), columns=names)
    if file.within is not None:
        after, upto = file.within
        rows = rows.filter(pc.and_(pc.greater(rows.column(PACKED), after), pc.less_equal(rows.column(PACKED), upto)))
    return rows.column(HASH)
