"""Fold the log into the baseline, the neediest vnodes first.

A vnode is due when its unfolded changes are many against its folded rows, lie in many files, are old, or when many
of its rows are expired (see `TableSettings`). Of a due vnode the large files that no change falls into stay; the others
are merged with the changes and written anew, sorted by key. One commit takes the old files away, brings the new ones
and moves the marks of just those vnodes, so compactors of other vnodes do not disturb it and one of the same vnodes
loses. The rows are merged and sorted by DuckDB on the driver when they are few, by Spark when they are many; the
same lane writes them in both cases.

After a crash: either the commit landed, files and marks together, or the new files are orphans and the old fold
holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from strandline.consumers.account import ExpectedRows, changes_of, check, rows_by_vnode
from strandline.consumers.compaction_plan import VnodeNeed, has_dropped, plan_of
from strandline.consumers.damage import Degraded, damage
from strandline.crash import crash_point
from strandline.engines.choice import BULK
from strandline.engines.lanes import RECEIPT, BaselineLane, counts_of, files_of
from strandline.engines.scan import duck_type, listed, literal, quoted
from strandline.engines.spark import collected, run_lane, running, session
from strandline.errors import Conflict, StrandlineError
from strandline.model.change import HASH, OP, UPSERT, VNODE
from strandline.model.keys import shift_for
from strandline.progress import Progress, silent
from strandline.storage import digest
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile
from strandline.tables import fold as folds
from strandline.tables.broken import BrokenTable, guarded
from strandline.tables.collection import Tables
from strandline.tables.fold_problems import Health
from strandline.tables.horizon import expired_rows
from strandline.tables.merge import Files, TableAt, duck_sql
from strandline.tables.pins import QUIET_S, is_abandoned, new_pin
from strandline.tables.spark_merge import check_files, spark_frame
from strandline.tables.store import TableStore

LOADED_BYTES = 128 << 20
SPARK_VNODES = 1024
SPARK_TASKS = 64
# A file of this size stays where it is when nothing in it changes; smaller ones are packed.
WHOLE_BYTES = writer.DEFAULT.file_bytes // 4
_ATTEMPTS = 10


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did. `claimed` is how many due vnodes another process is folding; `degraded` are those that
    could not be folded."""

    table: str
    upto: int
    vnodes: int
    rows: int
    files: int
    removed_files: int
    bytes: int
    seconds: float
    engine: str
    claimed: int
    degraded: tuple[Degraded, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compact(
    table: TableStore, *, full: bool = False, driver_rows: int = BULK.rows, progress: Progress = silent
) -> CompactReport:
    """Fold every due vnode up to the head; nothing when none is."""
    started_s = time.monotonic()
    work = _Work(table, full, driver_rows, progress)
    with table.folding:
        upto = work.run()
    if work.degraded or work.vnodes:
        Health(table.log.storage, table.entry.folder).write(
            {str(v): asdict(found) for v, found in sorted(work.degraded.items())}, work.vnodes
        )
    return CompactReport(
        table.name,
        upto,
        len(work.vnodes),
        work.rows,
        work.files,
        work.removed,
        work.bytes,
        round(time.monotonic() - started_s, 3),
        work.engine,
        work.claimed,
        tuple(found for _, found in sorted(work.degraded.items())),
    )


def compact_tables(
    tables: Tables, names: Iterable[str], *, full: bool = False, progress: Progress = silent
) -> list[CompactReport | BrokenTable]:
    """Compact these tables; one that is broken does not keep the others from it."""

    def act(name: str) -> CompactReport:
        return compact(tables.table(name), full=full, progress=progress)

    return [guarded(name, partial(act, name)) for name in names]


class _Work:
    """One compaction under way."""

    def __init__(self, table: TableStore, full: bool, driver_rows: int, progress: Progress) -> None:
        self.table = table
        self.full = full
        self.driver_rows = driver_rows
        self.progress = progress
        self.vnodes: set[int] = set()
        self.degraded: dict[int, Degraded] = {}
        self.rows = self.files = self.removed = self.bytes = 0
        self.engine = "none"
        self.claimed = 0

    def run(self) -> int:
        """Groups of due vnodes, each from a fresh look at the table, until none is left; the seq folded up to."""
        first: int | None = None
        lost = 0
        while True:
            merge = self.table.merge()
            first = merge.seq if first is None else first
            planned, idle = plan_of(self.table, merge, self.full, None)
            # What arrives while we work is for the next run: a vnode is folded once.
            left = [need for need in planned.due if need.vnode not in self.vnodes | set(self.degraded)]
            claimed = self._claimed() if left else set()
            self.claimed = len([need for need in left if need.vnode in claimed])
            left = [need for need in left if need.vnode not in claimed]
            self.progress(len(self.vnodes), len(self.vnodes) + len(left), self.table.name)
            if not left:
                return first
            try:
                self._group(merge, left, idle)
            except Conflict:
                # Another compactor, or a purge, was quicker; what it did is no longer due.
                lost += 1
                if lost == _ATTEMPTS:
                    raise

    def _is_worth_moving(self, merge: TableAt, vnode: int) -> bool:
        """Marks of vnodes without changes move for free; with very many vnodes not in every commit."""
        return merge.baseline.vnodes <= 64 or merge.seq - merge.baseline.marks[vnode] >= 100

    def _claimed(self) -> set[int]:
        """Vnodes that another compactor has been folding for a while."""
        pins = self.table.pins.all(is_strict=False)
        if not pins:
            return set()
        now_s = self.table.log.storage.now_s()
        return {v for pin in pins if pin.expires_s > now_s and not is_abandoned(pin) for v in pin.vnodes}

    def _group(self, merge: TableAt, left: Sequence[VnodeNeed], idle: Sequence[int]) -> None:
        raw_bytes = sum(n.base_bytes for n in left) + sum(f.raw_bytes for _, f in merge.log_files())
        is_small = sum(n.rows + n.base_rows for n in left) <= self.driver_rows and BULK.holds(raw_bytes=raw_bytes)
        # The folds of a group land together, so what is done is kept when a later group fails.
        chosen = [need.vnode for need in (left if is_small else left[:SPARK_VNODES])]
        claim = new_pin(
            "compaction", vnodes=tuple(chosen), writes_since_s=self.table.log.storage.now_s(),
            log_version=merge.log.head, baseline_version=merge.baseline.version,
        )  # fmt: skip
        part = merge.part(chosen)
        folded = _on_driver if is_small else _on_spark
        with self.table.pins.held(claim, quiet_s=QUIET_S if is_small else 0):
            try:
                added, removed = folded(self.table, part)
            except Exception as error:
                found = damage(self.table, part, error)
                if not found:
                    raise
                self.degraded |= found
                return
            crash_point("fold.files_written")
            try:
                self.table.baseline.commit_fold(
                    merge.baseline,
                    merge.definition,
                    upto=merge.seq,
                    vnodes=chosen,
                    idle=[v for v in idle if self._is_worth_moving(merge, v)],
                    removed=removed,
                    added=added,
                )
            except Conflict:
                _discard(self.table, added)
                raise
        crash_point("fold.committed")
        self.vnodes |= set(chosen)
        self.engine = "driver" if is_small else "spark"
        self.rows += sum(file.rows for file in added)
        self.bytes += sum(file.size for file in added)
        self.files += len(added)
        self.removed += len(removed)


def _on_driver(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The files that take the place of others, and those others."""
    order = listed([VNODE, *part.definition.identity])
    # What a damaged file holds must not be written again under a good digest.
    digest.check(part.log.storage, part.deciding().items())
    with table.duck.transaction() as cursor:
        loaded = _loaded(cursor, part)
        fold = _own_fold(cursor, part, loaded)
        kept = _settled(part) | (_untouched(cursor, part, fold) if fold else set())
        removed = [file for file in part.base_files() if file.path not in kept]
        sources = Files([f for f in removed if not _is_expired(f, part)], part.log_files())
        digest.check(part.log.storage, _paths(part, sources.baseline))
        rows = duck_sql(part, fold, part.definition.schema.names, files=sources, loaded=loaded, fates=True)
        chosen = ", ".join(map(str, sorted(part.only or ())))
        ordered = cursor.sql(f"SELECT * FROM ({rows}) WHERE {VNODE} IN ({chosen}) ORDER BY {order}")
        # A lane that fails stops early, and a transaction does not end while a result is open.
        with ordered.to_arrow_reader(part.batch_rows()) as reader:
            receipts = [row for batch in _lane(table, part)(iter(reader)) for row in batch.to_pylist()]
        expected = ExpectedRows(rows_by_vnode(sources.baseline), _upserts(cursor, part, fold))
        added = _files(table, part, receipts, expected)
    return added, removed


def _upserts(cursor: Any, part: TableAt, fold: str | None) -> dict[int, int] | None:
    """By vnode, the keys whose last change is an upsert, or without a key the rows that were appended; None where rows
    of the baseline may stand against them."""
    if part.definition.version is not None and part.base_files():
        return None
    changes = fold or f"({folds.changes_sql(part.log, part.log_files(), [HASH, OP], part.baseline.marks)})"
    vnode = f"({HASH} >> {shift_for(part.baseline.vnodes)})"
    found = cursor.sql(f"SELECT {vnode} AS v, count(*) AS n FROM {changes} WHERE {OP} = '{UPSERT}' GROUP BY 1")
    return dict(zip(*found.to_arrow_table().to_pydict().values(), strict=True))


def _loaded(cursor: Any, part: TableAt) -> str | None:
    """The changes of these vnodes in memory, if they are few: many small files take long to open twice."""
    files, definition = part.log_files(), part.definition
    if not definition.is_keyed or sum(file.raw_bytes for _, file in files) > LOADED_BYTES:
        return None
    columns = [*definition.schema.names, HASH, OP]
    cursor.execute(
        f"CREATE TEMP TABLE _own_log AS {folds.changes_sql(part.log, files, columns, part.baseline.marks)}"
    ).fetchall()
    return "_own_log"


def _own_fold(cursor: Any, part: TableAt, loaded: str | None) -> str | None:
    """The fold of these vnodes alone, for this transaction: it opens no file that they do not need."""
    files = part.log_files()
    if not part.definition.is_keyed or not files or part.is_first_load:
        return None
    winners = folds.winners(part.log, files, part.baseline.marks, loaded)
    cursor.execute(f"CREATE TEMP TABLE _own_fold AS {winners}").fetchall()
    return "_own_fold"


def _settled(part: TableAt) -> set[str]:
    """Files that need no look at the changes to stay: without a key the large ones, without changes all."""
    is_still = not part.log_files()
    return {
        file.path
        for file in part.base_files()
        if not _has_to_go(file, part) and (is_still or (file.size >= WHOLE_BYTES and not part.definition.is_keyed))
    }


def _has_to_go(file: DataFile, part: TableAt) -> bool:
    """Whether a file holds something that the table no longer has: a dropped column, an expired row."""
    return has_dropped(file, part.definition) or expired_rows(file, part.definition, part.horizon) > 0


def _untouched(cursor: Any, part: TableAt, fold: str) -> set[str]:
    """Large files that hold no changed key by their statistics, and files of vnodes without any change."""
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
        # The lowest changed key at or after the file's first: is it past the file's last?
        nearest = f"({spans}) s ASOF LEFT JOIN ({keys}) c ON s.v = c.v AND s.a <= c.k"
        found = cursor.sql(f"SELECT s.p FROM {nearest} WHERE c.k IS NULL OR c.k > s.b").to_arrow_table()
        kept |= set(found.column("p").to_pylist())
    return kept


def _paths(part: TableAt, files: Iterable[DataFile]) -> list[tuple[str, DataFile]]:
    """Baseline files with their paths in the storage."""
    return [(f"{part.baseline.folder}/{file.path}", file) for file in files]


def _is_expired(file: DataFile, part: TableAt) -> bool:
    """Whether every row of a file is expired, so that it need not be read."""
    return expired_rows(file, part.definition, part.horizon) == file.rows


def _on_spark(table: TableStore, part: TableAt) -> tuple[list[DataFile], list[DataFile]]:
    """The same by Spark, in as many tasks as there are vnodes, up to a number; each takes its own one by one."""
    from pyspark.sql import functions as F

    spark = session(table.spark)
    chosen = sorted(part.only or ())
    kept = _settled(part)
    removed = [file for file in part.base_files() if file.path not in kept]
    sources = Files([f for f in removed if not _is_expired(f, part)], part.log_files())
    check_files(spark, part.log.storage, [*part.deciding().items(), *_paths(part, sources.baseline)])
    rows = spark_frame(spark, part, None, part.definition.schema.names, files=sources, hidden=True, fates=True)
    tasks = min(len(chosen), SPARK_TASKS)
    place = F.array_position(F.array(*[F.lit(vnode) for vnode in chosen]), F.col(VNODE).cast("int")).cast("int")
    lanes = rows.where(F.col(VNODE).isin(*chosen)).repartitionById(tasks, place % tasks)
    ordered = lanes.sortWithinPartitions(VNODE, *[f"`{name}`" for name in part.definition.identity])
    with running(spark, part.row_bytes):
        receipts = collected(run_lane(ordered, _lane(table, part), RECEIPT))
    has_version = part.definition.version is not None
    expected = ExpectedRows(rows_by_vnode(sources.baseline), changes=None if has_version else changes_of(part, chosen))
    return _files(table, part, receipts, expected), removed


def _lane(table: TableStore, part: TableAt) -> BaselineLane:
    return BaselineLane(part.log.storage, table.baseline.folder, part.definition)


def _files(table: TableStore, part: TableAt, receipts: Sequence[object], expected: ExpectedRows) -> list[DataFile]:
    """The files that were written, when the account of the rows is right; otherwise they go."""
    files, failure = files_of(receipts)
    try:
        if failure is not None:
            raise failure
        check(part, expected, counts_of(receipts), files)
    except StrandlineError:
        _discard(table, files)
        raise
    return files


def _discard(table: TableStore, files: Sequence[DataFile]) -> None:
    """Delete files of ours that no commit claims and none will."""
    table.baseline.storage.delete(f"{table.baseline.folder}/{file.path}" for file in files)
