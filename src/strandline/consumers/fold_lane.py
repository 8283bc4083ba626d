"""Fold vnodes: merge the rows of the baseline with their changes, sort them by key and write them as new files.

The same function folds in this process and inside of a Spark task, which reads and writes the files by itself. It takes
a few vnodes at a time, so that memory follows their size and not that of the table. Large files without changed keys
stay. Written files do not count before a commit claims them.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.consumers.account import FoldAccount, rows_by_vnode
from strandline.consumers.vnode_runs import VnodeRuns
from strandline.engines.duck import Duck
from strandline.engines.lanes import receipt, report_failures
from strandline.engines.scan import duck_type, listed, literal, quoted
from strandline.model.change import CAME, FATE, HASH, KEPT, OP, ROW, SEQ, UPSERT, VNODE
from strandline.model.keys import shift_for
from strandline.model.types import conform_batches
from strandline.storage import digest
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile, new_file_name, schema_id_of
from strandline.tables import fold as folds
from strandline.tables.horizon import expired_rows
from strandline.tables.merge import Files, TableAt, duck_sql, vnodes_of

# Changes up to this size are loaded whole, so that their files are opened once.
LOADED_BYTES = 16 << 20
# Of more changes, log files with rows of up to this size are loaded once: many small files open slowly.
SMALL_BYTES = 4 << 20
# Changes in small files are loaded in lots of vnodes of this size; each lot opens all of these files.
LOT_BYTES = 96 << 20
# Vnodes of together about this size are merged and sorted at once.
RUN_BYTES = 24 << 20
# A larger vnode is folded in ranges of keys of about this size.
SPAN_BYTES = 192 << 20
# A file of this size stays when nothing in it changes; smaller ones are packed together.
WHOLE_BYTES = writer.DEFAULT.file_bytes // 4
_KEYS, _SMALL_LOG, _LOG, _FOLD = "_own_keys", "_own_small_log", "_own_log", "_own_fold"
_RUN_LOG, _RUN_FOLD, _SPANS = "_run_log", "_run_fold", "_run_spans"


@dataclass(frozen=True)
class FoldLane:
    """Folds inside of a Spark task. Input rows hold parts of a table (`part`, see `pack_part`); output rows are
    receipts of the written files, and of the account of each part."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for packed in (packed for batch in batches for packed in batch.column("part").to_pylist()):
            yield from report_failures(self._fold(pickle.loads(packed)))

    def _fold(self, part: TableAt) -> Iterator[pa.RecordBatch]:
        account = FoldAccount()
        with Duck.in_task(part.log.storage, part.row_bytes) as duck:
            for file in fold_vnodes(part, duck, account):
                yield receipt(file)
        yield receipt(counts=account.to_text())


def pack_part(part: TableAt) -> bytes:
    """A part of a table for a Spark task, with its own files only."""
    return pickle.dumps(part.with_own_files())


def fold_vnodes(part: TableAt, duck: Duck, account: FoldAccount) -> Iterator[DataFile]:
    """Write the vnodes of a part of a table, and enter their rows into the account. Each file is yielded once it is
    finished."""
    # The contents of a damaged file must not be written again under a good digest.
    digest.check(part.log.storage, part.deciding_files().items())
    for vnodes in _split_lots(part):
        lot = part.part(vnodes)
        with duck.transaction() as cursor:
            changes = _open_changes(cursor, lot)
            yield from _write_beside(lot, _fold_runs(cursor, lot, changes, account), account)


