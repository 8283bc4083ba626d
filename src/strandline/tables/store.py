"""One table: its log and its baseline, read as one at a seq.

Reads share a fold of the log, which DuckDB and Spark keep for the next read. Nothing here writes rows: the verbs of a
table are in `strandline.table`, and the followers of its log in `consumers`.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.engines.duck import Duck
from strandline.engines.scan import listed, quoted
from strandline.engines.spark import session
from strandline.errors import Corrupt, Invalid, NotRetained
from strandline.model import types as schemas
from strandline.model.change import OP, SEQ, UPSERT
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.names import backticked
from strandline.model.where import parse
from strandline.storage import digest
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile
from strandline.tables import fold as folds
from strandline.tables.baseline import Baseline, BaselineState
from strandline.tables.catalog import Entry
from strandline.tables.horizon import horizon_at
from strandline.tables.live_rows import LiveRows, find_live_rows, may_mark_rows
from strandline.tables.log import Log, LogState
from strandline.tables.merge import Files, TableAt, duck_sql
from strandline.tables.pins import Pins, new_pin
from strandline.tables.readers import NoReaders, Readers
from strandline.tables.spark_files import check_files, fold_frame, winners_sql
from strandline.tables.spark_read import marks_to_fold, read_frame, read_live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AT_HINT = "Such as: 12, 2024-05-31 or 2024-05-31T12:00:00Z"

At = int | str | dt.datetime | None


class TableStore:
    """The log and the baseline of one table. Safe to share between threads."""

    def __init__(
        self,
        entry: Entry,
        storage: Storage,
        duck: Duck,
        spark: SparkSession | None = None,
        *,
        readers: Readers | None = None,
    ) -> None:
        self.entry = entry
        self.readers: Readers = readers or NoReaders()
        self.duck = duck
        self.spark = spark
        self.log = Log(storage, f"{entry.folder}/log")
        self.baseline = Baseline(storage, f"{entry.folder}/baseline", self.log.refresh().definition.vnodes)
        self.lock = threading.RLock()
        self.folding = threading.Lock()
        self._folds = folds.FoldCache(duck)
        self._spark_fold: tuple[object, DataFrame] | None = None
        self._spark_frame: tuple[object, DataFrame] | None = None
        self._live_rows: tuple[object, LiveRows | None] | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def definition(self) -> TableDef:
        return self.log.refresh().definition

    @property
    def schema(self) -> pa.Schema:
        return self.definition.schema

    @property
    def head(self) -> int:
        """The latest seq."""
        return self.log.refresh().head

    @property
    def oldest(self) -> int:
        """The oldest seq that can be read."""
        state = self.baseline.refresh()
        return self.oldest_after(state, state.kept_from, self.log.refresh().trimmed_to)

    def oldest_after(self, state: BaselineState, kept_from: int, trimmed_to: int) -> int:
        """The oldest seq that can be read when baseline versions before `kept_from` and changes up to `trimmed_to` are
        given up."""
        if not kept_from and not trimmed_to:
            return 0
        kept = (max(m) for v, m in self.baseline.versions(state) if v >= kept_from and min(m) >= trimmed_to)
        return min(kept, default=max(state.marks))

    @property
    def pins(self) -> Pins:
        """The claims on this table's past."""
        return self.log.pins

    def look(self) -> tuple[BaselineState, LogState]:
        """The current baseline and log; `Corrupt` when the baseline holds changes that the log has lost. A new commit
        must not take the seq of a lost one: nobody would ever see its rows."""
        # The baseline first: a baseline newer than the log would hold changes after its head.
        baseline = self.baseline.refresh()
        log = self.log.refresh()
        if max(baseline.marks) > log.head:
            raise Corrupt(
                f"table {self.name!r} is compacted to seq {max(baseline.marks)}, but its log ends at {log.head}",
                hint="Commit files of the log are missing: restore them from a backup.",
                table=self.name,
                path=self.log.delta.chain.commits.path(log.head + 1),
            )
        return baseline, log

    def merge(self, at: At = None) -> TableAt:
        """The table as a read at `at` sees it."""
        seen: tuple[int, int] | None = None
        while True:
            baseline, log = self.look()
            seq = log.head if at is None else self._seq_at(at, log.head)
            if max(baseline.marks) > seq:
                baseline = self.baseline.at_seq(seq, log.trimmed_to)
            if min(baseline.marks) >= log.trimmed_to:
                return TableAt(log, baseline, seq, horizon_at(log.snapshot.txns, seq))
            # The table was folded and trimmed between the two looks: there is a newer baseline.
            if seen == (baseline.version, log.head):
                raise Corrupt(
                    f"the log of table {self.name!r} is trimmed to seq {log.trimmed_to}, but its baseline holds only"
                    f" {min(baseline.marks)}",
                    hint="Its newest files are missing: restore them from a backup.",
                    table=self.name,
                )
            seen = (baseline.version, log.head)

    def to_arrow(
        self,
        *,
        at: At = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows at a seq or a time (now, by default), in no promised order, at most `limit` of them.

        `where` is an SQL expression over the columns. Files and columns that are not needed are not read."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise Invalid(f"limit is {limit!r}; expected a number of rows, 0 or more")
        merge, names, predicate = self.plan_read(at, columns, where)
        with self.reading(merge, names, predicate) as relation:
            wanted = relation if limit is None else relation.limit(limit)
            table = wanted.to_arrow_table(merge.batch_rows(most=131_072))
        return schemas.conform(table, _select_schema(merge, names))

    def to_batches(
        self,
        *,
        at: At = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        batch_rows: int = 50_000,
    ) -> Iterator[pa.RecordBatch]:
        """The same rows as a stream of batches of at most `batch_rows`, without holding them all."""
        merge, names, predicate = self.plan_read(at, columns, where)
        wanted = _select_schema(merge, names)
        claim = new_pin("read", seq=merge.seq, log_version=merge.log.head, baseline_version=merge.baseline.version)
        with self.pins.held(claim), self.reading(merge, names, predicate) as relation:
            yield from schemas.conform_batches(relation.to_arrow_reader(merge.batch_rows(most=batch_rows)), wanted)

    def to_spark(self, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None) -> DataFrame:
        """The same rows as a Spark DataFrame, fixed at that seq. A DataFrame that is used for longer than the table's
        grace time needs a `pin`."""
        merge, names, predicate = self.plan_read(at, columns, where)
        spark = session(self.spark)
        if predicate is not None:
            files = self._find_files(merge, predicate)
            if files is not None:
                return read_frame(spark, merge, None, names, predicate, files=files, is_settled=True)
            return self._read_frame(spark, merge, names, predicate)
        frame = self._whole_frame(spark, merge)
        return frame if columns is None else frame.select(*map(backticked, names))

    def _whole_frame(self, spark: SparkSession, merge: TableAt) -> DataFrame:
        """All columns at a seq, kept for the next read: planning takes Spark longer than many reads."""
        place = _place_of(spark, merge)
        with self.lock:
            if self._spark_frame is None or self._spark_frame[0] != place:
                self._spark_frame = (place, self._read_frame(spark, merge, merge.definition.schema.names))
            return self._spark_frame[1]

    def _read_frame(
        self, spark: SparkSession, merge: TableAt, names: Sequence[str], predicate: Predicate | None = None
    ) -> DataFrame:
        live = self._find_live_rows(spark, merge)
        if live is not None:
            return read_live(spark, merge, live, names, predicate)
        return read_frame(spark, merge, self.fold_frame(spark, merge), names, predicate)

    def _find_live_rows(self, spark: SparkSession, merge: TableAt) -> LiveRows | None:
        """The rows that count, kept for the next read; None when only a join finds them, or all count."""
        if marks_to_fold(merge) != merge.marks or not may_mark_rows(merge):
            return None
        place = _place_of(spark, merge)
        with self.duck.transaction() as cursor, self.lock:
            if self._live_rows is None or self._live_rows[0] != place:
                fold = self.fold_name(merge)
                found = None if fold is None else find_live_rows(spark, cursor, merge, fold)
                self._live_rows = (place, found)
            return self._live_rows[1]

    def _find_files(self, merge: TableAt, predicate: Predicate) -> Files | None:
        """For a condition that fixes the key: the files with its one row. None when only a merge finds it."""
        key = predicate.key_values(merge.definition.key)
        if key is None or merge.definition.version is not None:
            return None
        files = merge.candidates(predicate)
        if not merge.later_files():
            return files
        if marks_to_fold(merge) != merge.marks:
            return None
        with self.duck.transaction() as cursor, self.lock:
            fold = self.fold_name(merge)
            return files if fold is None else _find_winner_files(cursor, fold, merge, key, files)

    def changes(self, after: int = 0, upto: int | None = None) -> pa.Table:
        """The changes in `(after, upto]` with their `_op` and `_seq`, in seq order."""
        log, after, upto = self.change_range(after, upto)
        definition = log.definition
        files = log.files(after, upto)
        names = [OP, SEQ, *definition.schema.names]
        sql = folds.changes_sql(log, files, [OP, *definition.schema.names], None)
        table = self.duck.table(f"SELECT {listed(names)} FROM ({sql}) ORDER BY {listed([SEQ, *definition.key])}")
        hidden = [pa.field(OP, pa.string(), False), pa.field(SEQ, pa.int64(), False)]
        columns = [f if f.name in definition.key else f.with_nullable(True) for f in definition.schema]
        return schemas.conform(table, pa.schema([*hidden, *columns]))

    def change_range(self, after: int, upto: int | None) -> tuple[LogState, int, int]:
        """The log and a checked range of its changes, by default up to the head."""
        log = self.log.refresh()
        end = log.head if upto is None else upto
        log.files(after, end)
        if not after <= min(end, log.head):
            raise Invalid(
                f"table {self.name!r} has seqs 0 to {log.head}: no changes are after {after} and up to {end}",
                table=self.name,
                seq=after,
            )
        return log, after, min(end, log.head)

    def fold_name(self, merge: TableAt) -> str | None:
        """The DuckDB table with the fold of `merge`, if one is needed. Hold `lock` until the query has started."""
        if not merge.definition.is_keyed or not merge.later_files():
            return None
        return self._folds.ensure(merge.log, merge.marks, merge.seq)

    def pinned_fold(self, cursor: Any, merge: TableAt) -> str | None:
        """The fold of `merge`, fixed for the cursor's transaction: later reads do not change it there."""
        with self.lock:
            name = self.fold_name(merge)
            if name is not None:
                cursor.execute(f"SELECT 1 FROM {name} LIMIT 0").fetchall()
            return name

    def fold_frame(self, spark: SparkSession, merge: TableAt) -> DataFrame | None:
        """The fold for Spark, which keeps it for the next reads; None when Spark must compute it, or none is needed."""
        marks = marks_to_fold(merge)
        if marks is None:
            return None
        with self.lock:
            place = (spark, marks, merge.seq, merge.log.purged)
            if self._spark_fold is None or self._spark_fold[0] != place:
                # A fold of the end of the log must not take the place of the whole one, which later reads extend.
                name = self._folds.ensure(merge.log, marks, merge.seq, is_newest=marks == merge.marks)
                self._spark_fold = (place, fold_frame(spark, self.duck.table(winners_sql(name, merge.definition))))
            return self._spark_fold[1]

    def verify(
        self,
        files: Mapping[str, DataFile],
        columns: Sequence[str] | None = None,
        *,
        spark: SparkSession | None,
        is_folded: bool,
    ) -> None:
        """`Corrupt` when one of these files, in its `columns`, is damaged; many bytes are checked by Spark tasks.

        Reads do not check files. So their folds are dropped when a file is damaged, and also before a fold is used to
        write rows (`is_folded`): a file may have been damaged and restored since."""
        columns = None if columns is None else self.definition.stored_names(columns)
        try:
            if spark is None or (columns is None and digest.is_quick(self.log.storage, files.values())):
                digest.check(self.log.storage, files.items(), columns)
            else:
                check_files(spark, self.log.storage, files.items(), columns)
        except Corrupt:
            self.forget_folds()
            raise
        if is_folded:
            self.forget_folds()

    def forget_folds(self) -> None:
        """Drop the folds that reads have kept."""
        with self.lock:
            self._folds.forget()
            self._spark_fold = self._spark_frame = self._live_rows = None

    def plan_read(
        self, at: At = None, columns: Sequence[str] | None = None, where: str | None = None
    ) -> tuple[TableAt, list[str], Predicate | None]:
        """What a read needs: the table at a moment, the checked names of columns, and the condition."""
        merge = self.merge(at)
        names = schemas.names_of(merge.definition.schema, columns)
        return merge, names, None if where is None else parse(where, merge.definition.schema)

    @contextmanager
    def reading(self, merge: TableAt, names: Sequence[str], predicate: Predicate | None) -> Iterator[Any]:
        """A DuckDB relation of the merged rows, in a transaction that later changes of the fold do not affect."""
        with self.duck.transaction() as cursor:
            files = merge.candidates(predicate)
            with self.lock:
                fold = self.fold_name(merge)
                key = predicate.key_values(merge.definition.key) if predicate else None
                if fold is not None and key is not None and merge.definition.version is None:
                    files, fold = _find_winner_files(cursor, fold, merge, key, files), None
                elif fold is not None:
                    cursor.execute(f"SELECT 1 FROM {fold} LIMIT 0").fetchall()
            yield cursor.sql(duck_sql(merge, fold, names, predicate, files=files))

    def _seq_at(self, at: At, head: int) -> int:
        if isinstance(at, bool) or not isinstance(at, int | str | dt.datetime):
            raise Invalid(f"at is {at!r}; expected a seq, a datetime or an ISO time", hint=_AT_HINT)
        if isinstance(at, int):
            if not 0 <= at <= head:
                hint = f"To see them: strandline table history {self.name}"
                raise Invalid(f"table {self.name!r} has seqs 0 to {head}, not {at}", hint=hint, table=self.name, seq=at)
            return at
        try:
            moment = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
        except ValueError as error:
            raise Invalid(f"at is {at!r}; expected a seq, a datetime or an ISO time", hint=_AT_HINT) from error
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        now_ms = max(time.time() * 1000, self.log.refresh().snapshot.timestamp_ms)
        if moment.timestamp() * 1000 > now_ms:
            raise Invalid(
                f"table {self.name!r} cannot be read at {moment.isoformat()}: that is in the future", table=self.name
            )
        seq = self.log.delta.version_at(moment.timestamp() * 1000)
        if seq is None:
            oldest = self.oldest
            raise NotRetained(
                f"table {self.name!r} cannot be read at {moment.isoformat()}: it did not exist, or is no longer kept",
                table=self.name,
                oldest=oldest,
            )
        # A commit may have landed since the caller read the head: the read stays at that head.
        return min(seq, head)


def _find_winner_files(cursor: Any, fold: str, merge: TableAt, key: Sequence[Any], files: Files) -> Files:
    """The files with the one row of `key`: those of the commit that changed it last, none when that deleted it, or
    those of the base."""
    matches = " AND ".join(f"{quoted(name)} = ?" for name in merge.definition.key)
    found = cursor.execute(f"SELECT {SEQ}, {OP} FROM {fold} WHERE {matches}", list(key)).fetchall()
    if not found:
        return Files(files.baseline, merge.split(files.log)[0])
    seq, op = found[0]
    candidates = {file.path for _, file in files.log}
    # A pack may hold other changes of the key: it is limited to the commit.
    changed = merge.log.files(seq - 1, seq) if op == UPSERT else []
    return Files((), [pair for pair in changed if pair[1].path in candidates])


def _place_of(spark: SparkSession, merge: TableAt) -> object:
    """What the rows of a read in Spark depend on."""
    past = (merge.log.purged, merge.log.packed)
    return (spark, merge.baseline.version, merge.seq, merge.definition.schema_id, past)


def _select_schema(merge: TableAt, names: Sequence[str]) -> pa.Schema:
    return pa.schema([merge.definition.schema.field(name) for name in names])
