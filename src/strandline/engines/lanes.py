"""Lanes: functions that run inside Spark tasks, from Arrow batches to Arrow batches, picklable and free of Spark.

A lane that writes is the last operator of its job. It returns a receipt for every file and for every failure: an
exception would reach the driver as text only. When Spark runs a task twice, no commit claims the second file.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Corrupt, Internal, StrandlineError, Unavailable
from strandline.model.change import VNODE
from strandline.model.stored_names import stored_name
from strandline.model.types import conform, conform_batches, storage_schema, storage_type
from strandline.storage import digest
from strandline.storage.open import StagedFile, Storage
from strandline.storage.parquet import reader, writer
from strandline.storage.snapshot import DataFile

RECEIPT = (
    "path string, size long, raw_bytes long, crc long, stats string, partition string, staged binary, error binary,"
    " counts string"
)
_RECEIPT = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("crc", pa.int64()),
        ("stats", pa.string()),
        ("partition", pa.string()),
        ("staged", pa.binary()),
        ("error", pa.binary()),
        ("counts", pa.string()),
    ]
)


def receipt(
    file: DataFile | None = None,
    *,
    staged: StagedFile | None = None,
    error: StrandlineError | None = None,
    counts: str | None = None,
) -> pa.RecordBatch:
    row: dict[str, Any] = {name: pickle.dumps(it) for name, it in (("staged", staged), ("error", error)) if it}
    row["counts"] = counts
    if file is not None:
        row |= {
            "path": file.path,
            "size": file.size,
            "raw_bytes": file.raw_bytes,
            "crc": file.crc,
            "stats": file.stats_text,
            "partition": file.partition.get(VNODE),
        }
    return pa.RecordBatch.from_pylist([row], schema=_RECEIPT)


def files_of(receipts: Iterable[Any]) -> tuple[list[DataFile], StrandlineError | None]:
    """The files that lanes wrote, and the first failure among the receipts (dicts or Spark rows)."""
    files, failure = [], None
    for row in receipts:
        if row["error"] is not None:
            failure = failure or pickle.loads(row["error"])
        elif row["path"] is not None:
            partition = {} if row["partition"] is None else {VNODE: row["partition"]}
            files.append(DataFile(row["path"], row["size"], partition, 0, row["stats"], row["raw_bytes"], row["crc"]))
    return files, failure


def staged_of(receipts: Iterable[Any]) -> tuple[list[DataFile], list[StagedFile], StrandlineError | None]:
    """The files that lanes wrote, their staged files, and the first failure."""
    rows = list(receipts)
    files, failure = files_of(rows)
    return files, [pickle.loads(row["staged"]) for row in rows if row["staged"] is not None], failure


@contextmanager
def raised_as_ours() -> Iterator[None]:
    """Raise the errors of a block as errors of ours."""
    try:
        yield
    except (StrandlineError, GeneratorExit):
        raise
    except OSError as error:
        raise Unavailable(f"a task could not read or write: {error}") from error
    except Exception as error:
        raise Internal(f"a task failed: {type(error).__name__}: {error}") from error


def report_failures(lane: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The receipts of a lane; a failure is the last one."""
    try:
        with raised_as_ours():
            yield from lane
    except StrandlineError as error:
        yield receipt(error=error)


