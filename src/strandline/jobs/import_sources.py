"""Tables that already exist elsewhere and can be imported: Delta tables, Parquet files and folders of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from strandline.errors import Invalid, NotFound
from strandline.jobs.delta_source import DeltaSource
from strandline.jobs.foreign_tables import DELTA_LOG, FOREIGN_TABLES, is_hidden
from strandline.jobs.foreign_types import convert_rows, leave_out, unify_files
from strandline.jobs.parquet_files import ENDINGS, open_parquet
from strandline.jobs.partitions import Partitions, add_partitions, partition_fields, partitions_of
from strandline.storage.open import Storage, open_storage

_KINDS = {
    ".csv": "a CSV file; load it with strandline ingest",
    ".json": "a JSON file; load it with strandline ingest",
    ".jsonl": "a JSON lines file; load it with strandline ingest",
    ".ndjson": "a JSON lines file; load it with strandline ingest",
    ".orc": "an ORC file",
    ".avro": "an Avro file",
}


class ImportSource(Protocol):
    """A table outside the lake. It can be read more than once."""

    @property
    def uri(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int:
        """The number of rows; 0 when it is not known before reading."""
        ...

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]: ...


def open_source(uri: str, options: Mapping[str, str] | None, skip: Collection[str] = ()) -> ImportSource:
    """The table at a path or `s3://` address, without the columns in `skip`. `Invalid` names a format that cannot be
    imported."""
    is_remote = uri.startswith("s3://")
    path = uri.rstrip("/") if is_remote else os.path.abspath(os.path.expanduser(uri.removeprefix("file://")))
    is_parquet = path.lower().endswith(ENDINGS)
    if is_parquet and (is_remote or os.path.isfile(path)):
        folder, _, name = path.rpartition("/")
        storage = open_storage(folder or "/", options if is_remote else None)
        return ParquetSource.open(path, storage, {name: partitions_of(uri)}, skip)
    known = next((what for ending, what in _KINDS.items() if path.lower().removesuffix(".gz").endswith(ending)), None)
    if known and not (os.path.isdir(path) and not is_remote):
        raise Invalid(f"{path} is {known}; Delta and Parquet tables can be imported", path=path)
    if not is_remote and not os.path.isdir(path):
        if os.path.exists(path):
            raise Invalid(f"{path} is neither a Delta table nor Parquet", path=path)
        raise NotFound(f"{path} does not exist", path=path)
    storage = open_storage(path, options if is_remote else None)
    names = sorted(info.path for info in storage.list(""))
    if any(name.startswith(DELTA_LOG) for name in names):
        return DeltaSource.open(path, storage, names, skip)
    for start, what in FOREIGN_TABLES.items():
        if any(name.startswith(start) for name in names):
            raise Invalid(f"{path} is {what}; Delta and Parquet tables can be imported", path=path)
    files = [name for name in names if name.lower().endswith(ENDINGS) and not is_hidden(name)]
    if not files:
        raise NotFound(f"no Delta table and no Parquet files are at {path}", path=path)
    return ParquetSource.open(path, storage, {name: partitions_of(f"{uri}/{name}") for name in files}, skip)


@dataclass(frozen=True)
class ParquetSource:
    """Parquet files as one table. Folders named `column=value` add that column."""

    uri: str
    storage: Storage
    files: Mapping[str, Partitions]
    schema: pa.Schema
    rows: int
    skip: Collection[str] = ()

    @staticmethod
    def open(uri: str, storage: Storage, files: Mapping[str, Partitions], skip: Collection[str]) -> ParquetSource:
        """The table of these files, each with the values of its folders."""
        schemas, rows = [], 0
        for name in files:
            with open_parquet(storage, name, skip) as file:
                schemas.append(file.schema)
                rows += file.rows
        folders = partition_fields(files.values())
        names = dict.fromkeys(field.name for schema in [*schemas, pa.schema(folders)] for field in schema)
        kept = leave_out(list(names), skip, uri)
        schema = unify_files(schemas, kept, folders, uri)
        return ParquetSource(uri, storage, files, schema, rows, skip)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        row = 0
        for name, partitions in self.files.items():
            with open_parquet(self.storage, name, self.skip) as file:
                inside = [column for column in file.schema.names if column in schema.names]
                for batch in file.batches(inside):
                    rows = add_partitions(pa.Table.from_batches([batch]), partitions, schema, file.uri)
                    yield convert_rows(rows, schema, row)
                    row += batch.num_rows
