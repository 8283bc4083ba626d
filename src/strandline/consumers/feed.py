"""The rows of one range on their way out: changes in `(after, upto]`, or a table as it is at a seq.

A new consumer gets the table as it is at one seq, each row as an upsert with that seq (its own, in a table without a
key), and from there on the changes. What a feed holds is a function of the log alone, so reading it again, on another
machine or by the other engine, gives the same rows; `kept_schema` fixes the columns too, so that a column that came
meanwhile changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.engines.scan import listed
from strandline.model import types as schemas
from strandline.model.change import HASH, OP, ROW, SEQ, UPSERT, VNODE
from strandline.model.definition import TableDef
from strandline.model.keys import shift_for
from strandline.sinks.contract import lane_schema
from strandline.sinks.outgoing import Outgoing
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile
from strandline.tables.fold import changes_sql
from strandline.tables.log import LogState
from strandline.tables.merge import TableAt, duck_sql, vnodes_of
from strandline.tables.pins import new_pin
from strandline.tables.spark_merge import log_scan, spark_frame
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RangeSize:
    """How much a range holds, by statistics: data commits, rows, file bytes and bytes in memory. Files of which only
    some vnodes are wanted count as a whole."""

    commits: int
    rows: int
    bytes: int
    raw_bytes: int


def extent_of(files: Sequence[tuple[int, DataFile]]) -> RangeSize:
    return RangeSize(
        len({seq for seq, _ in files}),
        sum(file.rows for _, file in files),
        sum(file.size for _, file in files),
        sum(file.raw_bytes for _, file in files),
    )


@contextmanager
def conformed(relation: Any, schema: pa.Schema, batch_rows: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows of a DuckDB relation, with exactly the columns of `schema`."""
    # A lane may stop early, and a transaction does not end while a result is open.
    with relation.to_arrow_reader(batch_rows) as reader:
        yield schemas.conform_batches(reader, schema)


def kept_schema(log: LogState, schema_id: int) -> LogState:
    """The log with the columns that it had under that schema. No file of a range that was planned under it has later
    ones: a column comes by a commit of its own, which the range does not reach."""
    definition = log.definition
    if schema_id >= definition.schema_id:
        return log
    kept = LogState(log.snapshot, log.storage, log.folder)
    kept.__dict__["definition"] = replace(definition, schemas=definition.schemas[: schema_id + 1])
    return kept


