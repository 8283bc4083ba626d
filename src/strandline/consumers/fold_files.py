"""Write the files of a fold: the rows of some vnodes, merged with their changes and sorted by key.

Large files of a vnode without changed keys stay; the others are rewritten. DuckDB merges and sorts few rows on the
driver, Spark many; the same lane writes them in both cases. Written files do not count before a commit claims them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strandline.consumers.account import ExpectedRows, changes_of, check_counts, rows_by_vnode
from strandline.consumers.compaction_plan import has_dropped_column
from strandline.engines.lanes import RECEIPT, BaselineLane, counts_of, files_of
from strandline.engines.scan import duck_type, listed, literal, quoted
from strandline.engines.spark import collect, run_lane, running_job, session
from strandline.errors import StrandlineError
from strandline.model.change import HASH, OP, UPSERT, VNODE
from strandline.model.keys import shift_for
from strandline.model.names import backticked
from strandline.storage import digest
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile
from strandline.tables import fold as folds
from strandline.tables.horizon import expired_rows
from strandline.tables.merge import Files, TableAt, duck_sql
from strandline.tables.spark_merge import check_files, spark_frame
from strandline.tables.store import TableStore

LOADED_BYTES = 128 << 20
SPARK_TASKS = 64
# A file of this size stays when nothing in it changes; smaller ones are packed together.
WHOLE_BYTES = writer.DEFAULT.file_bytes // 4


def fold_on_driver(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The new files, and the files that they replace."""
    order = listed([VNODE, *part.definition.identity])
    # The contents of a damaged file must not be written again under a good digest.
    digest.check(part.log.storage, part.deciding_files().items())
    with table.duck.transaction() as cursor:
        loaded = _load_changes(cursor, part)
        fold = _make_fold(cursor, part, loaded)
        kept = _settled_files(part) | (_untouched_files(cursor, part, fold) if fold else set())
        removed = [file for file in part.base_files() if file.path not in kept]
        sources = Files([f for f in removed if not _is_expired(f, part)], part.log_files())
        digest.check(part.log.storage, _with_paths(part, sources.baseline))
        rows = duck_sql(part, fold, part.definition.schema.names, files=sources, loaded=loaded, fates=True)
        chosen = ", ".join(map(str, sorted(part.only or ())))
        ordered = cursor.sql(f"SELECT * FROM ({rows}) WHERE {VNODE} IN ({chosen}) ORDER BY {order}")
        # Closed even if the lane fails: a transaction cannot end while a result is open.
        with ordered.to_arrow_reader(part.batch_rows()) as reader:
            receipts = [row for batch in _make_lane(table, part)(iter(reader)) for row in batch.to_pylist()]
        expected = ExpectedRows(rows_by_vnode(sources.baseline), _count_upserts(cursor, part, fold))
        added = _check_account(table, part, receipts, expected)
    return added, removed


def _count_upserts(cursor: Any, part: TableAt, fold: str | None) -> dict[int, int] | None:
    """By vnode, the number of keys whose last change is an upsert, or of appended rows; None when a version column lets
    rows of the baseline win."""
    if part.definition.version is not None and part.base_files():
        return None
    changes = fold or f"({folds.changes_sql(part.log, part.log_files(), [HASH, OP], part.baseline.marks)})"
    vnode = f"({HASH} >> {shift_for(part.baseline.vnodes)})"
    found = cursor.sql(f"SELECT {vnode} AS v, count(*) AS n FROM {changes} WHERE {OP} = '{UPSERT}' GROUP BY 1")
    return dict(zip(*found.to_arrow_table().to_pydict().values(), strict=True))


def _load_changes(cursor: Any, part: TableAt) -> str | None:
    """Load the changes of these vnodes into a temporary table, if they are few: many small files open slowly."""
    files, definition = part.log_files(), part.definition
    if not definition.is_keyed or sum(file.raw_bytes for _, file in files) > LOADED_BYTES:
        return None
    columns = [*definition.schema.names, HASH, OP]
    cursor.execute(
        f"CREATE TEMP TABLE _own_log AS {folds.changes_sql(part.log, files, columns, part.baseline.marks)}"
    ).fetchall()
    return "_own_log"


def _make_fold(cursor: Any, part: TableAt, loaded: str | None) -> str | None:
    """Make the fold of these vnodes for this transaction, from their own files alone."""
    files = part.log_files()
    if not part.definition.is_keyed or not files or part.is_first_load:
        return None
    winners = folds.winners(part.log, files, part.baseline.marks, loaded)
    cursor.execute(f"CREATE TEMP TABLE _own_fold AS {winners}").fetchall()
    return "_own_fold"


def _settled_files(part: TableAt) -> set[str]:
    """The files that stay in any case: all when there are no changes, the large ones when there is no key."""
    is_still = not part.log_files()
    return {
        file.path
        for file in part.base_files()
        if not _has_to_go(file, part) and (is_still or (file.size >= WHOLE_BYTES and not part.definition.is_keyed))
    }


