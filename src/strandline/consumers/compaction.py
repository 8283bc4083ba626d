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

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from strandline.consumers.account import ExpectedRows, changes_of, check, rows_by_vnode
from strandline.consumers.compaction_plan import VnodeNeed, has_dropped, plan_of
from strandline.consumers.contract import LaneEnd, Receipt
from strandline.consumers.damage import Degraded, damage
from strandline.consumers.feed import RangeSize
from strandline.consumers.loop import adding_up, run_own
from strandline.consumers.work import LOG, Work
from strandline.crash import crash_point
from strandline.engines.lanes import RECEIPT, BaselineLane, counts_of, files_of
from strandline.engines.scan import duck_type, listed, literal, quoted
from strandline.engines.spark import collected, run_lane, running, session
from strandline.errors import Conflict, Corrupt, StrandlineError
from strandline.model.change import HASH, OP, UPSERT, VNODE
from strandline.model.keys import shift_for
from strandline.progress import Progress, silent
from strandline.state.marks import ConsumerState
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

DRIVER_ROWS = 2_000_000
DRIVER_BYTES = 512 << 20
LOADED_BYTES = 128 << 20
SPARK_VNODES = 1024
SPARK_TASKS = 64
# A file of this size stays where it is when nothing in it changes; smaller ones are packed.
WHOLE_BYTES = writer.DEFAULT.file_bytes // 4


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


class Compaction:
    """The fold of one table as a consumer: its marks are in the baseline's commits. One object is one compaction: what
    arrives while it works is for the next one, so a vnode is folded once. With `full`, every vnode that has changes is
    due."""

    kind = "compaction"
    destination = "baseline"

    def __init__(self, table: TableStore, *, full: bool = False, driver_rows: int = DRIVER_ROWS) -> None:
        self.name = f"{self.kind}/{table.name}"
        self.table = table.name
        self._table = table
        self._is_full = full
        self._driver_rows = driver_rows
        self._folded: set[int] = set()
        self.degraded: dict[int, Degraded] = {}
        self.claimed = 0

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        return self.due_works()

    def due_works(self) -> Sequence[Work]:
        """The due vnodes: all in one work when they are few enough for the driver, otherwise in groups, so that what is
        done is kept when a later group fails."""
        merge = self._table.merge()
        due = self._due(merge)
        if not due:
            return ()
        log_bytes = sum(file.raw_bytes for _, file in merge.log_files())
        rows = sum(need.rows + need.base_rows for need in due)
        is_small = rows <= self._driver_rows and sum(need.base_bytes for need in due) + log_bytes <= DRIVER_BYTES
        size = len(due) if is_small else SPARK_VNODES
        engine = "driver" if is_small else "spark"
        return [self._work(merge, due[at : at + size], engine) for at in range(0, len(due), size)]

    def _due(self, merge: TableAt) -> list[VnodeNeed]:
        """The due vnodes that nobody is folding, the neediest first."""
        done = self._folded | set(self.degraded)
        due = [need for need in plan_of(self._table, merge, self._is_full, None)[0].due if need.vnode not in done]
        claimed = self._claimed() if due else set()
        self.claimed = sum(need.vnode in claimed for need in due)
        return [need for need in due if need.vnode not in claimed]

    def _work(self, merge: TableAt, due: Sequence[VnodeNeed], engine: str) -> Work:
        after = min(merge.baseline.marks[need.vnode] for need in due)
        files = merge.log_files()
        extent = RangeSize(
            len({seq for seq, _ in files}),
            sum(need.rows + need.base_rows for need in due),
            sum(need.base_bytes for need in due) + sum(file.size for _, file in files),
            sum(need.base_bytes for need in due) + sum(file.raw_bytes for _, file in files),
        )
        vnodes = (tuple(need.vnode for need in due),)
        why = f"{due[0].why} in vnode {due[0].vnode}"
        return Work(self._table, after, merge.seq, LOG, vnodes, extent, merge.definition.schema_id, engine, why=why)

    def _claimed(self) -> set[int]:
        """Vnodes that another compactor has been folding for a while."""
        pins = self._table.pins.all(is_strict=False)
        if not pins:
            return set()
        now_s = self._table.log.storage.now_s()
        return {v for pin in pins if pin.expires_s > now_s and not is_abandoned(pin) for v in pin.vnodes}

    def run(self, work: Work) -> Receipt:
        """Fold the vnodes of a work that are still due, up to the head; a vnode with a damaged file is left out."""
        receipt = Receipt()
        with self._table.folding:
            merge = self._table.merge()
            due = {need.vnode for need in self._due(merge)}
            while chosen := [vnode for vnode in work.vnodes if vnode in due and vnode not in self.degraded]:
                if found := self._fold(merge, chosen, work.engine, receipt):
                    self.degraded |= found
                    receipt.ends |= {(vnode,): LaneEnd(error=_not_folded(each)) for vnode, each in found.items()}
                else:
                    self._folded |= set(chosen)
                    break
        if self.degraded or self._folded:
            degraded = {str(vnode): asdict(found) for vnode, found in sorted(self.degraded.items())}
            Health(self._table.log.storage, self._table.entry.folder).write(degraded, self._folded)
        receipt.facts |= {"vnodes": len(self._folded), "claimed": self.claimed}
        return receipt

    def _fold(self, merge: TableAt, chosen: Sequence[int], engine: str, receipt: Receipt) -> dict[int, Degraded]:
        """Fold vnodes in one commit. When a file is damaged nothing is folded: the vnodes that need the file."""
        table = self._table
        claim = new_pin(
            "compaction", vnodes=tuple(chosen), writes_since_s=table.log.storage.now_s(),
            log_version=merge.log.head, baseline_version=merge.baseline.version,
        )  # fmt: skip
        part = merge.part(chosen)
        write, quiet_s = (_on_driver, QUIET_S) if engine == "driver" else (_on_spark, 0)
        with table.pins.held(claim, quiet_s=quiet_s):
            try:
                added, removed = write(table, part)
            except Exception as error:
                found = damage(table, part, error)
                if not found:
                    raise
                return found
            crash_point("fold.files_written")
            _, idle = plan_of(table, merge, self._is_full, None)
            try:
                table.baseline.commit_fold(
                    merge.baseline,
                    merge.definition,
                    upto=merge.seq,
                    vnodes=chosen,
                    idle=[vnode for vnode in idle if _is_worth_moving(merge, vnode)],
                    removed=removed,
                    added=added,
                )
            except Conflict:
                _discard(table, added)
                raise
        crash_point("fold.committed")
        receipt.rows += sum(file.rows for file in added)
        receipt.bytes += sum(file.size for file in added)
        receipt.files += len(added)
        removed_files = receipt.facts.get("removed_files", 0) + len(removed)
        receipt.facts |= {"removed_files": removed_files, "engine": engine}
        return {}