def _split_lots(part: TableAt) -> Iterator[list[int]]:
    """The vnodes whose changes are loaded at once: all of them, or neighbours when many changes lie in small files."""
    vnodes = sorted(part.only or ())
    loaded = sum(file.raw_bytes for _, file in part.log_files() if _is_loaded(file))
    lots = min(len(vnodes), -(-loaded // LOT_BYTES)) or 1
    for at in range(lots):
        yield vnodes[at * len(vnodes) // lots : (at + 1) * len(vnodes) // lots]


def _fold_runs(
    cursor: Any, part: TableAt, changes: _Changes, account: FoldAccount
) -> Iterator[deque[pa.RecordBatch] | Iterator[pa.RecordBatch]]:
    """The rows of all vnodes with their fates, sorted by (`_vnode`, key): all batches of a run at once, or an iterator
    for a piece of a large vnode, which has to be read before the next one is asked for."""
    sizes = _sizes_by_vnode(part)
    runs = list(_group_vnodes(part, sizes))
    for vnodes in runs:
        run = part.part(vnodes)
        own = changes if len(runs) == 1 else _limit_changes(cursor, run, changes)
        size = sum(sizes[vnode] for vnode in vnodes)
        for ordered in _fold_run(cursor, run, own, size, account):
            # Closed even if the writer fails: a transaction cannot end while a result is open.
            with ordered.to_arrow_reader(part.batch_rows()) as reader:
                if size > RUN_BYTES:
                    yield iter(reader)
                    continue
                batches = deque(reader)
            yield batches


def _write_beside(
    part: TableAt, runs: Iterable[deque[pa.RecordBatch] | Iterator[pa.RecordBatch]], account: FoldAccount
) -> Iterator[DataFile]:
    """Write the rows of each run; those of a small one by another thread, while DuckDB works on the next one. When the
    fold fails, the files that are finished come first: the caller deletes them."""
    finished: deque[DataFile] = deque()

    def write(batches: Iterator[pa.RecordBatch]) -> None:
        for file in _write_rows(part, batches, account):
            finished.append(file)

    with ThreadPoolExecutor(1, thread_name_prefix="fold") as pool:
        writing: Future[None] | None = None
        try:
            for run in runs:
                if writing is not None:
                    writing.result()
                if isinstance(run, deque):
                    writing = pool.submit(write, _take_all(run))
                else:
                    write(run)
                while finished:
                    yield finished.popleft()
            if writing is not None:
                writing.result()
        except Exception:
            if writing is not None:
                writing.exception()
            yield from finished
            raise
    yield from finished


def _take_all(batches: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each of which is given up when the next one is asked for."""
    while batches:
        yield batches.popleft()


@dataclass(frozen=True)
class _Changes:
    """The names of the changes to fold, and of their fold; None when every change counts. With `won`, the changes are
    only those that win."""

    log: str
    fold: str | None
    won: bool = False


def _open_changes(cursor: Any, part: TableAt) -> _Changes:
    """The changes of these vnodes, and their fold.

    Few changes are loaded. Of many, only keys and operations are read for the fold; after that those in small files are
    loaded as far as they win, and large files are read where they are."""
    definition, files = part.definition, part.log_files()
    is_folded = definition.is_keyed and bool(files) and not part.is_first_load
    columns = [*definition.schema.names, HASH, OP, *([] if definition.is_keyed else [ROW])]
    if sum(file.raw_bytes for _, file in files) <= LOADED_BYTES:
        cursor.execute(f"CREATE TEMP TABLE {_LOG} AS {_changes_sql(part, files, columns)}").fetchall()
        return _Changes(_LOG, _make_fold(cursor, part, _LOG) if is_folded else None)
    fold = None
    if is_folded:
        keys = [*definition.key, HASH, OP, *([definition.version] if definition.version else [])]
        cursor.execute(f"CREATE TEMP VIEW {_KEYS} AS {_changes_sql(part, files, keys)}").fetchall()
        fold = _make_fold(cursor, part, _KEYS)
    small = [pair for pair in files if _is_loaded(pair[1])]
    large = [pair for pair in files if not _is_loaded(pair[1])]
    changes = _changes_sql(part, small, columns)
    wins = f" SEMI JOIN {fold} USING ({listed([*definition.key, SEQ])})" if fold else ""
    if fold and not large and definition.version is None:
        # Of upserts that have won, neither the operation nor the seq is needed any more.
        upserts = f"SELECT * EXCLUDE ({OP}, {SEQ}) FROM ({changes}) t{wins} WHERE {OP} = '{UPSERT}'"
        cursor.execute(f"CREATE TEMP TABLE {_SMALL_LOG} AS {upserts}").fetchall()
        known = f"SELECT *, '{UPSERT}' AS {OP}, CAST(0 AS BIGINT) AS {SEQ} FROM {_SMALL_LOG}"
        cursor.execute(f"CREATE TEMP VIEW {_LOG} AS {known}").fetchall()
        return _Changes(_LOG, fold, won=True)
    cursor.execute(f"CREATE TEMP TABLE {_SMALL_LOG} AS SELECT * FROM ({changes}){wins}").fetchall()
    rest = f" UNION ALL {_changes_sql(part, large, columns)}" if large else ""
    cursor.execute(f"CREATE TEMP VIEW {_LOG} AS SELECT * FROM {_SMALL_LOG}{rest}").fetchall()
    return _Changes(_LOG, fold)


def _is_loaded(file: DataFile) -> bool:
    """Whether to load the winning changes of a log file: each run would open a small file again, and read all of the
    hashes in a pack, which is sorted by seq."""
    return file.raw_bytes <= SMALL_BYTES or file.pack is not None


def _make_fold(cursor: Any, part: TableAt, changes: str) -> str:
    """Make the fold of these vnodes, from their own files alone."""
    winners = folds.winners(part.log, part.log_files(), part.baseline.marks, changes)
    cursor.execute(f"CREATE TEMP TABLE {_FOLD} AS {winners}").fetchall()
    return _FOLD


def _limit_changes(cursor: Any, run: TableAt, changes: _Changes) -> _Changes:
    """The changes of some of the vnodes, and their fold."""
    for view, whole in ((_RUN_LOG, changes.log), (_RUN_FOLD, changes.fold)):
        if whole is not None:
            sql = f"SELECT * FROM {whole} WHERE {_in_vnodes(run)}"
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {sql}").fetchall()
    return replace(changes, log=_RUN_LOG, fold=changes.fold and _RUN_FOLD)


def _changes_sql(part: TableAt, files: Sequence[tuple[int, DataFile]], columns: Sequence[str]) -> str:
    """SQL for the changes of these vnodes in log files."""
    changes = folds.changes_sql(part.log, files, columns, part.baseline.marks)
    return f"SELECT * FROM ({changes}) WHERE {_in_vnodes(part)}"


def _sizes_by_vnode(part: TableAt) -> Counter[int]:
    """The bytes of the rows of each vnode; a log file's are spread evenly."""
    sizes: Counter[int] = Counter()
    for file in part.base_files():
        sizes[int(file.partition[VNODE] or 0)] += file.raw_bytes
    for _, file in part.log_files():
        touched = vnodes_of(file, part.baseline.vnodes)
        for vnode in touched:
            sizes[vnode] += file.raw_bytes // len(touched)
    return sizes


def _group_vnodes(part: TableAt, sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """The vnodes in groups of about `RUN_BYTES`, or one by one when they are larger."""
    group: list[int] = []
    size = 0
    for vnode in sorted(part.only or ()):
        if group and size + sizes[vnode] > RUN_BYTES:
            yield group
            group, size = [], 0
        group.append(vnode)
        size += sizes[vnode]
    if group:
        yield group


def _fold_run(cursor: Any, part: TableAt, changes: _Changes, size: int, account: FoldAccount) -> Iterator[Any]:
    """The query that folds some vnodes of `size` bytes of rows; for a large one, queries for ranges of its keys."""
    definition, fold = part.definition, changes.fold
    kept = _settled_files(part) | (_untouched_files(cursor, part, fold) if fold else set())
    removed = [file for file in part.base_files() if file.path not in kept]
    read = [file for file in removed if not _is_expired(file, part)]
    digest.check(part.log.storage, ((f"{part.baseline.folder}/{file.path}", file) for file in read))
    _open_account(cursor, part, fold or changes.log, account)
    account.removed.update(file.path for file in removed)
    account.base += rows_by_vnode(read)
    sources = Files(read, part.log_files())
    columns = definition.schema.names
    rows = duck_sql(part, fold, columns, files=sources, loaded=changes.log, fates=True, won=changes.won)
    for span in _split_keys(cursor, part, rows, size):
        yield cursor.sql(f"SELECT * FROM ({rows}) WHERE {span} ORDER BY {listed([VNODE, *definition.identity])}")


def _split_keys(cursor: Any, part: TableAt, rows: str, size: int) -> list[str]:
    """Conditions that split the rows of a large vnode by key, in key order: DuckDB cannot sort wide rows in less memory
    than they take."""
    count = size // SPAN_BYTES + 1
    if count == 1 or len(part.only or ()) > 1:
        return ["true"]
    key = quoted(part.definition.identity[0])
    shares = ", ".join(str(at / count) for at in range(1, count))
    bounds = f"SELECT DISTINCT unnest(quantile_disc({key}, [{shares}])) AS b FROM ({rows})"
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {_SPANS} AS SELECT b, row_number() OVER (ORDER BY b) AS n FROM ({bounds})"
    ).fetchall()
    found = cursor.sql(f"SELECT count(*) FROM {_SPANS}").fetchall()[0][0]
    lows = [f"{key} >= (SELECT b FROM {_SPANS} WHERE n = {n})" for n in range(1, found + 1)]
    highs = [f"{key} < (SELECT b FROM {_SPANS} WHERE n = {n})" for n in range(1, found + 1)]
    return [f"{low} AND {high}" for low, high in zip(["true", *lows], [*highs, "true"], strict=True)]


def _in_vnodes(part: TableAt) -> str:
    """The condition that a change is of these vnodes. A range of hashes, which statistics prune."""
    only, shift = sorted(part.only or ()), shift_for(part.baseline.vnodes)
    inside = f"{HASH} >= {only[0] << shift} AND {HASH} < {(only[-1] + 1) << shift}"
    is_range = only[-1] - only[0] + 1 == len(only)
    return inside if is_range else f"{inside} AND ({HASH} >> {shift}) IN ({', '.join(map(str, only))})"


def _open_account(cursor: Any, part: TableAt, changes: str, account: FoldAccount) -> None:
    """Enter the vnodes, and the changes that have to come: keys whose last change is an upsert, or appended rows."""
    vnode = f"({HASH} >> {shift_for(part.baseline.vnodes)})"
    ends = f"SELECT {vnode} AS v, count(*) AS n FROM {changes} WHERE {OP} = '{UPSERT}' GROUP BY 1"
    upserts = dict(cursor.sql(ends).fetchall())
    # With a version column, rows of the baseline may win.
    is_known = part.definition.version is None or not part.base_files()
    account.vnodes += part.only or ()
    account.upserts |= {v: upserts.get(v, 0) if is_known else None for v in part.only or ()}


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
    has_dropped_column = schema_id_of(file) in part.definition.stale_schemas
    return has_dropped_column or expired_rows(file, part.definition, part.horizon) > 0


def _is_expired(file: DataFile, part: TableAt) -> bool:
    """Whether every row of a file is expired, so that it need not be read."""
    return expired_rows(file, part.definition, part.horizon) == file.rows


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


def _write_rows(part: TableAt, batches: Iterator[pa.RecordBatch], account: FoldAccount) -> Iterator[DataFile]:
    """Write rows that come sorted by (`_vnode`, key), each file of one vnode. All rows are counted by their `_sl_fate`;
    only those kept and come are written."""
    definition = part.definition
    columns = definition.baseline_schema(definition.schema_id)
    runs = VnodeRuns(_count_fates(batches, account))
    for vnode in runs:
        exact = conform_batches(runs.rows(), columns)
        for file in writer.write_files(
            part.log.storage, part.baseline.folder, lambda: new_file_name(definition.schema_id), exact, columns
        ):
            yield replace(file, partition={VNODE: str(vnode)})


def _count_fates(batches: Iterator[pa.RecordBatch], account: FoldAccount) -> Iterator[pa.RecordBatch]:
    """The rows to write; all rows are counted by vnode and fate on the way."""
    for batch in batches:
        fates = batch.column(FATE).to_numpy(zero_copy_only=False).astype(np.int64)
        vnodes = batch.column(VNODE).to_numpy(zero_copy_only=False).astype(np.int64)
        found = np.bincount(vnodes * 4 + fates)
        for code in np.flatnonzero(found):
            account.counts[divmod(int(code), 4)] += int(found[code])
        is_written = (fates == KEPT) | (fates == CAME)
        yield batch if is_written.all() else batch.filter(pa.array(is_written))
