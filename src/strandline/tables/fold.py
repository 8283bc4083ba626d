"""The fold of the log that every read shares: for each key changed since the baseline, the change that wins.

It is a table of (key, `_hash`, `_op`, `_seq`) in the lake's DuckDB, so its memory grows with changed keys, not with
row size. A later read adds the new commits, and removes the changes that a newer baseline holds. One commit holds at
most one change a key, so the highest seq wins. With a version column, a delete clears the key, and after that the
highest (version, seq) wins; `_sl_reset` says that a delete lies in the range, so the baseline's row no longer counts.

Invariant: the table for (marks, seq) = the winners of all changes c with marks[vnode(c)] < c.seq <= seq.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.engines.duck import Duck
from strandline.engines.scan import duck_scan, listed, quoted
from strandline.model.change import DELETE, HASH, OP, SEQ, UPSERT
from strandline.model.definition import TableDef
from strandline.model.keys import shift_for
from strandline.storage.snapshot import DataFile
from strandline.tables.log import LogState

LogFiles = Sequence[tuple[int, DataFile]]

_names = itertools.count(1)
KEPT_FOLDS = 4  # of earlier seqs


@dataclass
class _Entry:
    name: str
    marks: tuple[int, ...]
    seq: int


class FoldCache:
    """The folds of one table. The caller holds the table's lock from `ensure` until its query has started."""

    def __init__(self, duck: Duck) -> None:
        self._duck = duck
        self._past: tuple[int, int] | None = None
        self._life = 0
        self._newest: _Entry | None = None
        self._older: OrderedDict[tuple[tuple[int, ...], int], _Entry] = OrderedDict()

    def ensure(self, log: LogState, marks: tuple[int, ...], seq: int, *, is_newest: bool = True) -> str:
        """The name of a DuckDB table that holds the fold of `(marks, seq]`. With `is_newest`, later reads may extend
        it."""
        if self._life != self._duck.life:
            # DuckDB was reopened, without the tables.
            self._newest = None
            self._older.clear()
            self._life = self._duck.life
        past = (log.definition.schema_id, log.purged)
        if past != self._past:
            # A widened version column changes the type of the fold; a purge removes old changes.
            self.forget()
            self._past = past
        entry = self._newest
        if is_newest and (entry is None or seq >= entry.seq):
            if entry is not None and _is_at_or_after(marks, entry.marks):
                self._advance_fold(entry, log, marks, seq)
                return entry.name
            # A base commit that was packed is no base any more: its changes are part of the fold again.
            self._newest = self._build_fold(log, marks, seq)
            if entry is not None:
                self._run_statements(f"DROP TABLE {entry.name}")
            return self._newest.name
        kept = self._older.get((marks, seq))
        if kept is None:
            kept = self._older[marks, seq] = self._build_fold(log, marks, seq)
            if len(self._older) > KEPT_FOLDS:
                _, evicted = self._older.popitem(last=False)
                self._run_statements(f"DROP TABLE {evicted.name}")
        self._older.move_to_end((marks, seq))
        return kept.name

    def _build_fold(self, log: LogState, marks: tuple[int, ...], seq: int) -> _Entry:
        name = f"_fold_{next(_names)}"
        files = log.files(min(marks), seq)
        self._run_statements(f"CREATE TABLE {name} AS {winners(log, files, marks)}")
        return _Entry(name, marks, seq)

    def _advance_fold(self, entry: _Entry, log: LogState, marks: tuple[int, ...], seq: int) -> None:
        statements = []
        definition = log.definition
        key = listed(definition.key)
        if marks != entry.marks:
            statements.append(f"DELETE FROM {entry.name} WHERE {SEQ} <= {mark_sql(marks)}")
        files = log.files(max(entry.seq, min(marks)), seq)
        if files:
            fresh = winners(log, files, marks)
            if definition.version:
                fresh = _compose_sql(entry.name, fresh, definition)
            matches = " AND ".join(f"t.{quoted(k)} = n.{quoted(k)}" for k in definition.key)
            statements += [
                f"CREATE TEMP TABLE _new AS {fresh}",
                f"DELETE FROM {entry.name} t USING _new n WHERE {matches}",
                f"INSERT INTO {entry.name} SELECT {key}, * EXCLUDE ({key}) FROM _new",
                "DROP TABLE _new",
            ]
        if statements:
            self._run_statements(*statements)
        entry.marks, entry.seq = marks, seq

    def _run_statements(self, *statements: str) -> None:
        self._duck.run(*statements, life=self._life)

    def forget(self) -> None:
        """Drop all folds."""
        entries = [*([self._newest] if self._newest else []), *self._older.values()]
        self._newest = None
        self._older.clear()
        for entry in entries:
            self._run_statements(f"DROP TABLE {entry.name}")