def compact(
    table: TableStore, *, full: bool = False, driver_rows: int = DRIVER_ROWS, progress: Progress = silent
) -> CompactReport:
    """Fold every due vnode up to the head; nothing when none is."""
    consumer = Compaction(table, full=full, driver_rows=driver_rows)
    works = consumer.due_works()
    step = adding_up(progress, sum(work.extent.rows for work in works))
    done = run_own(consumer, works, consumer.due_works, step=step)
    return CompactReport(
        table=table.name,
        upto=done.upto or table.head,
        vnodes=done.facts.get("vnodes", 0),
        rows=done.rows,
        files=done.files,
        removed_files=done.facts.get("removed_files", 0),
        bytes=done.bytes,
        seconds=done.seconds,
        engine=done.facts.get("engine", "none"),
        claimed=consumer.claimed,
        degraded=tuple(found for _, found in sorted(consumer.degraded.items())),
    )


def compact_tables(
    tables: Tables, names: Iterable[str], *, full: bool = False, progress: Progress = silent
) -> list[CompactReport | BrokenTable]:
    """Compact these tables; one that is broken does not keep the others from it."""

    def act(name: str) -> CompactReport:
        return compact(tables.table(name), full=full, progress=progress)

    return [guarded(name, partial(act, name)) for name in names]


def _is_worth_moving(merge: TableAt, vnode: int) -> bool:
    """Marks of vnodes without changes move for free; with very many vnodes not in every commit."""
    return merge.baseline.vnodes <= 64 or merge.seq - merge.baseline.marks[vnode] >= 100


def _not_folded(found: Degraded) -> Corrupt:
    return Corrupt(
        f"vnode {found.vnode} is not folded: {found.message}: {found.path}",
        hint="See what is affected: strandline doctor --deep",
        path=found.path,
        vnode=found.vnode,
    )


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
