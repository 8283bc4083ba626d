"""What a batch of changes does to an Iceberg table that holds the current rows: copy-on-write.

A data file that holds a changed key is written again without it, together with the new rows; the others stay. So a
batch costs what the files it touches take, which for keys from all over the table is the whole table. In memory are
the keys of the batch and one data file at a time, its texts in dictionaries as far as the file has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline import decode, encode
from strandline.change import OP, SEQ, UPSERT
from strandline.log import same_as_next
from strandline.schema import conform, conform_column
from strandline.sinks.base import Batch
from strandline.sinks.iceberg_types import stored_type
from strandline.storage import Storage

_FILE, _AT = "_file", "_at"


@dataclass
class Rewrite:
    """The data files that leave the table, as pyiceberg has them, and the paths of those that come, in the storage."""

    removed: list[Any] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def rewrite(table: Any, batch: Batch, storage: Storage, folder: str, changes: Sequence[str]) -> Rewrite:
    """Write the files that make `table`, at its newest, what the files of `changes` want; nothing claims them yet."""
    done = Rewrite()
    columns = pa.schema([f.with_type(stored_type(f.type)) for f in table.schema().as_arrow()]).remove_metadata()
    last = _last_changes(storage, changes, batch.key, columns)
    if last.num_rows:
        rows = _rows(table, storage, changes, last, batch.key, columns, done)
        cluster_by = batch.cluster_by if set(batch.cluster_by) <= set(columns.names) else ()
        files = encode.write_files(
            storage, folder, lambda: f"{batch.id}-{uuid4().hex}.parquet", rows, columns, cluster_by=cluster_by
        )
        done.added += [f"{folder}/{file.path}" for file in files]
    return done


def _last_changes(storage: Storage, changes: Sequence[str], key: Sequence[str], columns: pa.Schema) -> pa.Table:
    """The last change of each key: its op, the file that holds it, and which row of that file it is."""
    parts = []
    for number, path in enumerate(changes):
        with decode.open_file(storage, path) as file:
            part = pa.Table.from_batches(decode.batches(file, [*key, OP, SEQ]))
        exact = [conform_column(part.column(name), columns.field(name).type) for name in key]
        parts.append(
            pa.table(
                [*exact, part[OP], part[SEQ], np.full(part.num_rows, number), np.arange(part.num_rows)],
                [*key, OP, SEQ, _FILE, _AT],
            )
        )
    if not parts:
        return pa.table({})
    ordered = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*key, SEQ]])
    return ordered.filter(pc.invert(same_as_next(ordered, key)))


def _rows(
    table: Any,
    storage: Storage,
    changes: Sequence[str],
    last: pa.Table,
    key: Sequence[str],
    columns: pa.Schema,
    done: Rewrite,
) -> Iterator[pa.RecordBatch]:
    """The new rows, then what stays of the files that lose one; `done.removed` grows on the way."""
    upserts = last.filter(pc.equal(last[OP], UPSERT))
    for number, path in enumerate(changes):
        wanted = np.sort(upserts.filter(pc.equal(upserts[_FILE], number))[_AT].to_numpy())
        if len(wanted):
            yield from _picked(storage, path, wanted, columns)
    for task in table.scan(row_filter=_near(last, key)).plan_files():
        if _is_changed(_read(table, task, key), last, key).any():
            rows = _read(table, task, columns.names)
            kept = rows.filter(pa.array(~_is_changed(rows, last, key)))
            done.removed.append(task.file)
            yield from _exact(kept, columns).to_batches()


def _picked(storage: Storage, path: str, wanted: Any, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    start = 0
    with decode.open_file(storage, path) as file:
        inside = [name for name in columns.names if name in file.schema_arrow.names]
        for batch in decode.batches(file, inside):
            first, end = np.searchsorted(wanted, [start, start + batch.num_rows])
            if end > first:
                rows = pa.Table.from_batches([batch.take(pa.array(wanted[first:end] - start))])
                yield from conform(rows, columns).to_batches()
            start += batch.num_rows


def _near(last: pa.Table, key: Sequence[str]) -> Any:
    """What files may hold a changed key, as far as their statistics tell."""
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

    near: Any = AlwaysTrue()
    for name in key:
        if pt.is_integer(last[name].type) or pt.is_string(last[name].type):
            ends = pc.min_max(last[name]).as_py()
            near = And(near, GreaterThanOrEqual(name, ends["min"]), LessThanOrEqual(name, ends["max"]))
    return near


def _read(table: Any, task: Any, names: Sequence[str]) -> pa.Table:
    """Columns of a data file as the table has them now, whoever wrote it; rows that are deleted in it left out."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema().select(*names)
    texts = [f.name for f in schema.as_arrow() if stored_type(f.type) in (pa.string(), pa.binary())]
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue(), dictionary_columns=tuple(texts))
    return scan.to_table([task])


def _is_changed(rows: pa.Table, last: pa.Table, key: Sequence[str]) -> Any:
    """For each row whether its key is among the changed ones."""
    here = pa.table([conform_column(rows[name], last[name].type) for name in key], list(key))
    here = here.append_column(_AT, pa.array(np.arange(rows.num_rows)))
    found = here.join(last.select(list(key)), list(key), join_type="left semi")[_AT].to_numpy()
    mask = np.zeros(rows.num_rows, bool)
    mask[found] = True
    return mask


def _exact(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """The columns that the writer expects; texts stay in their dictionaries."""
    exact = [
        rows[f.name] if pt.is_dictionary(rows[f.name].type) else conform_column(rows[f.name], f.type) for f in columns
    ]
    return pa.table(exact, columns.names)