def _is_at_or_after(marks: Sequence[int], older: Sequence[int]) -> bool:
    return all(new >= old for new, old in zip(marks, older, strict=True))


def mark_sql(marks: Sequence[int]) -> str:
    """SQL for the mark of a change's vnode."""
    if len(set(marks)) == 1:
        return str(marks[0])
    return f"CAST([{','.join(map(str, marks))}] AS BIGINT[])[({HASH} >> {shift_for(len(marks))}) + 1]"


def changes_sql(
    log: LogState,
    files: LogFiles,
    columns: Sequence[str],
    marks: Sequence[int] | None,
    loaded: str | None = None,
) -> str:
    """SQL for the changes in log files, without those that the baseline holds already. `loaded` names a table that
    holds just these changes, so that the files are not read again."""
    if loaded is not None:
        return f"SELECT {listed(dict.fromkeys([*columns, SEQ]))} FROM {loaded}"
    scan = duck_scan(log.scans(files), log.definition.log_schemas, columns, number_as=SEQ)
    if marks is None or not files:
        return scan
    return f"SELECT * FROM ({scan}) WHERE {SEQ} > {mark_sql(marks)}"


def winners(log: LogState, files: LogFiles, marks: tuple[int, ...], loaded: str | None = None) -> str:
    """SQL for the winning change of each key in log files; for `loaded` see `changes_sql`."""
    definition = log.definition
    key = listed(definition.key)
    if definition.version is None:
        changes = changes_sql(log, files, [*definition.key, HASH, OP], marks, loaded)
        # Seq and operation as one number: its maximum is quicker than the operation at the highest seq.
        last = f"max({SEQ} * 2 + CAST({OP} = '{UPSERT}' AS BIGINT)) AS _sl_last"
        found = f"SELECT {key}, any_value({HASH}) AS {HASH}, {last} FROM ({changes}) GROUP BY {key}"
        op = f"CASE WHEN _sl_last % 2 = 1 THEN '{UPSERT}' ELSE '{DELETE}' END AS {OP}"
        return f"SELECT {key}, {HASH}, {op}, _sl_last // 2 AS {SEQ} FROM ({found})"
    version = quoted(definition.version)
    changes = changes_sql(log, files, [*definition.key, HASH, OP, definition.version], marks, loaded)
    return f"""
        WITH c AS MATERIALIZED ({changes}),
        d AS (SELECT {key}, any_value({HASH}) AS {HASH}, max({SEQ}) AS _sl_deleted FROM c
              WHERE {OP} = '{DELETE}' GROUP BY {key}),
        u AS (SELECT c.* FROM c LEFT JOIN d USING ({key})
              WHERE {OP} = '{UPSERT}' AND {SEQ} > coalesce(_sl_deleted, -1)),
        b AS (SELECT {key}, any_value({HASH}) AS {HASH}, '{UPSERT}' AS {OP},
                     arg_max({SEQ}, {{'v': {version}, 's': {SEQ}}}) AS {SEQ}, max({version}) AS _sl_version
              FROM u GROUP BY {key})
        SELECT {key}, b.{HASH}, b.{OP}, b.{SEQ}, b._sl_version, _sl_deleted IS NOT NULL AS _sl_reset
        FROM b LEFT JOIN d USING ({key})
        UNION ALL
        SELECT {key}, {HASH}, '{DELETE}', _sl_deleted, NULL, true FROM d ANTI JOIN b USING ({key})"""


def _compose_sql(older: str, newer: str, definition: TableDef) -> str:
    """SQL for the fold of an older and a newer range together, for the keys of the newer one."""
    key = listed(definition.key)
    newer_wins = f"(o.{SEQ} IS NULL OR n._sl_reset OR o.{OP} = '{DELETE}' OR n._sl_version >= o._sl_version)"
    return f"""
        SELECT {key}, n.{HASH} AS {HASH}, n.{OP} AS {OP},
               CASE WHEN {newer_wins} THEN n.{SEQ} ELSE o.{SEQ} END AS {SEQ},
               CASE WHEN {newer_wins} THEN n._sl_version ELSE o._sl_version END AS _sl_version,
               n._sl_reset OR coalesce(o._sl_reset, false) AS _sl_reset
        FROM ({newer}) n LEFT JOIN {older} o USING ({key})"""
