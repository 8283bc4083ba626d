"""What a batch of changes does to an Iceberg table that holds the current rows: copy-on-write.

A data file that holds a changed key is written again without it, new rows get a file of their own, and the other
files stay. So a batch costs what the files it touches take: for keys from all over the table, the whole table. When
small files have become many they are packed into one. In memory are the keys of the batch and one data file, its
texts in dictionaries where the file has them so.

Nothing here is part of the table yet; after a crash, what was written is never part of it.
"""

from __future__ import annotations

import logging
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

from strandline import decode, encode
from strandline.change import OP, SEQ, UPSERT
from strandline.log import same_as_next
from strandline.schema import conform, conform_column
from strandline.sinks.base import Batch
from strandline.sinks.iceberg_types import stored_type
from strandline.storage import Storage

_FILE, _AT = "_file", "_at"
_SMALL_BYTES, _MANY = 8 << 20, 16


@dataclass(frozen=True)
class Rewrite:
    """The data files that leave the table, as pyiceberg has them, and the paths of those that come, in the storage."""

    removed: list[Any] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def rewrite(table: Any, batch: Batch, storage: Storage, folder: str, changes: Sequence[str]) -> Rewrite:
    """Write the files that make `table`, at its newest, what the files of `changes` want."""
    columns = pa.schema([f.with_type(stored_type(f.type)) for f in table.schema().as_arrow()]).remove_metadata()
    cluster_by = batch.cluster_by if set(batch.cluster_by) <= set(columns.names) else ()
    last = _last_changes(storage, changes, batch.key, columns)
    done = Rewrite()
    if not last.num_rows:
        return done

    def write(rows: Iterable[pa.RecordBatch]) -> None:
        new_name = f"{batch.id}-{{}}.parquet".format
        files = encode.write_files(storage, folder, lambda: new_name(uuid4().hex), rows, columns, cluster_by=cluster_by)
        done.added.extend(f"{folder}/{file.path}" for file in files)

    every = list(table.scan().plan_files())
    near = {task.file.file_path for task in table.scan(row_filter=_near(last, batch.key)).plan_files()}
    small = [task for task in every if task.file.file_size_in_bytes < _SMALL_BYTES]
    packed = small if len(small) >= _MANY else []
    stay = (_kept(table, task, last, batch.key, columns) for task in packed)
    write(chain(_upserts(storage, changes, last, columns), chain.from_iterable(stay)))
    done.removed.extend(task.file for task in packed)
    for task in every:
        is_near = task.file.file_path in near and task not in packed
        if is_near and _is_changed(_read(table, task, batch.key), last, batch.key).any():
            write(_kept(table, task, last, batch.key, columns))
            done.removed.append(task.file)
    return done


def _last_changes(storage: Storage, changes: Sequence[str], key: Sequence[str], columns: pa.Schema) -> pa.Table:
    """The last change of each key: its op, the file that holds it, and which row of that file it is."""
    parts = []
    for number, path in enumerate(changes):
        with decode.open_file(storage, path) as file:
            part = pa.Table.from_batches(decode.batches(file, [*key, OP, SEQ]))
        exact = [conform_column(part.column(name), columns.field(name).type) for name in key]
        places = [np.full(part.num_rows, number), np.arange(part.num_rows)]
        parts.append(pa.table([*exact, part[OP], part[SEQ], *places], [*key, OP, SEQ, _FILE, _AT]))
    if not parts:
        return pa.table({})
    ordered = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*key, SEQ]])
    return ordered.filter(pc.invert(same_as_next(ordered, key)))


def _upserts(storage: Storage, changes: Sequence[str], last: pa.Table, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that are new or replace one."""
    last = last.filter(pc.equal(last[OP], UPSERT))
    for number, path in enumerate(changes):
        wanted = np.sort(last.filter(pc.equal(last[_FILE], number))[_AT].to_numpy())
        start = 0
        with decode.open_file(storage, path) as file:
            inside = [name for name in columns.names if name in file.schema_arrow.names]
            for batch in decode.batches(file, inside) if len(wanted) else ():
                first, end = np.searchsorted(wanted, [start, start + batch.num_rows])
                rows = batch.take(pa.array(wanted[first:end] - start))
                yield from conform(pa.Table.from_batches([rows]), columns).to_batches()
                start += batch.num_rows


def _kept(table: Any, task: Any, last: pa.Table, key: Sequence[str], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a data file that no change touches, in the columns that the writer expects."""
    rows = _read(table, task, columns.names)
    rows = rows.filter(pa.array(~_is_changed(rows, last, key)))
    exact = [
        rows[f.name] if pt.is_dictionary(rows[f.name].type) else conform_column(rows[f.name], f.type) for f in columns
    ]
    yield from pa.table(exact, columns.names).to_batches()


def _near(last: pa.Table, key: Sequence[str]) -> Any:
    """Which rows may have a changed key, as far as the statistics of files can tell."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

    near: Any = AlwaysTrue()
    for name in key:
        if pt.is_integer(last[name].type) or pt.is_string(last[name].type):
            ends = pc.min_max(last[name]).as_py()
            near = And(near, GreaterThanOrEqual(name, ends["min"]), LessThanOrEqual(name, ends["max"]))
    return near


def _read(table: Any, task: Any, names: Sequence[str]) -> pa.Table:
    """Columns of a data file as the table has them now, whoever wrote it; rows that are deleted in it are left out."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    logging.getLogger("pyiceberg.io.pyarrow").addFilter(_is_news)
    with table.io.new_input(task.file.file_path).open() as stream:
        coded = decode._coded_columns(pq.read_metadata(stream))
    schema = table.schema().select(*names)
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue(), dictionary_columns=tuple(coded)).to_table([task])


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Iceberg does not have a dictionary type")


def _is_changed(rows: pa.Table, last: pa.Table, key: Sequence[str]) -> Any:
    """For each row whether its key is among the changed ones."""
    here = pa.table([conform_column(rows[name], last[name].type) for name in key], list(key))
    here = here.append_column(_AT, pa.array(np.arange(rows.num_rows)))
    found = here.join(last.select(list(key)), list(key), join_type="left semi")[_AT].to_numpy()
    changed = np.zeros(rows.num_rows, bool)
    changed[found] = True
    return changed
