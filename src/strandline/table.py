"""A table at the front: write changes, read baseline and log as one at a seq."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from strandline.consumers import compaction, retention
from strandline.consumers.compaction import CompactReport
from strandline.consumers.compaction_plan import CompactPlan, plan
from strandline.engines.duck import Duck
from strandline.engines.scan import listed, quoted
from strandline.engines.spark import session
from strandline.errors import Corrupt, Invalid, NotRetained
from strandline.jobs.export import Destination, ExportReport, export, new_source
from strandline.jobs.purge import PurgeReport, purge
from strandline.jobs.restore import restore
from strandline.jobs.vacuum import VacuumReport, vacuum
from strandline.model import duration
from strandline.model import types as schemas
from strandline.model.change import DELETE, OP, SEQ, UPSERT, Commit, Op
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.rows import checked, is_spark
from strandline.model.settings import Care
from strandline.model.text import check_text
from strandline.model.where import parse
from strandline.progress import Progress, silent
from strandline.storage import digest
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile
from strandline.tables import fold as folds
from strandline.tables import horizon as expiry
from strandline.tables.baseline import Baseline, BaselineState
from strandline.tables.catalog import Entry
from strandline.tables.horizon import horizon_at
from strandline.tables.log import Log, LogState
from strandline.tables.merge import Files, Merge, duck_sql
from strandline.tables.pins import HeldPin, Pins, new_pin
from strandline.tables.readers import Nobody, Readers
from strandline.tables.spark_merge import check_files, fold_frame, spark_frame, winners_sql
from strandline.tables.writing import checked_frame, write, write_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER_FOLD_ROWS = 1_000_000
At = int | str | dt.datetime | None


@dataclass(frozen=True)
class HistoryEntry:
    """One commit of a table's log."""

    seq: int
    at: dt.datetime
    operation: str
    rows: int
    files: int


