"""What is exported: a table at a seq, or the changes between two seqs, each read by DuckDB or by Spark.

A change that no longer matches the filter is exported as a delete (see `outgoing`): a copy that is made from the
exported changes has to lose that row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.consumers.damage import damaged_files
from strandline.consumers.feed import conform_relation
from strandline.engines.duck import is_duckdb_error
from strandline.engines.lanes import ReadLane
from strandline.engines.scan import ScanFile, listed
from strandline.errors import Corrupt, Invalid
from strandline.model import types as schemas
from strandline.model.change import HASH, OP, ROW, SEQ
from strandline.model.condition import Predicate
from strandline.model.where import parse
from strandline.sinks.contract import WITHHELD
from strandline.sinks.outgoing import Outgoing
from strandline.storage.parquet import reader, writer
from strandline.storage.snapshot import DataFile
from strandline.tables.fold import changes_sql
from strandline.tables.log import LogState
from strandline.tables.merge import TableAt, needed_columns
from strandline.tables.pins import Pin, new_pin
from strandline.tables.spark_files import log_scan
from strandline.tables.spark_read import read_frame
from strandline.tables.store import At, TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COUNTED_ROWS = 20_000_000
_PROBED_ROWS = 512


@dataclass(frozen=True)
class Scan:
    """Files to read, for a `ReadLane`."""

    files: Sequence[ScanFile]
    lane: ReadLane

    @property
    def is_checked(self) -> bool:
        """Whether the lane compares each file with its digest."""
        return bool(self.lane.files)


class ExportSource(ABC):
    """Rows to export. `rows` and `raw_bytes` are upper bounds. Rows are sorted by `order`; rows with equal `lane_by`,
    its first columns, stay in one lane; the writer gets `cluster_by`. `read` are the columns that are read, `deciding`
    the files that decide which rows count. `pin` keeps all these files from being deleted."""

    schema: pa.Schema
    needed: pa.Schema
    order: Sequence[str]
    after: int | None = None
    seq: int
    read: Sequence[str]
    deciding: Mapping[str, DataFile] = {}
    pin: Pin

    def __init__(self, table: TableStore, log: LogState, columns: Sequence[str] | None, where: str | None) -> None:
        definition = log.definition
        self.table = table
        self.definition = definition
        self.names = schemas.names_of(definition.schema, columns)
        self.where = where
        self.predicate: Predicate | None = None if where is None else parse(where, definition.schema)
        self.lane_by = definition.clustering(definition.schema.names)
        self.cluster_by = definition.clustering(self.names)

    def _set_files(self, by_path: Mapping[str, DataFile]) -> None:
        self.files, files = by_path, by_path.values()
        self.rows = sum(file.rows for file in files)
        self.raw_bytes = sum(file.raw_bytes for file in files)
        self._row_bytes = self.raw_bytes // max(1, self.rows)
        self._batch_rows = writer.batch_rows(files)

    def hold_pin(self) -> AbstractContextManager[None]:
        return self.table.pins.held(self.pin)

    @contextmanager
    def batches(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows in order, through DuckDB."""
        with self._relation() as relation:
            try:
                ordered = relation.order(listed(self.order)) if self.order else relation
                with conform_relation(ordered, self.schema, self._batch_rows) as rows:
                    yield rows
            except Exception as error:
                if is_duckdb_error(error):
                    self.find_damage(error)
                raise

    @abstractmethod
    def _relation(self) -> AbstractContextManager[Any]: ...

    @abstractmethod
    def frame(self, spark: SparkSession) -> DataFrame: ...

    @abstractmethod
    def scan(self) -> Scan | None:
        """The files, when every row of them is exported unchanged; None when rows have to be merged or filtered."""

    def describe(self) -> dict[str, Any]:
        return {
            "table": self.table.name,
            "generation": self.table.entry.generation,
            "after": self.after,
            "seq": self.seq,
            "columns": self.names,
            "where": self.where,
        }

    def measure_rows(self) -> None:
        """Count the rows that match the filter, and estimate the size of the exported columns from the first file. The
        commit knows whole rows only. This costs less than starting Spark for a few rows."""
        if self.where is not None and self.rows <= _COUNTED_ROWS:
            with self._relation() as relation:
                self.rows = int(relation.aggregate("count(*)").fetchall()[0][0])
        if self.files and len(self.needed) < len(self.definition.schema):
            with reader.open_file(self.table.log.storage, next(iter(self.files))) as file:
                stored = self.definition.stored_names(self.needed.names)
                inside = [name for name in stored if name in file.schema_arrow.names]
                first = next(file.iter_batches(_PROBED_ROWS, columns=inside), None)
            self._row_bytes = min(self._row_bytes, first.nbytes // first.num_rows) if first else self._row_bytes
        self.raw_bytes = self.rows * self._row_bytes

    def check(self, spark: SparkSession | None) -> None:
        """`Corrupt` when a file that will be read is damaged. With a session, Spark tasks check the files."""
        columns = None if self._reads_all() else self.read
        self.table.verify({**self.files, **self.deciding}, columns, spark=spark, is_folded=True)

    def _reads_all(self) -> bool:
        return set(self.read) >= set(self.definition.schema.names)

    def _whole_files(self) -> Mapping[str, DataFile]:
        """The files to compare with their digests while they are read; none when only some columns are read."""
        return self.files if self._reads_all() else {}

    def find_damage(self, error: Exception) -> None:
        """`Corrupt` when a damaged file caused the error: the message of an engine would be hard to understand."""
        storage = self.table.log.storage
        for path, fault in damaged_files(storage, self.files, error):
            raise Corrupt(
                f"{storage.url(path)} cannot be read: {fault}",
                hint="See what is affected: strandline doctor --deep",
                path=path,
            ) from error


class WholeTable(ExportSource):
    """The rows of a table at a seq."""

    def __init__(self, table: TableStore, merge: TableAt, columns: Sequence[str] | None, where: str | None) -> None:
        super().__init__(table, merge.log, columns, where)
        files = merge.candidates(self.predicate)
        folders = (merge.baseline.folder, files.baseline), (merge.log.folder, [file for _, file in files.log])
        self._set_files({f"{folder}/{file.path}": file for folder, some in folders for file in some})
        self._merge = merge
        self.seq = merge.seq
        self.schema = pa.schema([self.definition.schema.field(name) for name in self.names])
        self.order = list(dict.fromkeys([*self.lane_by, *self.definition.key])) if self.lane_by else []
        self._needed = list(dict.fromkeys([*self.names, *self.order]))
        self.needed = pa.schema([self.definition.schema.field(name) for name in self._needed])

        filtered = needed_columns(self.definition, self._needed, merge.filter(self.predicate))
        self.read, self.deciding = [*filtered, HASH, OP, SEQ, ROW], merge.deciding_files()
        self.pin = new_pin("export", seq=self.seq, log_version=merge.log.head, baseline_version=merge.baseline.version)

    def _relation(self) -> AbstractContextManager[Any]:
        return self.table.reading(self._merge, self._needed, self.predicate)

    def frame(self, spark: SparkSession) -> DataFrame:
        fold = self.table.fold_frame(spark, self._merge)
        return read_frame(spark, self._merge, fold, self._needed, self.predicate)

    def scan(self) -> Scan | None:
        merge = self._merge
        if merge.log_files() or merge.filter(self.predicate) is not None:
            return None
        lane = ReadLane(
            merge.log.storage, tuple(merge.baseline_schemas), tuple(self._needed), None, self._whole_files()
        )
        return Scan(merge.baseline.scans(merge.base_files()), lane)


class ChangeRange(ExportSource):
    """The changes of a table in `(after, seq]`."""

    def __init__(
        self, table: TableStore, changes: tuple[int, int | None], columns: Sequence[str] | None, where: str | None
    ) -> None:
        if not isinstance(changes, tuple | list) or len(changes) != 2:
            raise Invalid(f"changes is {changes!r}; expected a pair of seqs, (after, upto)", table=table.name)
        log, after, upto = table.change_range(*changes)
        if changes[1] is not None and changes[1] > upto:
            raise Invalid(
                f"table {table.name!r} has seqs 0 to {upto}, not {changes[1]}", table=table.name, seq=changes[1]
            )
        self._log = log
        self._files = log.files(after, upto)
        super().__init__(table, log, columns, where)
        self._set_files({f"{log.folder}/{file.path}": file for _, file in self._files})
        self.after = after
        self.seq = upto
        key, version = self.definition.key, self.definition.version
        self.names = list(dict.fromkeys([*key, *self.names, *([version] if version else [])]))
        self.cluster_by = self.definition.clustering(self.names)
        self.order = list(dict.fromkeys([*self.lane_by, SEQ, *key])) if self.lane_by else []
        self._shape = Outgoing.of(
            self.definition, where=where, columns=list(dict.fromkeys([*self.names, *self.lane_by]))
        )
        hidden = [pa.field(OP, pa.string(), False), pa.field(SEQ, pa.int64(), False)]
        self.needed = pa.schema([*hidden, *self._shape.schema])
        self.schema = pa.schema([self.needed.field(name) for name in (OP, SEQ, *self.names)])
        self.read = [OP, *self._shape.columns_to_read]
        self.pin = new_pin("export", seq=after, log_version=log.head)

    @contextmanager
    def _relation(self) -> Iterator[Any]:
        changes = changes_sql(self._log, self._files, self.read, None)
        exprs = ", ".join([SEQ, *self._shape.duckdb_exprs()])
        with self.table.duck.transaction() as cursor:
            yield cursor.sql(f"SELECT * FROM (SELECT {exprs} FROM ({changes})) WHERE {OP} <> '{WITHHELD}'")

    def frame(self, spark: SparkSession) -> DataFrame:
        changes = log_scan(spark, self._log, self._files, self.read)
        return changes.selectExpr(SEQ, *self._shape.spark_exprs()).where(f"{OP} <> '{WITHHELD}'")

    def scan(self) -> Scan | None:
        if self.predicate is not None:
            return None
        lane = ReadLane(
            self._log.storage, tuple(self.definition.log_schemas), tuple(self.read), SEQ, self._whole_files()
        )
        return Scan(self._log.scans(self._files), lane)


def new_source(
    table: TableStore,
    *,
    at: At,
    changes: tuple[int, int | None] | None,
    columns: Sequence[str] | None,
    where: str | None,
) -> ExportSource:
    if changes is None:
        return WholeTable(table, table.merge(at), columns, where)
    if at is not None:
        raise Invalid("at and changes exclude each other: changes already has its last seq", table=table.name)
    return ChangeRange(table, changes, columns, where)