@dataclass(frozen=True)
class ExportLane:
    """Stage rows that arrive clustered as files of an export, invisible until they are published."""

    storage: Storage
    id: str
    schema: pa.Schema
    cluster_by: Sequence[str]

    def new_name(self) -> str:
        return f"{self.id}-{uuid4().hex}.parquet"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.write(conform_batches(batches, self.schema))

    def write(self, exact: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The receipts for rows that already have the columns of `schema`."""
        return report_failures(receipt(file, staged=staged) for file, staged in self.stage(exact))

    def stage(self, exact: Iterator[pa.RecordBatch]) -> Iterator[tuple[DataFile, StagedFile]]:
        """The files themselves, for the driver; failures are raised."""
        return writer.stage_files(self.storage, self.new_name, exact, self.schema, cluster_by=self.cluster_by)


@dataclass(frozen=True)
class ReadLane:
    """Read Parquet files through the storage, for stores that Spark has no client for.

    Input rows (`INPUT`) name a file and the number of its rows, or the column `inside` with the number of each row and
    the range of those to read. Output rows are its `columns`, cast to the newest schema, and the number under the name
    `number_as`. Files named in `files` are compared with their digests first."""

    INPUT = "path string, schema_id int, number long, inside string, after long, upto long"

    storage: Storage
    schemas: tuple[pa.Schema, ...]
    columns: tuple[str, ...]
    number_as: str | None
    files: Mapping[str, DataFile] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = storage_schema(self._wanted_schema())
        for part, numbers in self._read_parts(batches, is_coded=False):
            table = conform(pa.Table.from_batches([part]), wanted)
            if self.number_as:
                table = table.append_column(self.number_as, numbers)
            shaped = table.combine_chunks().to_batches()
            yield shaped[0] if shaped else pa.RecordBatch.from_pylist([], schema=table.schema)

    def read_coded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows in the types of their files; texts stay in the dictionaries of their files."""
        wanted = self._wanted_schema()
        for part, numbers in self._read_parts(batches, is_coded=True):
            missing = [field for field in wanted if field.name not in part.schema.names]
            columns = [*part.columns, *(pa.nulls(part.num_rows, storage_type(field.type)) for field in missing)]
            names = [*part.schema.names, *(field.name for field in missing)]
            if self.number_as:
                columns.append(numbers)
                names.append(self.number_as)
            yield pa.record_batch(columns, names)

    def _wanted_schema(self) -> pa.Schema:
        return pa.schema([self.schemas[-1].field(name) for name in self.columns])

    def _read_parts(
        self, batches: Iterator[pa.RecordBatch], *, is_coded: bool
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """The rows of the files with the wanted columns that they have, and the numbers of the rows."""
        for batch in batches:
            for row in batch.to_pylist():
                columns = self.schemas[row["schema_id"]]
                inside = {stored_name(columns.field(name)): name for name in self.columns if name in columns.names}
                if row["path"] in self.files:
                    digest.check(self.storage, [(row["path"], self.files[row["path"]])])
                try:
                    with reader.open_file(self.storage, row["path"], is_coded=is_coded) as file:
                        read = reader.coded_batches if is_coded else reader.batches
                        own = [row["inside"]] if row.get("inside") else []
                        for part in read(file, [*inside, *own]):
                            part, numbers = _take_numbers(part, row)
                            names = [inside[name] for name in part.schema.names]
                            yield part if names == part.schema.names else part.rename_columns(names), numbers
                except FileNotFoundError as error:
                    raise Corrupt(f"file {self.storage.url(row['path'])} is missing", path=row["path"]) from error


@dataclass(frozen=True)
class CheckLane:
    """Compare files with their digests before a job reads them. Input rows name a file (`path`); output rows name the
    damaged ones."""

    storage: Storage
    files: Mapping[str, DataFile]
    columns: Sequence[str] | None

    OUTPUT = "path string, fault string, error binary"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([("path", pa.string()), ("fault", pa.string()), ("error", pa.binary())])
        for path in (path for batch in batches for path in batch.column("path").to_pylist()):
            row: dict[str, Any] = {"path": path}
            try:
                row["fault"] = digest.find_fault(self.storage, path, self.files[path], self.columns)
            except StrandlineError as error:
                row["error"] = pickle.dumps(error)
            if row.get("fault") or "error" in row:
                yield pa.RecordBatch.from_pylist([row], schema=schema)


def _take_numbers(part: pa.RecordBatch, row: Mapping[str, Any]) -> tuple[pa.RecordBatch, pa.Array]:
    """Rows of a file, without the column that holds their numbers, and the numbers. Rows outside of the range to read
    are left out."""
    if row.get("inside") is None:
        return part, pa.array([row["number"]] * part.num_rows, pa.int64())
    if row["after"] is not None:
        numbers = part.column(row["inside"])
        part = part.filter(pc.and_(pc.greater(numbers, row["after"]), pc.less_equal(numbers, row["upto"])))
    numbers = part.column(row["inside"])
    return part.select([name for name in part.schema.names if name != row["inside"]]), numbers
