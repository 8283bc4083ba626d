"""The rows of one range to send: the changes in `(after, upto]`, the table at a seq, or a round of a backfill.

A new consumer gets the table at one seq, each row as an upsert with that seq (in a table without a key, with its own),
and from there on the changes. A feed depends on the log alone, so reading it again, on another machine or with the
other engine, gives the same rows. `log_with_schema` fixes the columns too, so that a column added later changes
nothing.

A backfill delivers the history of a vnode key by key. Its feeds have a span of keys: a round has the rows at `upto` in
the span, a catch-up the changes in `(after, upto]` of the keys that were delivered before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.engines.duck import Duck
from strandline.engines.key_range import at_most, behind
from strandline.engines.scan import listed
from strandline.model import types as schemas
from strandline.model.change import HASH, OP, ROW, SEQ, UPSERT, VNODE
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.key_order import decode_key, encode_key
from strandline.model.keys import hash_condition, shift_for
from strandline.sinks.contract import lane_schema
from strandline.sinks.outgoing import Outgoing
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile
from strandline.tables.fold import changes_sql
from strandline.tables.key_cuts import key_types
from strandline.tables.log import LogState
from strandline.tables.merge import TableAt, duck_sql, make_own_fold, vnodes_of
from strandline.tables.pins import new_pin
from strandline.tables.spark_files import log_scan
from strandline.tables.spark_read import read_frame
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RangeSize:
    """The size of a range, by statistics: data commits, rows, file bytes and bytes in memory. Files count as a whole,
    even if only some of their vnodes are wanted; packs by about the part that lies in the range."""

    commits: int
    rows: int
    bytes: int
    raw_bytes: int


def size_of(files: Sequence[tuple[int, DataFile]]) -> RangeSize:
    packs = [file for _, file in files if file.pack is not None]
    return RangeSize(
        len({seq for seq, file in files if file.pack is None}) + sum(map(_count_commits, packs)),
        sum(_part_of(file, file.rows) for _, file in files),
        sum(_part_of(file, file.size) for _, file in files),
        sum(_part_of(file, file.raw_bytes) for _, file in files),
    )


def _count_commits(file: DataFile) -> int:
    return 0 if file.pack is None else _part_of(file, file.pack.commits)


def _part_of(file: DataFile, whole: int) -> int:
    """The part of a file's size that a range has; a pack in a range counts for something."""
    return whole if file.within is None else max(1, round(whole * file.share))


@dataclass(frozen=True)
class KeySpan:
    """The keys behind `start` up to `end`, both encoded (see `model/key_order`): all from the first one without
    `start`, all to the last one without `end`."""

    start: bytes = b""
    end: bytes | None = None

    def condition(self, definition: TableDef) -> Predicate | None:
        """The condition that a key lies in the span; None when all do."""
        kinds = key_types(definition)
        start = decode_key(self.start, kinds)
        inside = behind(definition.identity, kinds, start) if start else None
        if self.end is not None:
            inside = at_most(definition.identity, kinds, decode_key(self.end, kinds)).also(inside)
        if inside is None or definition.is_keyed:
            return inside
        # The seq and the row of a change are read in any case.
        return replace(inside, columns=frozenset())