def _has_to_go(file: DataFile, part: TableAt) -> bool:
    """Whether a file holds a dropped column or an expired row."""
    return has_dropped_column(file, part.definition) or expired_rows(file, part.definition, part.horizon) > 0


def _untouched_files(cursor: Any, part: TableAt, fold: str) -> set[str]:
    """The large files without a changed key, by their statistics, and the files of vnodes without changes."""
    vnode = f"({HASH} >> {shift_for(part.baseline.vnodes)})"
    changed = set(cursor.sql(f"SELECT DISTINCT {vnode} AS v FROM {fold}").to_arrow_table().column("v").to_pylist())
    first = part.definition.identity[0]
    kept = set()
    ranged = []
    for file in part.base_files():
        if _has_to_go(file, part):
            continue
        if int(file.partition[VNODE] or 0) not in changed:
            kept.add(file.path)
        elif file.size >= WHOLE_BYTES:
            low, high = (file.stats.get(side, {}).get(first) for side in ("minValues", "maxValues"))
            if low is not None and high is not None:
                ranged.append((file.path, file.partition[VNODE], low, high))
    if ranged:
        kind = duck_type(part.definition.schema.field(first).type)
        values = ", ".join(f"({literal(p)}, {v}, {literal(str(a))}, {literal(str(b))})" for p, v, a, b in ranged)
        spans = f"SELECT p, v, CAST(a AS {kind}) AS a, CAST(b AS {kind}) AS b FROM (VALUES {values}) t(p, v, a, b)"
        keys = f"SELECT {vnode} AS v, {quoted(first)} AS k FROM {fold}"
        # Keep a file if the lowest changed key from its first key on lies behind its last key.
        nearest = f"({spans}) s ASOF LEFT JOIN ({keys}) c ON s.v = c.v AND s.a <= c.k"
        found = cursor.sql(f"SELECT s.p FROM {nearest} WHERE c.k IS NULL OR c.k > s.b").to_arrow_table()
        kept |= set(found.column("p").to_pylist())
    return kept


def _with_paths(part: TableAt, files: Iterable[DataFile]) -> list[tuple[str, DataFile]]:
    """Baseline files with their paths in the storage."""
    return [(f"{part.baseline.folder}/{file.path}", file) for file in files]


def _is_expired(file: DataFile, part: TableAt) -> bool:
    """Whether every row of a file is expired, so that it need not be read."""
    return expired_rows(file, part.definition, part.horizon) == file.rows


def fold_on_spark(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The same with Spark, in one task per vnode, at most `SPARK_TASKS`; a task does its vnodes one by one."""
    from pyspark.sql import functions as F

    spark = session(table.spark)
    chosen = sorted(part.only or ())
    kept = _settled_files(part)
    removed = [file for file in part.base_files() if file.path not in kept]
    sources = Files([f for f in removed if not _is_expired(f, part)], part.log_files())
    check_files(spark, part.log.storage, [*part.deciding_files().items(), *_with_paths(part, sources.baseline)])
    rows = spark_frame(spark, part, None, part.definition.schema.names, files=sources, hidden=True, fates=True)
    tasks = min(len(chosen), SPARK_TASKS)
    place = F.array_position(F.array(*[F.lit(vnode) for vnode in chosen]), F.col(VNODE).cast("int")).cast("int")
    lanes = rows.where(F.col(VNODE).isin(*chosen)).repartitionById(tasks, place % tasks)
    ordered = lanes.sortWithinPartitions(VNODE, *map(backticked, part.definition.identity))
    with running_job(spark, part.row_bytes):
        receipts = collect(run_lane(ordered, _make_lane(table, part), RECEIPT))
    has_version = part.definition.version is not None
    expected = ExpectedRows(rows_by_vnode(sources.baseline), changes=None if has_version else changes_of(part, chosen))
    return _check_account(table, part, receipts, expected), removed


def _make_lane(table: TableStore, part: TableAt) -> BaselineLane:
    return BaselineLane(part.log.storage, table.baseline.folder, part.definition)


def _check_account(
    table: TableStore, part: TableAt, receipts: Sequence[object], expected: ExpectedRows
) -> list[DataFile]:
    """The written files, if their rows are accounted for; otherwise they are deleted."""
    files, failure = files_of(receipts)
    try:
        if failure is not None:
            raise failure
        check_counts(part, expected, counts_of(receipts), files)
    except StrandlineError:
        discard(table, files)
        raise
    return files


def discard(table: TableStore, files: Sequence[DataFile]) -> None:
    """Delete own files that no commit will claim."""
    table.baseline.storage.delete(f"{table.baseline.folder}/{file.path}" for file in files)
