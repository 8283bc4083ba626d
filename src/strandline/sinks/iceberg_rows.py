"""Apply a batch of changes to an Iceberg table that holds the current rows: copy-on-write.

A data file with a changed key is rewritten without that key, new rows go to new files, and the other files stay. So the
cost of a batch is that of the files it touches: for scattered keys, the whole table. Many small files are packed into
one. Memory holds the keys of the batch and of one data file, and one row group. A first batch with rows is the whole
table: all files leave, so nothing of an earlier life stays.

The files written here are not part of the table before a commit; after a crash they never are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.change import OP, SEQ, UPSERT
from strandline.model.keys import same_as_next
from strandline.model.types import conform, conform_batches, conform_column
from strandline.sinks.contract import Batch
from strandline.sinks.iceberg_types import stored_type, widens
from strandline.storage.open import Storage
from strandline.storage.parquet import reader, writer

_FILE, _AT = "_sl_file", "_sl_at"
_SMALL_BYTES, _MANY = 8 << 20, 16


@dataclass(frozen=True)
class Rewrite:
    """The data files that leave the table, as pyiceberg's values, and the paths of the new ones in the storage."""

    removed: list[Any] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def rewrite(table: Any, batch: Batch, storage: Storage, folder: str, changes: Sequence[str]) -> Rewrite:
    """Write the new data files of `table`, at its newest version, after the changes in the files of `changes`."""
    columns = pa.schema([f.with_type(stored_type(f.type)) for f in table.schema().as_arrow()]).remove_metadata()
    cluster_by = batch.cluster_by if set(batch.cluster_by) <= set(columns.names) else ()
    last = _last_changes(storage, changes, batch.key, columns)
    done = Rewrite()
    if not last.num_rows:
        return done

    def write(rows: Iterable[pa.RecordBatch]) -> None:
        new_name = f"{batch.id}-{{}}.parquet".format
        files = writer.write_files(storage, folder, lambda: new_name(uuid4().hex), rows, columns, cluster_by=cluster_by)
        done.added.extend(f"{folder}/{file.path}" for file in files)

    tasks = list(table.scan().plan_files())
    if batch.is_first:
        write(_upserted_rows(storage, changes, last, columns))
        done.removed.extend(task.file for task in tasks)
        return done
    every = [_OldFile(table, task, batch.key, columns) for task in tasks]
    near = {task.file.file_path for task in table.scan(row_filter=_key_range(last, batch.key)).plan_files()}
    small = [old for old in every if old.data.file_size_in_bytes < _SMALL_BYTES]
    packed = small if len(small) >= _MANY else []
    write(chain(_upserted_rows(storage, changes, last, columns), *(old.unchanged_rows(last) for old in packed)))
    done.removed.extend(old.data for old in packed)
    for old in every:
        if old.data.file_path in near and old not in packed and old.find_changed(last).any():
            write(old.unchanged_rows(last))
            done.removed.append(old.data)
    return done


def _last_changes(storage: Storage, changes: Sequence[str], key: Sequence[str], columns: pa.Schema) -> pa.Table:
    """The last change of each key: its op, its file and its row number there."""
    parts = []
    for number, path in enumerate(changes):
        with reader.open_file(storage, path) as file:
            part = pa.Table.from_batches(reader.batches(file, [*key, OP, SEQ]))
        exact = [conform_column(part.column(name), columns.field(name).type) for name in key]
        places = [np.full(part.num_rows, number), np.arange(part.num_rows)]
        parts.append(pa.table([*exact, part[OP], part[SEQ], *places], [*key, OP, SEQ, _FILE, _AT]))
    if not parts:
        return pa.table({})
    ordered = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*key, SEQ]])
    return ordered.filter(pc.invert(same_as_next(ordered, key)))


def _upserted_rows(
    storage: Storage, changes: Sequence[str], last: pa.Table, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows to insert or replace."""
    last = last.filter(pc.equal(last[OP], UPSERT))
    for number, path in enumerate(changes):
        wanted = np.sort(last.filter(pc.equal(last[_FILE], number))[_AT].to_numpy())
        start = 0
        with reader.open_file(storage, path) as file:
            inside = [name for name in columns.names if name in file.schema_arrow.names]
            for batch in reader.batches(file, inside) if len(wanted) else ():
                first, end = np.searchsorted(wanted, [start, start + batch.num_rows])
                rows = batch.take(pa.array(wanted[first:end] - start))
                yield from conform(pa.Table.from_batches([rows]), columns).to_batches()
                start += batch.num_rows


def _key_range(last: pa.Table, key: Sequence[str]) -> Any:
    """A filter that finds the files that may hold a changed key, by their statistics."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

    near: Any = AlwaysTrue()
    for name in key:
        if pt.is_integer(last[name].type) or pt.is_string(last[name].type):
            ends = pc.min_max(last[name]).as_py()
            near = And(near, GreaterThanOrEqual(name, ends["min"]), LessThanOrEqual(name, ends["max"]))
    return near


class _OldFile:
    """A data file of the table, written by a sink or by others."""

    def __init__(self, table: Any, task: Any, key: Sequence[str], columns: pa.Schema) -> None:
        self.data = task.file
        self._table = table
        self._key = list(key)
        self._columns = columns
        if task.delete_files:
            raise self._unusable_file("has rows that a delete file hides")

    def find_changed(self, last: pa.Table) -> Any:
        """For each row, whether its key has changed."""
        columns = pa.schema([self._columns.field(name) for name in self._key])
        here = pa.Table.from_batches(self._batches(columns), columns)
        here = here.append_column(_AT, pa.array(np.arange(here.num_rows)))
        found = here.join(last.select(self._key), self._key, join_type="left semi")[_AT].to_numpy()
        is_changed = np.zeros(here.num_rows, bool)
        is_changed[found] = True
        return is_changed

    def unchanged_rows(self, last: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows whose keys have not changed."""
        stays, start = ~self.find_changed(last), 0
        for batch in self._batches(self._columns):
            yield batch.filter(pa.array(stays[start : start + batch.num_rows]))
            start += batch.num_rows

    def _batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Not with pyiceberg's own reader: it reads a null list of structs as an empty list.
        stream = self._table.io.new_input(self.data.file_path).open()
        with pq.ParquetFile(stream, page_checksum_verification=True) as file:
            inside = [name for name in self._known_columns(file.schema_arrow) if name in columns.names]
            yield from conform_batches(reader.batches(file, inside), columns)

    def _known_columns(self, schema: pa.Schema) -> Iterator[str]:
        """The table's columns in the file; `Invalid` when one was renamed or changed its type."""
        names = {column.field_id: column.name for column in self._table.schema().fields}
        numbers = {name: mapped.field_id for mapped in self._table.name_mapping() or () for name in mapped.names}
        for each in schema:
            own = (each.metadata or {}).get(b"PARQUET:field_id")
            name = names.get(int(own) if own else numbers.get(each.name))
            if name is None:
                continue  # dropped
            kind, now = stored_type(each.type), self._columns.field(name).type
            if name != each.name or not (kind == now or widens(kind, now)):
                raise self._unusable_file(f"has the column {each.name!r} ({kind}), which is now {name!r} ({now})")
            yield name

    def _unusable_file(self, why: str) -> Invalid:
        return Invalid(
            f"{self.data.file_path} {why}, so its rows cannot be replaced",
            hint="Write the Iceberg table's files again, e.g. in Spark: CALL system.rewrite_data_files(…)",
            path=self.data.file_path,
        )