class Table:
    """A keyed table, or an append-only one without a key. Safe to share between threads and processes."""

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
        self.readers: Readers = readers or Nobody()
        self.duck = duck
        self.spark = spark
        self.log = Log(storage, f"{entry.folder}/log")
        self.baseline = Baseline(storage, f"{entry.folder}/baseline", self.log.refresh().definition.vnodes)
        self.lock = threading.RLock()
        self.folding = threading.Lock()
        self._folds = folds.FoldCache(duck)
        self._spark_fold: tuple[object, DataFrame] | None = None
        self._spark_frame: tuple[object, DataFrame] | None = None

    def __repr__(self) -> str:
        return f"Table({self.name!r}, head={self.head})"

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
        state, trimmed_to = self.baseline.refresh(), self.log.refresh().trimmed_to
        if not state.kept_from and not trimmed_to:
            return 0
        kept = (max(m) for v, m in self.baseline.versions(state) if v >= state.kept_from and min(m) >= trimmed_to)
        return min(kept, default=max(state.marks))

    def upsert(self, rows: object, *, order_by: str | None = None, token: str | None = None) -> Commit:
        """Insert or replace whole rows by key, as one commit.

        Rows are Arrow, pandas, polars, a list of dicts or a Spark DataFrame. Of rows with one key the last wins; a
        DataFrame has no order, so it needs `order_by` or unique keys. With a `token`, repeating the call is safe."""
        definition = self._keyed("upsert")
        return self._write(rows, definition, definition.schema, UPSERT, order_by, token)

    def delete(self, keys: object, *, token: str | None = None) -> Commit:
        """Delete rows by key, as one commit; keys that are not in the table are no error.

        Keys are rows of the key columns alone, or for a key of one column a list of its values."""
        definition = self._keyed("delete")
        columns = pa.schema([definition.schema.field(name) for name in definition.key])
        return self._write(_key_rows(keys, definition), definition, columns, DELETE, None, token)

    def append(self, rows: object, *, token: str | None = None) -> Commit:
        """Add rows to a table without a key, as one commit."""
        definition = self.definition
        if definition.is_keyed:
            raise Invalid(f"table {self.name!r} has the key {', '.join(definition.key)}: use upsert", table=self.name)
        return self._write(rows, definition, definition.schema, UPSERT, None, token)

    def _keyed(self, verb: str) -> TableDef:
        definition = self.definition
        if not definition.is_keyed:
            raise Invalid(f"table {self.name!r} has no key: it takes append, not {verb}", table=self.name)
        return definition

    def _write(
        self,
        rows: object,
        definition: TableDef,
        columns: pa.Schema,
        op: Op,
        order_by: str | None,
        token: str | None,
    ) -> Commit:
        tokens = [] if token is None else [_checked_token(token)]
        try:
            if is_spark(rows):
                frame = checked_frame(cast("DataFrame", rows), columns, order_by)
                return write_frame(self.log, frame, definition, op, order_by=order_by, tokens=tokens)
            if order_by is not None:
                raise Invalid("order_by is for Spark DataFrames; other rows are taken in their own order")
            return write(self.log, checked(rows, columns), definition, op, tokens=tokens, spark=self.spark)
        except Invalid as error:
            error.fields.setdefault("table", self.name)
            raise

    def _keys(self, keys: object, verb: str) -> pa.Table:
        """Keys that a user gave, checked, as a table of the key columns."""
        definition = self._keyed(verb)
        columns = pa.schema([definition.schema.field(name) for name in definition.key])
        rows = _key_rows(keys, definition)
        if is_spark(rows):
            rows = cast("DataFrame", rows).toArrow()
        pieces = list(checked(rows, columns))
        return pa.concat_tables(pieces) if pieces else columns.empty_table()

    def evolve(self, schema: pa.Schema) -> pa.Schema:
        """Add nullable columns and widen numbers; returns the new schema. Columns that `schema` leaves out stay."""
        return self.log.redefine("EVOLVE", lambda definition: definition.evolve(schema)).schema

    def to_arrow(self, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """The rows at a seq or a time (now, by default), in no promised order.

        `where` is an SQL expression over the columns; it and `columns` reach down to the files."""
        merge, names, predicate = self._plan(at, columns, where)
        with self.reading(merge, names, predicate) as relation:
            table = relation.to_arrow_table(merge.batch_rows(most=131_072))
        return schemas.conform(table, _selected(merge, names))

    def to_batches(
        self,
        *,
        at: At = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        batch_rows: int = 50_000,
    ) -> Iterator[pa.RecordBatch]:
        """The same rows as a stream of batches of at most `batch_rows`, without holding them all."""
        merge, names, predicate = self._plan(at, columns, where)
        wanted = _selected(merge, names)
        claim = new_pin("read", seq=merge.seq, log_version=merge.log.head, baseline_version=merge.baseline.version)
        with self.pins.held(claim), self.reading(merge, names, predicate) as relation:
            for batch in relation.to_arrow_reader(merge.batch_rows(most=batch_rows)):
                yield from schemas.conform(pa.Table.from_batches([batch]), wanted).to_batches()

    def to_spark(self, *, at: At = None, columns: Sequence[str] | None = None, where: str | None = None) -> DataFrame:
        """The same rows as a Spark DataFrame, fixed at that seq. One that runs later than the table's grace time needs
        a `pin`."""
        merge, names, predicate = self._plan(at, columns, where)
        spark = session(self.spark)
        if predicate is not None:
            return spark_frame(spark, merge, self.fold_frame(spark, merge), names, predicate)
        frame = self._whole_frame(spark, merge)
        return frame if columns is None else frame.select(*[f"`{name}`" for name in names])

    def _whole_frame(self, spark: SparkSession, merge: Merge) -> DataFrame:
        """All columns at a seq, kept: planning them again takes Spark longer than many a read."""
        place = (spark, merge.baseline.version, merge.seq, merge.definition.schema_id, merge.log.purged)
        with self.lock:
            if self._spark_frame is None or self._spark_frame[0] != place:
                fold = self.fold_frame(spark, merge)
                self._spark_frame = (place, spark_frame(spark, merge, fold, merge.definition.schema.names))
            return self._spark_frame[1]

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
        """The log, and a range of its changes, checked: up to the head where no end is given."""
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

    def export(
        self,
        dest: str | os.PathLike[str],
        *,
        at: At = None,
        changes: tuple[int, int | None] | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        overwrite: bool = False,
        options: Mapping[str, str] | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> ExportReport:
        """Write the rows at a seq or a time, or with `changes` those in `(after, upto]` with their `_op` and `_seq`, as
        Parquet files below `dest`: an empty folder or `s3://bucket/prefix`.

        `overwrite` replaces an earlier export. Changes that `where` refuses leave as deletes. `options` are S3
        settings, as a lake takes them. `dry_run` only says what it would be."""
        source = new_source(self, at=at, changes=changes, columns=columns, where=where)
        return export(source, Destination(dest, options, is_replaced=overwrite), dry_run=dry_run, progress=progress)

    def history(self) -> list[HistoryEntry]:
        """The commits of the log, oldest first."""
        return [
            HistoryEntry(
                info.version,
                dt.datetime.fromtimestamp(info.timestamp_ms / 1000, dt.UTC),
                info.operation,
                int(info.metrics.get("rows", 0)),
                int(info.metrics.get("files", 0)),
            )
            for info in self.log.delta.history()
        ]

    @property
    def pins(self) -> Pins:
        """The claims on this table's past."""
        return self.log.pins

    def pin(self, at: At = None, *, name: str | None = None, why: str = "asked for", length: object = "1h") -> HeldPin:
        """Keep the table readable at a seq until the pin is released, or has not been renewed for `length`.

        As a `with` block it renews itself. A `name` makes it one that a later call moves, from any process."""
        check_text("why", why)
        length_s = duration.seconds(length, "length")
        if not length_s:
            raise Invalid("length is 0; a pin lasts for a time", table=self.name)
        merge = self.merge(at)
        before = next((pin for pin in self.pins.all() if pin.name == name), None)
        pin = new_pin(
            why,
            name=name,
            length_s=length_s,
            seq=merge.seq,
            log_version=merge.log.head,
            baseline_version=merge.baseline.version,
        )

        def check() -> None:
            """Whoever gives this seq up without having seen the pin has said so by now, or has to look again."""
            self.baseline.note_pin()
            self.merge(merge.seq)

        self.pins.put(pin)
        try:
            check()
        except NotRetained:
            if before is None:
                self.pins.release(pin.name)
            else:
                self.pins.put(before)
            raise
        return HeldPin(pin, self.pins, check)

    def plan_compaction(self, *, full: bool = False) -> CompactPlan:
        """Which vnodes `compact` would fold now, and why."""
        return plan(self, full=full)

    def compact(self, *, full: bool = False, progress: Progress = silent) -> CompactReport:
        """Fold the log into the baseline where that is due, or with `full` wherever there are changes."""
        return compaction.compact(self, full=full, progress=progress)

    def vacuum(
        self,
        *,
        grace: object | None = None,
        keep: object | None = None,
        dry_run: bool = False,
        progress: Progress = silent,
    ) -> VacuumReport:
        """Trim the log and delete the files that nothing needs, behind every pin.

        `keep` and `grace` stand in for the table's settings: how far back it stays readable, and how long a file
        has to be unneeded before it goes."""
        return vacuum(
            self,
            grace_s=None if grace is None else duration.seconds(grace, "grace"),
            keep_s=None if keep is None else duration.seconds(keep, "keep"),
            dry_run=dry_run,
            progress=progress,
        )

    def configure(self, **settings: object) -> Care:
        """Change how the table is looked after (see `Care`), or name its `time` column; returns all its settings."""
        return self.log.redefine("CONFIGURE", lambda definition: definition.cared(settings)).care

    def expire(self, before: dt.datetime | dt.date | None = None) -> int | None:
        """Hide the rows whose time lies before a moment, by default as the setting `retention` says; returns the
        seq from which it holds, None when there is nothing to hide. Compaction drops them later. Rows that a sink has
        not acknowledged stay: they hold the retention back, and are a `Conflict` with `before`."""
        definition = self.definition
        definition.check_expires()
        if before is None:
            if definition.care.retention is None:
                raise Invalid(
                    f"table {self.name!r} keeps its rows for ever",
                    hint="Say before when, or set it: configure(retention='90d').",
                    table=self.name,
                )
            horizon = retention.due(self)
            return None if horizon is None else self.log.expire(horizon)
        if isinstance(before, dt.datetime):
            moment = before
        elif isinstance(before, dt.date):
            moment = dt.datetime.combine(before, dt.time())
        else:
            raise Invalid(f"before is {before!r}; expected a datetime or a date", table=self.name)
        horizon = expiry.micros(moment)
        if horizon > expiry.micros(dt.datetime.now(dt.UTC)):
            raise Invalid(
                f"before is {moment.isoformat()}, in the future: rows that arrive until then would never show",
                hint="Give a time that has passed.",
                table=self.name,
            )
        # A horizon that cannot be said in the column's type would make every read fail.
        expiry.expiry(definition, horizon)
        retention.check(self, horizon)
        return self.log.expire(horizon)

    def restore(self, at: At) -> Commit:
        """Make the table again what it was at a seq or a time, as one new commit; nothing of the past is lost. Rows
        that have expired since stay hidden."""
        return restore(self, at)

    def drop_column(self, name: str) -> pa.Schema:
        """Take a column out of the table; its name is not used again. Its bytes go as files are rewritten: at once
        with `compact(full=True)` and vacuum."""
        return self.log.redefine("DROP COLUMN", lambda definition: definition.without(name)).schema

    def purge(self, keys: object, *, progress: Progress = silent) -> PurgeReport:
        """Erase rows for good: from the log, the baseline, every readable version, the refused rows and the dead
        letters of sinks.

        The bytes leave the disk with the next vacuum after the grace time. What sinks have sent is not reached."""
        rows = self._keys(keys, "purge")
        with self.readers.paused():
            self.readers.forget(rows)
            return purge(self, rows, progress=progress)

    def look(self) -> tuple[BaselineState, LogState]:
        """What there is now; `Corrupt` when the baseline holds changes that the log has lost. A commit must not take
        the number of one of those: nobody would ever see its rows."""
        # The baseline first: one that is newer than the log seen here would hold changes after its head.
        baseline = self.baseline.refresh()
        log = self.log.refresh()
        if max(baseline.marks) > log.head:
            raise Corrupt(
                f"table {self.name!r} is folded to seq {max(baseline.marks)}, but its log ends at {log.head}",
                hint="Commit files of the log are missing: restore them from a backup.",
                table=self.name,
                path=self.log.delta.chain.commits.path(log.head + 1),
            )
        return baseline, log

    def merge(self, at: At = None) -> Merge:
        """What a read at `at` consists of."""
        seen: tuple[int, int] | None = None
        while True:
            baseline, log = self.look()
            seq = log.head if at is None else self._seq_at(at, log.head)
            if max(baseline.marks) > seq:
                baseline = self.baseline.at_seq(seq, log.trimmed_to)
            if min(baseline.marks) >= log.trimmed_to:
                return Merge(log, baseline, seq, horizon_at(log.snapshot.txns, seq))
            # Folded and trimmed between the two looks: there is a newer baseline.
            if seen == (baseline.version, log.head):
                raise Corrupt(
                    f"the log of table {self.name!r} is trimmed to seq {log.trimmed_to}, but its baseline holds only"
                    f" {min(baseline.marks)}",
                    hint="Its newest files are missing: restore them from a backup.",
                    table=self.name,
                )
            seen = (baseline.version, log.head)

    def fold_name(self, merge: Merge) -> str | None:
        """The DuckDB table that holds the fold of `merge`; call it, and start the query, under `lock`."""
        if not merge.definition.is_keyed or not merge.log_files() or merge.is_first_load:
            return None
        return self._folds.ensure(merge.log, merge.baseline.marks, merge.seq)

    def pinned_fold(self, cursor: Any, merge: Merge) -> str | None:
        """The fold of `merge` as the cursor's transaction sees it from here on, whatever later reads make of it."""
        with self.lock:
            name = self.fold_name(merge)
            if name is not None:
                cursor.execute(f"SELECT 1 FROM {name} LIMIT 0").fetchall()
            return name

    def verify(
        self,
        files: Mapping[str, DataFile],
        columns: Sequence[str] | None = None,
        *,
        spark: SparkSession | None,
        is_folded: bool,
    ) -> None:
        """`Corrupt` when one of these files, of which `columns` are read, is damaged; Spark tasks look where there is a
        session. Reads do not look. So the folds that they have kept go when a file is damaged, and before one is used,
        `is_folded`, to write rows again: a file may have been damaged and put back since."""
        try:
            if spark is None:
                digest.check(self.log.storage, files.items(), columns)
            else:
                check_files(spark, self.log.storage, files.items(), columns)
        except Corrupt:
            self.forget_folds()
            raise
        if is_folded:
            self.forget_folds()

    def forget_folds(self) -> None:
        """Let go of what reads have kept of the log."""
        with self.lock:
            self._folds.forget()
            if self._spark_fold is not None:
                self._spark_fold[1].unpersist()
            self._spark_fold = self._spark_frame = None

    def fold_frame(self, spark: SparkSession, merge: Merge) -> DataFrame | None:
        """The fold for Spark, kept there between reads; None when it is so large that Spark computes it itself."""
        rows = sum(file.rows for _, file in merge.log_files())
        if not merge.definition.is_keyed or not 0 < rows <= DRIVER_FOLD_ROWS:
            return None
        with self.lock:
            place = (spark, merge.baseline.marks, merge.seq, merge.log.purged)
            if self._spark_fold is None or self._spark_fold[0] != place:
                name = self.fold_name(merge)
                if name is None:
                    return None
                if self._spark_fold is not None:
                    self._spark_fold[1].unpersist()
                content = self.duck.table(winners_sql(name, merge.definition))
                self._spark_fold = (place, fold_frame(spark, content))
            return self._spark_fold[1]

    def _plan(
        self, at: At, columns: Sequence[str] | None, where: str | None
    ) -> tuple[Merge, list[str], Predicate | None]:
        merge = self.merge(at)
        names = schemas.names_of(merge.definition.schema, columns)
        return merge, names, None if where is None else parse(where, merge.definition.schema)

    @contextmanager
    def reading(self, merge: Merge, names: Sequence[str], predicate: Predicate | None) -> Iterator[Any]:
        """A DuckDB relation of the merged rows, in a transaction that later refreshes of the fold do not disturb."""
        with self.duck.transaction() as cursor:
            files = merge.candidates(predicate)
            with self.lock:
                fold = self.fold_name(merge)
                key = predicate.key_values(merge.definition.key) if predicate else None
                if fold is not None and key is not None and merge.definition.version is None:
                    files, fold = _only_winner(cursor, fold, merge, key, files), None
                elif fold is not None:
                    cursor.execute(f"SELECT 1 FROM {fold} LIMIT 0").fetchall()
            yield cursor.sql(duck_sql(merge, fold, names, predicate, files=files))

    def _seq_at(self, at: At, head: int) -> int:
        if isinstance(at, bool) or not isinstance(at, int | str | dt.datetime):
            raise Invalid(f"at is {at!r}; expected a seq, a datetime or an ISO time")
        if isinstance(at, int):
            if not 0 <= at <= head:
                raise Invalid(f"table {self.name!r} has seqs 0 to {head}, not {at}", table=self.name, seq=at)
            return at
        try:
            moment = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
        except ValueError as error:
            raise Invalid(f"at is {at!r}; expected a seq, a datetime or an ISO time") from error
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        seq = self.log.delta.version_at(moment.timestamp() * 1000)
        if seq is None:
            oldest = self.oldest
            raise NotRetained(
                f"table {self.name!r} cannot be read at {moment.isoformat()}: it was not there, or is not kept",
                table=self.name,
                oldest=oldest,
            )
        # A commit may have landed since the caller looked: the read is of what it saw.
        return min(seq, head)


def _only_winner(cursor: Any, fold: str, merge: Merge, key: Sequence[Any], files: Files) -> Files:
    """Where the one row of `key` is: in the commit that changed it last, nowhere when that deleted it, else in the
    baseline."""
    matches = " AND ".join(f"{quoted(name)} = ?" for name in merge.definition.key)
    found = cursor.execute(f"SELECT {SEQ}, {OP} FROM {fold} WHERE {matches}", list(key)).fetchall()
    if not found:
        return Files(files.baseline, ())
    seq, op = found[0]
    return Files((), [pair for pair in files.log if pair[0] == seq and op == UPSERT])


def _key_rows(keys: object, definition: TableDef) -> object:
    """Keys as rows: for a key of one column its values alone will do."""
    if isinstance(keys, list | tuple | set | frozenset) and len(definition.key) == 1:
        return [k if isinstance(k, dict) else {definition.key[0]: k} for k in keys]
    return keys


def _selected(merge: Merge, names: Sequence[str]) -> pa.Schema:
    return pa.schema([merge.definition.schema.field(name) for name in names])


def _checked_token(token: object) -> str:
    if not isinstance(token, str) or not 1 <= len(token) <= 512:
        raise Invalid(f"token is {token!r:.40}; expected a text of 1 to 512 characters")
    return check_text("token", token)