class Feed:
    """One range of some vnodes, in the shape in which it leaves."""

    def __init__(
        self,
        table: TableStore,
        shape: Outgoing,
        log: LogState,
        after: int,
        upto: int,
        vnodes: Sequence[int],
        *,
        is_snapshot: bool,
        is_ordered: bool,
    ) -> None:
        self.table = table
        self.shape = shape
        self.definition: TableDef = shape.definition
        self._log = log
        self.after, self.upto = after, upto
        self.vnodes = tuple(sorted(vnodes))
        self._is_all = len(self.vnodes) == self.definition.vnodes
        self._merge: TableAt | None = None
        self._files: list[tuple[int, DataFile]] = []
        if is_snapshot:
            merge = replace(table.merge(upto), log=log)
            self._merge = merge if self._is_all else merge.part(self.vnodes)
            files = [*((0, file) for file in self._merge.base_files()), *self._merge.log_files()]
        else:
            files = self._files = files_of(log, after, upto, self.vnodes, self.definition.vnodes)
        self.extent = extent_of(files)
        base = self._merge.baseline.folder if self._merge else ""
        self.files = {f"{log.folder if seq else base}/{file.path}": file for seq, file in files}
        self._batch_rows = writer.batch_rows([file for _, file in files])
        own = [SEQ, *(self.definition.key or [ROW])]
        self.order = [VNODE, *own] if is_ordered else list(dict.fromkeys([*shape.cluster_by, *own]))
        self.schema = lane_schema(shape.schema, self.definition.key)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the files of a long read from being cleaned away; that they are not trimmed the marks see to."""
        baseline = self._merge.baseline.version if self._merge else None
        pin = new_pin("sink", seq=self.upto if self._merge else self.after, log_version=self._log.head)
        with self.table.pins.held(replace(pin, baseline_version=baseline)):
            yield

    @contextmanager
    def batches(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows in order, through DuckDB, from files that are not damaged."""
        self._verify(self.files)
        with (
            self.table.duck.transaction() as cursor,
            # The order is in the text: a relation that is ordered later is bound, and its files are opened, twice.
            conformed(
                cursor.sql(f"{self._sql(cursor)} ORDER BY {listed(self.order)}"), self.schema, self._batch_rows
            ) as rows,
        ):
            yield rows

    def _verify(self, files: Mapping[str, DataFile], spark: SparkSession | None = None) -> None:
        self.table.verify(files, spark=spark, is_folded=self._merge is not None)

    def matching(self, keys: pa.Table, proved: set[str]) -> pa.Table:
        """The rows that have one of these identities: the key as it leaves, or `_seq` and `_row`; from files that are
        not damaged. `proved` are the paths of those that were looked at a moment ago, and grows."""
        if fresh := {path: file for path, file in self.files.items() if path not in proved}:
            self._verify(fresh)
            proved.update(fresh)
        with self.table.duck.transaction() as cursor:
            rows = self._sql(cursor)
            cursor.register("_wanted", keys)
            try:
                using = listed(keys.column_names)
                table = cursor.sql(f"SELECT * FROM ({rows}) SEMI JOIN _wanted USING ({using})").to_arrow_table()
            finally:
                cursor.unregister("_wanted")
        return schemas.conform(table, self.schema)

    def _sql(self, cursor: object) -> str:
        row = [] if self.definition.is_keyed else [ROW]
        if self._merge is not None:
            fold = self.table.pinned_fold(cursor, self._merge)
            rows = duck_sql(self._merge, fold, self.shape.columns_to_read, self.shape.predicate, hidden=True)
            seq = SEQ if row else f"CAST({self.upto} AS BIGINT) AS {SEQ}"
            hidden = [f"'{UPSERT}' AS {OP}", VNODE, seq, *row]
            return f"SELECT {', '.join([*hidden, *self.shape.snapshot_exprs(is_duckdb=True)])} FROM ({rows}){self._only(VNODE)}"
        changes = changes_sql(self._log, self._files, [OP, HASH, *row, *self.shape.columns_to_read], None)
        vnode = f"({HASH} >> {shift_for(self.definition.vnodes)})"
        op, *columns = self.shape.duckdb_exprs()
        exprs = [op, f"{vnode} AS {VNODE}", SEQ, *row, *columns]
        return f"SELECT {', '.join(exprs)} FROM ({changes}){self._only(vnode)}"

    def _only(self, vnode: str) -> str:
        return "" if self._is_all else f" WHERE {vnode} IN ({', '.join(map(str, self.vnodes))})"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The same rows as a DataFrame, in no order."""
        from pyspark.sql import functions as F

        self._verify(self.files, spark)
        row = [] if self.definition.is_keyed else [ROW]
        if self._merge is not None:
            fold = self.table.fold_frame(spark, self._merge) if self._is_all else None
            rows = spark_frame(spark, self._merge, fold, self.shape.columns_to_read, self.shape.predicate, hidden=True)
            hidden = [
                f"'{UPSERT}' AS {OP}",
                f"CAST({VNODE} AS INT) AS {VNODE}",
                SEQ if row else f"{self.upto}L AS {SEQ}",
                *row,
            ]
            exprs = [*hidden, *self.shape.snapshot_exprs(is_duckdb=False)]
        else:
            rows = log_scan(spark, self._log, self._files, [OP, HASH, *row, *self.shape.columns_to_read])
            rows = rows.withColumn(VNODE, F.shiftright(HASH, shift_for(self.definition.vnodes)).cast("int"))
            op, *columns = self.shape.spark_exprs()
            exprs = [op, VNODE, SEQ, *row, *columns]
        if not self._is_all:
            rows = rows.where(F.col(VNODE).isin(list(self.vnodes)))
        return rows.selectExpr(*exprs)


def files_of(log: LogState, after: int, upto: int, vnodes: Sequence[int], of: int) -> list[tuple[int, DataFile]]:
    """The log files in `(after, upto]` that may have changes of these vnodes of a table that has `of` of them."""
    files = log.files(after, upto)
    if len(vnodes) == of:
        return files
    wanted = set(vnodes)
    return [pair for pair in files if not wanted.isdisjoint(vnodes_of(pair[1], of))]
