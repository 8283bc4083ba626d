"""Tables that already exist elsewhere and can be imported: Delta tables, Parquet files and folders of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import Invalid, NotFound
from strandline.model.names import require_utf8_names
from strandline.storage.open import Storage, open_storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_BATCH_ROWS = 16_384
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_FOREIGN = {
    ".hoodie/": "a Hudi table",
    "metadata/": "an Iceberg table",
    "catalog/": "a Strandline lake; open it with --lake",
}
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


def open_source(uri: str, options: Mapping[str, str] | None) -> ImportSource:
    """The table at a path or `s3://` address. `Invalid` names a format that cannot be imported."""
    is_remote = uri.startswith("s3://")
    path = uri.rstrip("/") if is_remote else os.path.abspath(os.path.expanduser(uri.removeprefix("file://")))
    if path.endswith((".parquet", ".pq")) and (is_remote or os.path.isfile(path)):
        folder, _, name = path.rpartition("/")
        return ParquetSource.open(path, open_storage(folder or "/", options if is_remote else None), [name])
    known = next((what for ending, what in _KINDS.items() if path.lower().removesuffix(".gz").endswith(ending)), None)
    if known:
        raise Invalid(f"{path} is {known}; Delta and Parquet tables can be imported", path=path)
    if not is_remote and not os.path.isdir(path):
        if os.path.exists(path):
            raise Invalid(f"{path} is neither a Delta table nor Parquet", path=path)
        raise NotFound(f"{path} does not exist", path=path)
    storage = open_storage(path, options if is_remote else None)
    names = sorted(info.path for info in storage.list(""))
    if any(name.startswith("_delta_log/") for name in names):
        return DeltaSource.open(path, storage)
    for start, what in _FOREIGN.items():
        if any(name.startswith(start) for name in names):
            raise Invalid(f"{path} is {what}; Delta and Parquet tables can be imported", path=path)
    files = [name for name in names if name.endswith((".parquet", ".pq")) and not _is_hidden(name)]
    if not files:
        raise NotFound(f"no Delta table and no Parquet files are at {path}", path=path)
    return ParquetSource.open(path, storage, files)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


@dataclass(frozen=True)
class DeltaSource:
    uri: str
    table: DeltaTable
    schema: pa.Schema
    rows: int = 0

    @staticmethod
    def open(uri: str, storage: Storage) -> DeltaSource:
        # The library loads late: only an import of a Delta table needs it.
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(uri, storage_options=dict(storage.delta_options) or None)
            _check_inside(uri, pa.table(table.get_add_actions()).column("path").to_pylist())
            return DeltaSource(uri, table, pa.schema(table.schema().to_arrow()))
        except DeltaError as error:
            raise Invalid(f"{uri} is not a readable Delta table: {str(error).splitlines()[0]}", path=uri) from error

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        from deltalake.exceptions import DeltaError

        try:
            yield from pa.RecordBatchReader.from_stream(self.table.scan(columns=list(columns) if columns else None))
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise Invalid(f"{self.uri} cannot be read: {str(error).splitlines()[0]}", path=self.uri) from error


def _check_inside(uri: str, paths: Sequence[str]) -> None:
    """Refuse a file outside of the table's folder: a Delta log could name any file that this process may read."""
    for path in paths:
        if path.startswith("/") or "://" in path or ".." in unquote(path).split("/"):
            raise Invalid(
                f"the Delta table {uri} has a file outside of its folder: {path!r}; nothing was imported",
                hint="If the table is a shallow copy of another one, import that one.",
                path=uri,
            )


@dataclass(frozen=True)
class ParquetSource:
    """Parquet files as one table. Folders named `column=value` add that column."""

    uri: str
    storage: Storage
    files: tuple[str, ...]
    schema: pa.Schema
    rows: int

    @staticmethod
    def open(uri: str, storage: Storage, files: Sequence[str]) -> ParquetSource:
        schemas, rows = [], 0
        for name in files:
            with _open_parquet(storage, name) as file:
                schemas.append(file.schema_arrow.remove_metadata())
                rows += file.metadata.num_rows
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise Invalid(f"{uri}: its files have columns of different types: {error}", path=uri) from error
        for name, kind in _partition_types(files).items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, kind))
        return ParquetSource(uri, storage, tuple(files), schema, rows)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for name in self.files:
            with _open_parquet(self.storage, name) as file:
                parts = {k: v for k, v in _partition_values(name).items() if k not in file.schema_arrow.names}
                inside = [c for c in file.schema_arrow.names if columns is None or c in columns]
                for batch in file.iter_batches(_BATCH_ROWS, columns=inside):
                    yield self._add_columns(batch, {k: v for k, v in parts.items() if columns is None or k in columns})

    def _add_columns(self, batch: pa.RecordBatch, parts: Mapping[str, str | None]) -> pa.RecordBatch:
        for name, text in parts.items():
            value = pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
            batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        return batch


def _open_parquet(storage: Storage, name: str) -> pq.ParquetFile:
    try:
        with require_utf8_names():
            return pq.ParquetFile(storage.input(name))
    except FileNotFoundError as error:
        raise NotFound(f"no file {storage.url(name)}", path=storage.url(name)) from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise Invalid(f"{storage.url(name)} is not a Parquet file: {reason}", path=storage.url(name)) from error


def _partition_values(name: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)
    return {key: None if value == _NULL_PARTITION else unquote(value) for key, value in pairs}


def _partition_types(files: Sequence[str]) -> dict[str, pa.DataType]:
    values: dict[str, set[str | None]] = {}
    for name in files:
        for key, value in _partition_values(name).items():
            values.setdefault(key, set()).add(value)
    return {
        key: pa.int64() if all(v is None or v.lstrip("-").isdecimal() for v in found) else pa.string()
        for key, found in values.items()
    }
