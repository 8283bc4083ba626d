"""The rows of a table at a seq as a Spark DataFrame: `merge` for Spark.

The rows of the base without the keys that changed since, and the winning changes. A fold of moderate size comes from
the driver, which shares it between reads, and is broadcast: nothing is shuffled. When there are too many changes for
that, the last large commit is a layer of its own: its upserts are rows unless a later commit has their keys, so only
the later changes are folded, and rows below it stay unless it has their keys. Spark computes the winners of other
large ranges itself, so that the driver never holds their keys.

Filters and the choice of columns reach all scans, because no operator stands between them and a join by the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.engines.choice import BULK
from strandline.model.change import HASH, OP, ROW, SEQ, UPSERT, VNODE
from strandline.model.condition import Predicate
from strandline.model.keys import shift_for
from strandline.model.names import backticked
from strandline.tables.fold import LogFiles
from strandline.tables.live_rows import LiveRows
from strandline.tables.log import first_seq
from strandline.tables.merge import Files, TableAt, has_only_upserts, is_packed, needed_columns, raise_marks
from strandline.tables.spark_files import base_scan, drop_folded, equal_keys, find_winners, live_scan, log_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A commit with this share of the rows that the driver folds is a layer, if there are at most so many of them.
_LARGE_SHARE = 4
_MOST_LAYERS = 2


def read_frame(
    spark: SparkSession,
    merge: TableAt,
    fold: DataFrame | None,
    columns: Sequence[str],
    predicate: Predicate | None = None,
    *,
    files: Files | None = None,
    hidden: bool = False,
    is_settled: bool = False,
) -> DataFrame:
    """The merged rows. `fold` is the shared fold of the changes after `marks_to_fold` (see `fold_frame`); None lets
    Spark compute it. `files` are by default the candidates of the predicate. With `is_settled`, all their rows count.

    `hidden` adds the columns for folding: `_vnode`, and `_seq` and `_row` of a table without a key."""
    from pyspark.sql import functions as F

    definition = merge.definition
    files = files or merge.candidates(predicate)
    predicate = merge.filter(predicate)
    extra = [*([] if definition.is_keyed else [SEQ, ROW]), VNODE] if hidden else []
    needed = needed_columns(definition, columns, predicate)
    reader = _Reader(spark, needed, extra, files, merge.hash_of(predicate))
    frame = reader.read_settled(merge) if is_settled or not definition.is_keyed else reader.read_merged(merge, fold)
    if predicate is not None:
        frame = frame.where(F.expr(predicate.spark))
    return frame.select(*_quote_names([*columns, *extra]))


def read_live(
    spark: SparkSession, merge: TableAt, live: LiveRows, columns: Sequence[str], predicate: Predicate | None = None
) -> DataFrame:
    """The merged rows of a table of which the driver knows the rows that count."""
    from pyspark.sql import functions as F

    files, predicate = merge.candidates(predicate), merge.filter(predicate)
    needed = list(dict.fromkeys([*columns, *(sorted(predicate.columns) if predicate else ())]))
    frame = live_scan(spark, merge, files, needed, live)
    if predicate is not None:
        frame = frame.where(F.expr(predicate.spark))
    return frame.select(*_quote_names(columns))


def marks_to_fold(merge: TableAt) -> tuple[int, ...] | None:
    """The seqs after which the driver folds the changes for Spark; None when there is nothing to fold, or too much."""
    large = _find_layer(merge)
    later = [file for seq, file in merge.later_files() if seq > (large or 0)]
    if not merge.definition.is_keyed or not later or not _holds(sum(file.rows for file in later)):
        return None
    return merge.marks if large is None else raise_marks(merge.marks, large)


def _holds(rows: int) -> bool:
    # Keys count twice: both the driver and each executor hold them.
    return BULK.holds(rows=2 * rows)


def _find_layer(merge: TableAt) -> int | None:
    """The last large commit, if the changes are too many for the driver."""
    rows: dict[int, int] = {}
    for seq, file in merge.later_files():
        rows[seq] = rows.get(seq, 0) + file.rows
    if _holds(sum(rows.values())) or merge.definition.version is not None:
        return None
    large = [seq for seq, count in rows.items() if not _holds(count * _LARGE_SHARE)]
    large = [seq for seq in large if not is_packed(seq, merge.later_files())]
    return max(large) if 0 < len(large) <= _MOST_LAYERS else None


@dataclass(frozen=True)
class _Reader:
    """Reads `columns` of the table and `extra` ones, with rows from `files` alone; with `wanted`, those of the key with
    this hash."""

    spark: SparkSession
    columns: Sequence[str]
    extra: Sequence[str]
    files: Files
    wanted: int | None

    def read_settled(self, merge: TableAt) -> DataFrame:
        """All rows of the files."""
        base, later = self._base_files(merge), merge.split(self.files.log)[1]
        if not later:
            return self._scan_base(merge, base, self._shown)
        log = self._scan_upserts(merge, later, self._shown, merge.baseline.marks)
        return self._scan_base(merge, base, self._shown).union(log) if base.baseline or base.log else log

    def read_merged(self, merge: TableAt, fold: DataFrame | None) -> DataFrame:
        """The rows that count."""
        later, layer, marks = merge.later_files(), _find_layer(merge), merge.marks
        if layer is None:
            rows = self._scan_base(merge, self._base_files(merge), self._shown)
        else:
            rows = self.read_merged(replace(merge, seq=layer - 1), None)
            rows = self._add_commit(merge, rows, [pair for pair in later if pair[0] == layer])
            later = [pair for pair in later if pair[0] > layer]
            marks = raise_marks(marks, layer)
        return self._add_changes(merge, rows, self._find_winners(merge, fold, later, marks), later) if later else rows

    def _find_winners(self, merge: TableAt, fold: DataFrame | None, later: LogFiles, marks: Sequence[int]) -> DataFrame:
        from pyspark.sql import functions as F

        if fold is not None:
            return F.broadcast(fold)
        found = find_winners(self.spark, merge, later, marks, wanted=self.wanted)
        is_small = self.wanted is not None or _holds(sum(file.rows for _, file in later))
        return F.broadcast(found) if is_small else found

    def _add_commit(self, merge: TableAt, rows: DataFrame, commit: LogFiles) -> DataFrame:
        """The rows after one more commit: they stay unless it has their keys, and its upserts come."""
        key = list(merge.definition.key)
        changed = self._scan_unfolded(merge, commit, key, merge.marks)
        old = rows.join(changed, on=key, how="left_anti").select(*_quote_names(self._shown))
        inside = self._read_from(commit)
        return old.union(self._scan_upserts(merge, inside, self._shown, merge.marks)) if inside else old

    def _add_changes(self, merge: TableAt, rows: DataFrame, winners: DataFrame, later: LogFiles) -> DataFrame:
        """The rows after later commits, of whose changes `winners` names one for each key."""
        from pyspark.sql import functions as F

        definition, shown = merge.definition, _quote_names(self._shown)
        key = list(definition.key)
        changed = winners.select(*_quote_names(key))
        new, inside = None, self._read_from(later)
        if inside:
            # As a range, the seq is no part of the hashed key: a whole number alone is hashed much quicker.
            winner, seq = F.col("_sl_w._sl_winner"), F.col(f"_sl_c.{SEQ}")
            is_won = equal_keys("_sl_c", "_sl_w", key) & (winner <= seq) & (winner >= seq)
            won = winners.select(*_quote_names(key), "_sl_winner").alias("_sl_w")
            new = self._scan_changes(merge, inside, [*self._shown, SEQ]).alias("_sl_c")
            new = new.join(won, on=is_won, how="left_semi").select(*shown)
        if definition.version is None:
            old = rows.join(changed, on=key, how="left_anti")
        else:
            # A row of the base beats older versions in the log, unless a delete lies between.
            version = F.col(f"_sl_b.{backticked(definition.version)}")
            is_reset, newest = F.col("_sl_f._sl_reset"), F.col("_sl_f._sl_version")
            is_same, f = equal_keys("_sl_f", "_sl_b", key), winners.alias("_sl_f")
            old = rows.alias("_sl_b").join(f, on=is_same & (is_reset | (newest >= version)), how="left_anti")
            whole = Files(merge.base_files(), merge.split(merge.log_files())[0])
            every = self._scan_base(merge, whole, [*key, definition.version])
            beaten = every.alias("_sl_b").join(f, on=is_same & ~is_reset & (newest < version))
            beaten = beaten.select(*[F.col(f"_sl_f.{name}") for name in _quote_names(key)])
            beaten = F.broadcast(beaten) if _holds(sum(file.rows for _, file in later)) else beaten
            new = new if new is None else new.join(beaten, on=key, how="left_anti").select(*shown)
        old = old.select(*shown)
        return old if new is None else old.union(new)

    def _base_files(self, merge: TableAt) -> Files:
        return Files(self.files.baseline, merge.split(self.files.log)[0])

    def _read_from(self, commits: LogFiles) -> LogFiles:
        """The files to read rows from, among those of consecutive commits."""
        return [pair for pair in self.files.log if commits[0][0] <= pair[0] <= commits[-1][0]]

    def _scan_base(self, merge: TableAt, files: Files, columns: Sequence[str]) -> DataFrame:
        """The rows of the base in these files."""
        number = VNODE if VNODE in columns else None
        inside = [name for name in columns if name != VNODE]
        base = base_scan(self.spark, merge, files.baseline, inside, number_as=number)
        base = base.select(*_quote_names(columns))
        if not files.log:
            return base
        commit = self._scan_upserts(merge, files.log, columns, merge.baseline.marks)
        return base.union(commit) if files.baseline else commit

    def _scan_upserts(self, merge: TableAt, files: LogFiles, columns: Sequence[str], marks: Sequence[int]) -> DataFrame:
        """The upserts after these marks in log files."""
        is_plain = has_only_upserts(files)
        log = self._scan_unfolded(merge, files, [*columns, *([] if is_plain else [OP])], marks)
        return log if is_plain else log.where(f"{OP} = '{UPSERT}'").select(*_quote_names(columns))

    def _scan_unfolded(
        self, merge: TableAt, files: LogFiles, columns: Sequence[str], marks: Sequence[int]
    ) -> DataFrame:
        """The changes after these marks in log files: rows of the base have the others already."""
        is_part = max(marks) >= min(first_seq(seq, file) for seq, file in files)
        inside = list(dict.fromkeys([*columns, *([HASH, SEQ] if is_part else [])]))
        log = self._scan_changes(merge, files, inside)
        return drop_folded(log, marks).select(*_quote_names(columns)) if is_part else log

    def _scan_changes(self, merge: TableAt, files: LogFiles, columns: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as F

        needs_hash = HASH in columns or VNODE in columns or self.wanted is not None
        inside = [name for name in columns if name not in (HASH, SEQ, VNODE)]
        log = self._keep_wanted(log_scan(self.spark, merge.log, files, [*inside, *([HASH] if needs_hash else [])]))
        if VNODE in columns:
            log = log.withColumn(VNODE, F.shiftright(HASH, shift_for(merge.baseline.vnodes)))
        return log.select(*_quote_names(columns))

    def _keep_wanted(self, log: DataFrame) -> DataFrame:
        return log if self.wanted is None else log.where(f"{HASH} = {self.wanted}")

    @property
    def _shown(self) -> list[str]:
        return [*self.columns, *self.extra]


def _quote_names(names: Sequence[str]) -> list[str]:
    return list(map(backticked, names))