@contextmanager
def conform_relation(relation: Any, schema: pa.Schema, batch_rows: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows of a DuckDB relation, with exactly the columns of `schema`."""
    # Closed even if a lane stops early: a transaction cannot end while a result is open.
    with relation.to_arrow_reader(batch_rows) as reader:
        yield schemas.conform_batches(reader, schema)


def log_with_schema(log: LogState, schema_id: int) -> LogState:
    """The log with the columns of an earlier schema. A range that was planned under it has no file with later columns:
    a column is added by a separate commit behind the range."""
    if schema_id >= log.definition.schema_id:
        return log
    kept = LogState(log.snapshot, log.storage, log.folder)
    kept.__dict__["definition"] = log.definition.at_schema(schema_id)
    return kept


class Feed:
    """One range of some vnodes, as it is sent."""

    def __init__(
        self,
        table: TableStore,
        outgoing: Outgoing,
        log: LogState,
        after: int,
        upto: int,
        vnodes: Sequence[int],
        *,
        is_snapshot: bool,
        is_ordered: bool,
        span: KeySpan | None = None,
        extent: RangeSize | None = None,
        verified: set[str] | None = None,
    ) -> None:
        """`extent` is the size of a feed that has only a part of its files' rows. Files in `verified`, named by their
        paths, are not checked again; it grows."""
        self.table = table
        self.outgoing = outgoing
        self.definition: TableDef = outgoing.definition
        self._log = log
        self.after, self.upto = after, upto
        self.vnodes = tuple(sorted(vnodes))
        self._is_all = len(self.vnodes) == self.definition.vnodes
        self._merge: TableAt | None = None
        self._inside = None if span is None else span.condition(self.definition)
        self._verified = set() if verified is None else verified
        if is_snapshot:
            merge = replace(table.merge(upto), log=log)
            self._merge = merge if self._is_all else merge.part(self.vnodes)
            files = [*((0, file) for file in self._merge.base_files()), *self._merge.log_files()]
        else:
            files = files_of(log, after, upto, self.vnodes, self.definition.vnodes)
        self._files = files
        self.extent = size_of(files) if extent is None else extent
        base = self._merge.baseline.folder if self._merge else ""
        self.files = {f"{log.folder if seq else base}/{file.path}": file for seq, file in files}
        self._batch_rows = writer.batch_rows([file for _, file in files])
        own = [SEQ, *(self.definition.key or [ROW])]
        self.order = [VNODE, *own] if is_ordered else list(dict.fromkeys([*outgoing.cluster_by, *own]))
        self.schema = lane_schema(outgoing.schema, self.definition.key)

    @property
    def is_table(self) -> bool:
        """Whether it has rows of the table, not changes."""
        return self._merge is not None

    @property
    def is_laid(self) -> bool:
        """Whether its rows come from files in the order in which they are sent: those of a table without cluster
        columns, not changes."""
        return self._merge is not None and not self.outgoing.cluster_by

    @contextmanager
    def hold_files(self) -> Iterator[None]:
        """Protects the files of a long read from clean-up; the marks protect them from trimming."""
        baseline = self._merge.baseline.version if self._merge else None
        pin = new_pin("sink", seq=self.upto if self._merge else self.after, log_version=self._log.head)
        with self.table.pins.held(replace(pin, baseline_version=baseline)):
            yield

    @contextmanager
    def batches(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows in order, through DuckDB, from verified files."""
        self.check_files()
        with (
            self.table.duck.transaction() as cursor,
            # The order is part of the statement: ordering a relation later would open its files twice.
            conform_relation(
                cursor.sql(f"{self._select_sql(cursor)} ORDER BY {listed(self.order)}"), self.schema, self._batch_rows
            ) as rows,
        ):
            yield rows

    def check_files(self, spark: SparkSession | None = None) -> None:
        """Check the files that nobody has checked yet."""
        if fresh := {path: file for path, file in self.files.items() if path not in self._verified}:
            self.table.verify(fresh, spark=spark, is_folded=self._merge is not None)
            self._verified.update(fresh)

    def find_rows(self, keys: pa.Table) -> pa.Table:
        """The rows with one of these identities: the key as it is sent, or `_seq` and `_row`."""
        self.check_files()
        with self.table.duck.transaction() as cursor:
            rows = self._select_sql(cursor)
            cursor.register("_wanted", keys)
            try:
                using = listed(keys.column_names)
                table = cursor.sql(f"SELECT * FROM ({rows}) SEMI JOIN _wanted USING ({using})").to_arrow_table()
            finally:
                cursor.unregister("_wanted")
        return schemas.conform(table, self.schema)

    def nth_key(self, number: int) -> bytes | None:
        """The key of one row, counted from 1 in the order of the keys; None when there are fewer rows."""
        names = self.definition.identity
        assert self._merge is not None
        with self.table.duck.transaction() as cursor:
            merge = self._merge
            fold = self.table.pinned_fold(cursor, merge)
            inside = list(names) if self.definition.is_keyed else []
            rows = duck_sql(merge, fold, inside, self._inside, hidden=True)
            place = f"ORDER BY {listed(names)} LIMIT 1 OFFSET {number - 1}"
            found = cursor.sql(f"SELECT {listed(names)} FROM ({rows}){self._vnode_filter(VNODE)} {place}")
            keys = found.to_arrow_table()
        kinds = key_types(self.definition)
        if not keys.num_rows:
            return None
        exact = [schemas.conform_column(keys[name], kind)[0] for name, kind in zip(names, kinds, strict=True)]
        return encode_key(exact, kinds)

    def _select_sql(self, cursor: object) -> str:
        return self._changes_sql() if self._merge is None else self._rows_sql(cursor, self._merge)

    def _rows_sql(self, cursor: object, merge: TableAt) -> str:
        rows = rows_sql(merge, self.table.pinned_fold(cursor, merge), self.outgoing, self._predicate, self.upto)
        return f"{rows}{self._vnode_filter(VNODE)}"

    def parts(self, groups: Sequence[Sequence[int]], *, is_sorted: bool) -> list[TablePart]:
        """The rows of these groups of vnodes, for tasks that read files by themselves."""
        assert self._merge is not None
        order = self.order if is_sorted else []
        return [
            TablePart(
                self._merge.part(group).with_own_files(),
                self.outgoing,
                self._predicate,
                self.upto,
                order,
                self.schema,
                self._batch_rows,
            )
            for group in groups
        ]

    def _changes_sql(self) -> str:
        row = [] if self.definition.is_keyed else [ROW]
        changes = changes_sql(self._log, self._files, [OP, HASH, *row, *self.outgoing.columns_to_read], None)
        if self._inside is not None:
            changes = f"SELECT * FROM ({changes}) WHERE {self._inside.duckdb}"
        vnode = f"({HASH} >> {shift_for(self.definition.vnodes)})"
        op, *columns = self.outgoing.duckdb_exprs()
        exprs = [op, f"{vnode} AS {VNODE}", SEQ, *row, *columns]
        return f"SELECT {', '.join(exprs)} FROM ({changes}){self._vnode_filter(vnode)}"

    @property
    def _predicate(self) -> Predicate | None:
        """The condition for rows of the table."""
        return self.outgoing.predicate if self._inside is None else self._inside.also(self.outgoing.predicate)

    def _vnode_filter(self, vnode: str) -> str:
        return "" if self._is_all else f" WHERE {vnode} IN ({', '.join(map(str, self.vnodes))})"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The same rows as a DataFrame, in no order."""
        self.check_files(spark)
        return self._changes_frame(spark) if self._merge is None else self._rows_frame(spark, self._merge)

    def _rows_frame(self, spark: SparkSession, merge: TableAt) -> DataFrame:
        row = [] if self.definition.is_keyed else [ROW]
        fold = self.table.fold_frame(spark, merge) if self._is_all else None
        rows = read_frame(spark, merge, fold, self.outgoing.columns_to_read, self._predicate, hidden=True)
        seq = SEQ if row else f"{self.upto}L AS {SEQ}"
        hidden = [f"'{UPSERT}' AS {OP}", f"CAST({VNODE} AS INT) AS {VNODE}", seq, *row]
        return self._own_vnodes(rows).selectExpr(*hidden, *self.outgoing.snapshot_exprs(is_duckdb=False))

    def _changes_frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F

        row = [] if self.definition.is_keyed else [ROW]
        rows = log_scan(spark, self._log, self._files, [OP, HASH, *row, *self.outgoing.columns_to_read])
        rows = rows if self._inside is None else rows.where(self._inside.spark)
        rows = rows.withColumn(VNODE, F.shiftright(HASH, shift_for(self.definition.vnodes)).cast("int"))
        op, *columns = self.outgoing.spark_exprs()
        return self._own_vnodes(rows).selectExpr(op, VNODE, SEQ, *row, *columns)

    def _own_vnodes(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows if self._is_all else rows.where(F.col(VNODE).isin(list(self.vnodes)))


def rows_sql(
    merge: TableAt,
    fold: str | None,
    outgoing: Outgoing,
    predicate: Predicate | None,
    upto: int,
    *,
    hashes: str | None = None,
) -> str:
    """SQL for the rows of a table at a seq, as they are sent. `fold` is the name of its fold; `hashes` is a condition
    for the rows of log files."""
    row = [] if merge.definition.is_keyed else [ROW]
    rows = duck_sql(merge, fold, outgoing.columns_to_read, predicate, hidden=True, hashes=hashes)
    seq = SEQ if row else f"CAST({upto} AS BIGINT) AS {SEQ}"
    exprs = [f"'{UPSERT}' AS {OP}", VNODE, seq, *row, *outgoing.snapshot_exprs(is_duckdb=True)]
    return f"SELECT {', '.join(exprs)} FROM ({rows})"


@dataclass(frozen=True)
class TablePart:
    """The rows of some vnodes of a table at a seq, as they are sent. It can be sent to a Spark task, which reads the
    files by itself."""

    merge: TableAt
    outgoing: Outgoing
    predicate: Predicate | None
    upto: int
    order: Sequence[str]
    schema: pa.Schema
    batch_rows: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        merge = self.merge
        with Duck.in_task(merge.log.storage, merge.row_bytes) as duck, duck.transaction() as cursor:
            vnodes = sorted(merge.only or ())
            hashes = hash_condition(vnodes, merge.definition.vnodes)
            fold = make_own_fold(cursor, merge, hashes)
            rows = rows_sql(merge, fold, self.outgoing, self.predicate, self.upto, hashes=hashes)
            sql = f"{rows} WHERE {VNODE} IN ({', '.join(map(str, vnodes))})"
            order = f" ORDER BY {listed(self.order)}" if self.order else ""
            with conform_relation(cursor.sql(sql + order), self.schema, self.batch_rows) as found:
                yield from found


def files_of(log: LogState, after: int, upto: int, vnodes: Sequence[int], of: int) -> list[tuple[int, DataFile]]:
    """The log files in `(after, upto]` that may have changes of these vnodes, out of `of` in the table."""
    files = log.files(after, upto)
    if len(vnodes) == of:
        return files
    wanted = set(vnodes)
    return [pair for pair in files if not wanted.isdisjoint(vnodes_of(pair[1], of))]
