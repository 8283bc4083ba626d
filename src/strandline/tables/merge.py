"""Baseline and log as one table at a seq: the files to read, and the SQL that merges them in DuckDB.

A merged read is the rows of its base whose keys have not changed since, plus the winning upserts of the changed keys.
The fold gives both. The base is the baseline and, when the baseline has no rows there yet, the first commit after it: a
bulk load is read like a baseline. `spark_read` does the same as a Spark DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from strandline.engines.scan import duck_scan, listed, quoted
from strandline.model.change import CAME, FATE, GONE, HASH, KEPT, LOST, OP, ROW, SEQ, UPSERT, VNODE
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, shift_for, vnode_of
from strandline.model.stored_names import name_stats
from strandline.model.types import conform_column
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile, Snapshot
from strandline.tables.baseline import BaselineState
from strandline.tables.fold import LogFiles, changes_sql, winners
from strandline.tables.horizon import expiry
from strandline.tables.log import LogState


@dataclass(frozen=True)
class Files:
    """The files that a read opens."""

    baseline: Sequence[DataFile]
    log: LogFiles


@dataclass(frozen=True)
class TableAt:
    """A table at `seq`: a baseline without changes after it, and the log from there.

    Rows whose time lies before `horizon` are expired. `only` limits the table to some vnodes.

    A read has a base: the files of the baseline, and those of the base commit, if there is one. This is the first
    commit after the lowest mark, when the baseline has no file in a vnode with a lower mark. The commit has at most one
    change a key, and there is nothing before it, so its upserts are rows unless a later commit has their keys. Folds of
    a compaction do not know it: for them these rows are changes."""

    log: LogState
    baseline: BaselineState
    seq: int
    horizon: int | None = None
    only: frozenset[int] | None = None

    @property
    def definition(self) -> TableDef:
        return self.log.definition

    def part(self, vnodes: Iterable[int]) -> TableAt:
        """The table limited to these vnodes. Its files may hold rows of others, which the caller filters out."""
        return replace(self, only=frozenset(vnodes))

    def with_own_files(self) -> TableAt:
        """The same with its own files only, small enough to be sent to a task."""

        def limit(snapshot: Snapshot, files: Iterable[DataFile]) -> Snapshot:
            return replace(snapshot, files={file.path: file for file in files}, doomed=frozenset())

        log = replace(self.log, snapshot=limit(self.log.snapshot, (file for _, file in self.log_files())))
        # Perhaps that of an earlier schema.
        log.__dict__["definition"] = self.log.definition
        own = limit(self.baseline.snapshot, self.base_files())
        made = replace(self, log=log, baseline=replace(self.baseline, snapshot=own, counted={}))
        # The base commit of the whole table.
        made.__dict__["base_seq"] = self.base_seq
        return made

    def base_files(self) -> list[DataFile]:
        files = self.baseline.files()
        return files if self.only is None else [f for f in files if int(f.partition[VNODE] or 0) in self.only]

    def log_files(self) -> list[tuple[int, DataFile]]:
        return list(self._log_files)

    @cached_property
    def _log_files(self) -> LogFiles:
        marks = self.baseline.marks
        if self.only is None:
            return self.log.files(min(marks), self.seq)
        files = self.log.files(min(marks[vnode] for vnode in self.only), self.seq)
        return [pair for pair in files if not self.only.isdisjoint(vnodes_of(pair[1], self.baseline.vnodes))]

    @cached_property
    def base_seq(self) -> int | None:
        """The base commit. It is one of the whole table, also of a part, so that all reads share one fold."""
        marks = self.baseline.marks
        files = self.log.files(min(marks), self.seq)
        if not files or not self.definition.is_keyed:
            return None
        first = files[0][0]
        if is_packed(first, files):
            return None
        has_rows = any(marks[int(file.partition[VNODE] or 0)] < first for file in self.baseline.files())
        return None if has_rows else first

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """For each vnode, the seq up to which its rows are in the base."""
        return raise_marks(self.baseline.marks, self.base_seq or 0)

    def split(self, log: LogFiles) -> tuple[LogFiles, LogFiles]:
        """Files of the log as two parts: those of the base commit, and later ones."""
        base = self.base_seq or 0
        return [pair for pair in log if pair[0] <= base], [pair for pair in log if pair[0] > base]

    def later_files(self) -> LogFiles:
        """The files of the log that are not in the base."""
        return self.split(self.log_files())[1] if self.definition.is_keyed else self.log_files()

    def deciding_files(self) -> dict[str, DataFile]:
        """The files that decide which rows win, by their paths in the storage: those of the log, and with a version
        column those of the baseline too."""
        found = {f"{self.log.folder}/{file.path}": file for _, file in self.log_files()}
        if self.definition.version is not None and found:
            found |= {f"{self.baseline.folder}/{file.path}": file for file in self.base_files()}
        return found

    def filter(self, predicate: Predicate | None) -> Predicate | None:
        """`predicate` and the condition that a row is not expired."""
        alive = expiry(self.definition, self.horizon)
        return predicate if alive is None else alive.also(predicate)

    @property
    def is_first_load(self) -> bool:
        """Whether the table is one commit: it has one change a key, so all changes win and no fold is needed."""
        marks, files = self.baseline.marks, self.log_files()
        is_level = len({marks[vnode] for vnode in self.only or range(len(marks))}) == 1
        is_one = len({seq for seq, _ in files}) == 1 and not any(file.pack for _, file in files)
        return is_level and not self.base_files() and is_one

    def batch_rows(self, most: int = 50_000) -> int:
        """How many merged rows a batch should hold."""
        return writer.batch_rows(self.files(), most=most)

    @property
    def row_bytes(self) -> int:
        """The average size of a row in memory."""
        files = self.files()
        return sum(file.raw_bytes for file in files) // max(1, sum(file.rows for file in files))

    def files(self) -> list[DataFile]:
        """All files of the table, those of the baseline first."""
        return [*self.base_files(), *(file for _, file in self.log_files())]

    @property
    def baseline_schemas(self) -> list[pa.Schema]:
        return [self.definition.baseline_schema(i) for i in range(len(self.definition.schemas))]

    def candidates(self, predicate: Predicate | None) -> Files:
        """The files that may hold rows of the predicate."""
        base, log = self.base_files(), self.log_files()
        if predicate is None:
            return Files(base, log)
        wanted = self.hash_of(predicate)
        if wanted is not None:
            vnode = str(vnode_of(wanted, self.baseline.vnodes))
            base = [f for f in base if f.partition[VNODE] == vnode]
            log = [pair for pair in log if may_hold(pair[1], wanted)]
        stored = self.definition.stored
        return Files(
            [f for f in base if predicate.may_match(name_stats(f.stats, stored))],
            [pair for pair in log if predicate.may_match(name_stats(pair[1].stats, stored))],
        )

    def hash_of(self, predicate: Predicate | None) -> int | None:
        """The hash of the one key that the condition asks for; None when it does not fix the whole key."""
        key = predicate.key_values(self.definition.key) if predicate else None
        return None if key is None else _hash_key(key, self.definition)


def is_packed(seq: int, log: LogFiles) -> bool:
    """Whether changes of a commit may lie in a pack, among those of other commits."""
    return any(file.pack is not None and file.pack.first <= seq <= last for last, file in log)


def raise_marks(marks: Sequence[int], seq: int) -> tuple[int, ...]:
    """The marks, at least `seq` each."""
    return tuple(max(mark, seq) for mark in marks)


def may_hold(file: DataFile, wanted: int) -> bool:
    """Whether a log file may have a key with this hash."""
    return bool(file.stats["minValues"][HASH] <= wanted <= file.stats["maxValues"][HASH])


def has_only_upserts(log: LogFiles) -> bool:
    """Whether all changes in these files are upserts, by statistics."""
    return all(file.stats.get(side, {}).get(OP) == UPSERT for _, file in log for side in ("minValues", "maxValues"))


def vnodes_of(file: DataFile, vnodes: int) -> range:
    """The vnodes that may have changes in a log file, from its lowest to its highest hash."""
    low, high = file.stats["minValues"][HASH], file.stats["maxValues"][HASH]
    return range(vnode_of(low, vnodes), vnode_of(high, vnodes) + 1)


def _hash_key(key: Sequence[object], definition: TableDef) -> int:
    columns = [
        conform_column(pa.chunked_array([pa.array([value])]), definition.schema.field(name).type)
        for name, value in zip(definition.key, key, strict=True)
    ]
    return int(hash_keys(columns)[0].as_py())


def duck_sql(
    merge: TableAt,
    fold: str | None,
    columns: Sequence[str],
    predicate: Predicate | None = None,
    *,
    files: Files | None = None,
    loaded: str | None = None,
    hidden: bool = False,
    fates: bool = False,
    won: bool = False,
    hashes: str | None = None,
) -> str:
    """SQL for the merged rows. `fold` names the fold's table; None means that every row in `files` counts.

    `files` are by default the candidates of the predicate; `hashes` is a condition for the rows of log files. `hidden`
    adds the columns for folding: `_vnode`, and `_seq` and `_row` of a table without a key. `fates` adds `_sl_fate`, and
    the baseline rows that go; for them, `loaded` names a table that holds the changes of the log files, with `won` only
    those that no later change of the log replaces."""
    definition = merge.definition
    files = files or merge.candidates(predicate)
    predicate = merge.filter(predicate)
    needed = needed_columns(definition, columns, predicate)
    stored = [] if definition.is_keyed else [SEQ, ROW]
    inner = listed([*needed, *stored, VNODE])
    if fates:
        base = _baseline_sql(merge, files.baseline, needed)
        log = _upserts_sql(merge, files.log, needed, loaded=loaded)
        alive = f"({predicate.duckdb})" if predicate else "true"
        shown = listed([*columns, *stored, VNODE, FATE])
        both = _fates_sql(merge, fold, base, log if files.log else None, inner, alive, won)
        return f"SELECT {shown} FROM ({both})"
    wanted = merge.hash_of(predicate)
    only = " AND ".join(filter(None, [hashes, None if wanted is None else f"{HASH} = {wanted}"])) or None
    base, later = _base_sql(merge, files, needed, only), merge.split(files.log)[1]
    log = _upserts_sql(merge, later, needed, only=only)
    whole = Files(merge.base_files(), merge.log_files())
    base, log = _keyed_sql(merge, fold, base, log, whole) if fold else (f"({base})", f"({log})")
    both = f"SELECT {inner} FROM {base}" + (f" UNION ALL SELECT {inner} FROM {log}" if later else "")
    where = f" WHERE {predicate.duckdb}" if predicate else ""
    return f"SELECT {listed([*columns, *([*stored, VNODE] if hidden else [])])} FROM ({both}){where}"


def make_own_fold(cursor: Any, merge: TableAt, hashes: str) -> str | None:
    """Make the fold of the keys with these hashes as a temporary table of a cursor, and return its name; None when
    none is needed. Log files hold the changes of all vnodes: a task folds those of its own."""
    files = merge.later_files()
    if not merge.definition.is_keyed or not files:
        return None
    definition, marks = merge.definition, merge.marks
    version = [definition.version] if definition.version else []
    changes = changes_sql(merge.log, files, [*definition.key, HASH, OP, *version], marks)
    own = f"(SELECT * FROM ({changes}) WHERE {hashes})"
    cursor.execute(f"CREATE TEMP TABLE _own_fold AS {winners(merge.log, files, marks, loaded=own)}").fetchall()
    return "_own_fold"


def _baseline_sql(merge: TableAt, files: Sequence[DataFile], columns: Sequence[str]) -> str:
    """SQL for the rows of baseline files, with their vnodes."""
    stored = [] if merge.definition.is_keyed else [SEQ, ROW]
    return duck_scan(merge.baseline.scans(files), merge.baseline_schemas, [*columns, *stored], number_as=VNODE)


def _upserts_sql(
    merge: TableAt,
    files: LogFiles,
    columns: Sequence[str],
    *,
    marks: Sequence[int] | None = None,
    only: str | None = None,
    loaded: str | None = None,
) -> str:
    """SQL for the upserts in log files after `marks`, with their seqs and vnodes; `only` is a condition for them."""
    is_keyed = merge.definition.is_keyed
    inside = [*columns, HASH, OP, *([] if is_keyed else [ROW])]
    log = changes_sql(merge.log, files, inside, marks if is_keyed else merge.baseline.marks, loaded)
    vnode = f"{HASH} >> {shift_for(merge.baseline.vnodes)} AS {VNODE}"
    more = "" if only is None else f" AND {only}"
    return f"SELECT *, {vnode} FROM ({log}) WHERE {OP} = '{UPSERT}'{more}"


def _base_sql(merge: TableAt, files: Files, columns: Sequence[str], only: str | None = None) -> str:
    """SQL for the rows of the base in these files."""
    first, _ = merge.split(files.log)
    base = _baseline_sql(merge, files.baseline, columns)
    if not first:
        return base
    inner = listed([*columns, VNODE])
    marks = merge.baseline.marks if max(merge.baseline.marks) >= first[0][0] else None
    commit = f"SELECT {inner} FROM ({_upserts_sql(merge, first, columns, marks=marks, only=only)})"
    return f"SELECT {inner} FROM ({base}) UNION ALL {commit}" if files.baseline else commit


def _fates_sql(merge: TableAt, fold: str | None, base: str, log: str | None, inner: str, alive: str, won: bool) -> str:
    """SQL for every baseline row and the winning changes of the log, each with its fate in a fold."""
    stays, came = alive, f"({log})"
    base = f"({base})"
    if fold:
        definition = merge.definition
        key = listed(definition.key)
        changed, going = f"SELECT {key}, true AS _sl_is_changed", "_sl_is_changed"
        if definition.version is not None:
            changed += ", _sl_reset, _sl_version"
            going = f"_sl_is_changed AND (_sl_reset OR _sl_version >= {quoted(definition.version)})"
        if log and not won:
            came = _keyed_sql(merge, fold, base, log, Files(merge.base_files(), ()))[1]
        base = f"{base} LEFT JOIN ({changed} FROM {fold}) USING ({key})"
        stays = f"NOT coalesce({going}, false) AND {alive}"
    old = f"SELECT {inner}, CASE WHEN {stays} THEN {KEPT} ELSE {GONE} END AS {FATE} FROM {base}"
    new = f"SELECT {inner}, CASE WHEN {alive} THEN {CAME} ELSE {LOST} END AS {FATE} FROM {came}"
    return f"{old} UNION ALL {new}" if log else old


def needed_columns(definition: TableDef, columns: Sequence[str], predicate: Predicate | None) -> list[str]:
    """The columns to read: the wanted ones, those of the predicate, and those that decide which row wins."""
    deciding = [*definition.key, *([definition.version] if definition.version else [])]
    return list(dict.fromkeys([*columns, *(sorted(predicate.columns) if predicate else ()), *deciding]))


def _keyed_sql(merge: TableAt, fold: str, base: str, log: str, whole: Files) -> tuple[str, str]:
    """FROM clauses: the base without changed keys, and the log without losing changes. `whole` are the files of the
    whole base."""
    definition = merge.definition
    key = listed(definition.key)
    won = f"({log}) SEMI JOIN ({winning_sql(merge, fold, whole)}) USING ({key}, {SEQ})"
    return f"({base}) b ANTI JOIN {fold} f ON {beats_base_sql(definition)}", won


def beats_base_sql(definition: TableDef) -> str:
    """SQL for a change `f` in a fold that replaces or deletes the row `b` of the base."""
    equal = " AND ".join(f"f.{quoted(k)} = b.{quoted(k)}" for k in definition.key)
    if definition.version is None:
        return equal
    # A row of the base beats older versions in the log, unless a delete lies between.
    return f"{equal} AND (f._sl_reset OR f._sl_version >= b.{quoted(definition.version)})"


def winning_sql(merge: TableAt, fold: str, whole: Files) -> str:
    """SQL for the upserts in a fold that are rows: their keys and seqs. `whole` are the files of the whole base."""
    definition = merge.definition
    found = f"SELECT {listed(definition.key)}, {SEQ} FROM {fold} f"
    if definition.version is not None:
        equal = " AND ".join(f"f.{quoted(k)} = b.{quoted(k)}" for k in definition.key)
        every = _base_sql(merge, whole, [*definition.key, definition.version])
        found += f" ANTI JOIN ({every}) b ON {equal} AND NOT f._sl_reset"
        found += f" AND b.{quoted(definition.version)} > f._sl_version"
    return f"{found} WHERE {OP} = '{UPSERT}'"
