"""The one Parquet writer: log, baseline and exports go through it, on the driver and inside Spark tasks.

It streams: rows are gathered into a row group until the next one would pass a budget, then the group is written
and let go, so that memory holds one group whatever the size of the file. A new file starts after `file_bytes`.
Files are published whole by `Storage.output`; what is returned describes them for the commit that claims them.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from strandline.schema import is_json
from strandline.storage import Storage
from strandline.storage.snapshot import DataFile

MIB = 1 << 20
_DICTIONARY_FROM_BYTES = 128 << 10
_STATS_COLUMNS = 32
_STATS_CHARS = 64


@dataclass(frozen=True)
class Budget:
    """When a row group and a file close."""

    group_rows: int = 50_000
    group_bytes: int = 64 * MIB
    file_bytes: int = 128 * MIB
    dictionary_bytes: int = 16 * MIB


DEFAULT = Budget()


def batch_rows(files: Iterable[DataFile], *, most: int = 50_000, batch_bytes: int = 32 * MIB) -> int:
    """How many rows of these files make a batch that memory and Arrow's string offsets bear."""
    rows = raw_bytes = 1
    for file in files:
        rows += file.rows
        raw_bytes += file.raw_bytes
    return max(1, min(most, batch_bytes * rows // raw_bytes))


def write_files(
    storage: Storage,
    folder: str,
    new_name: Callable[[], str],
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    budget: Budget = DEFAULT,
) -> Iterator[DataFile]:
    """Write `batches` below `folder` as one file, or several when they are large; no rows, no file.

    The caller takes each file as it is finished and fills in its partition."""
    groups = _groups(batches, budget)
    group = next(groups, None)
    while group is not None:
        name = new_name()
        path = f"{folder}/{name}"
        raw_bytes = 0
        with storage.output(path) as stream:
            writer = pq.ParquetWriter(
                stream,
                schema,
                compression="zstd",
                # A dictionary costs more than it saves in a few rows.
                use_dictionary=group.nbytes >= _DICTIONARY_FROM_BYTES,
                dictionary_pagesize_limit=budget.dictionary_bytes,
                write_page_index=True,
            )
            try:
                while group is not None:
                    raw_bytes += group.nbytes
                    writer.write_table(group, row_group_size=group.num_rows)
                    group = next(groups, None)
                    if stream.tell() >= budget.file_bytes:
                        break
            except BaseException:
                # The stream is given up; the writer must not try to end its file when it is let go.
                writer.is_open = False
                raise
            writer.close()
            size = stream.tell()
        yield DataFile(name, size, {}, 0, json.dumps(_stats(writer.writer.metadata, schema)), raw_bytes)


def _groups(batches: Iterable[pa.RecordBatch], budget: Budget) -> Iterator[pa.Table]:
    """Rows in tables that each fit a group: one closes before the row that would pass a budget."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows + batch.num_rows <= budget.group_rows and size + batch.nbytes <= budget.group_bytes:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            continue
        ends = np.cumsum(_row_bytes(batch))
        start = 0
        while start < batch.num_rows:
            done = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, done + budget.group_bytes - size, side="right")) - start
            count = min(fitting, budget.group_rows - rows, batch.num_rows - start)
            if count < 1 and held:
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
                continue
            # A row that fits no group is a group of its own.
            count = max(1, count)
            held.append(batch.slice(start, count))
            rows += count
            size += int(ends[start + count - 1]) - done
            start += count
    if rows:
        yield pa.Table.from_batches(held)


def _row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """About how many bytes each row takes; exact for text and binary, where rows differ most."""
    count = batch.num_rows
    sizes = np.ones(count, np.int64)
    for column in batch.columns:
        plain = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
        if pt.is_string(plain.type) or pt.is_binary(plain.type):
            sizes += pc.fill_null(pc.binary_length(plain), 0).to_numpy(zero_copy_only=False)
        elif count:
            sizes += plain.nbytes // count
    return sizes


def _stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Row count, minima, maxima and null counts, as Delta keeps them in an add action."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    wanted = {f.name for f in list(schema)[:_STATS_COLUMNS] if not pt.is_nested(f.type) and not is_json(f.type)}
    leaves = [
        (index, name) for index in range(metadata.num_columns) if (name := metadata.schema.column(index).path) in wanted
    ]
    for group in range(metadata.num_row_groups):
        chunks = metadata.row_group(group)
        for index, name in leaves:
            stats = chunks.column(index).statistics
            if stats is None:
                unknown.add(name)
                continue
            if stats.has_null_count:
                nulls[name] = nulls.get(name, 0) + stats.null_count
            if stats.has_min_max:
                try:
                    low, high = stats.min, stats.max
                except (ValueError, OverflowError):
                    # A time outside the years that Python knows.
                    unknown.add(name)
                    continue
                lows[name] = min(lows.get(name, low), low)
                highs[name] = max(highs.get(name, high), high)
            elif stats.null_count != chunks.num_rows:
                unknown.add(name)
    low_texts = {n: v for n in lows if n not in unknown and (v := _low(lows[n], schema.field(n).type)) is not None}
    high_texts = {n: v for n in highs if n not in unknown and (v := _high(highs[n], schema.field(n).type)) is not None}
    return {
        "numRecords": metadata.num_rows,
        "minValues": low_texts,
        "maxValues": high_texts,
        "nullCount": {n: c for n, c in nulls.items() if n not in unknown},
    }


def _low(value: Any, kind: pa.DataType) -> Any:
    return value[:_STATS_CHARS] if pt.is_string(kind) else _bound(value, kind)


def _high(value: Any, kind: pa.DataType) -> Any:
    """A bound from above: a long string has none that is short, so it is left out."""
    if pt.is_string(kind):
        return value if len(value) <= _STATS_CHARS else None
    return _bound(value, kind)


def _bound(value: Any, kind: pa.DataType) -> Any:
    if pt.is_binary(kind) or pt.is_boolean(kind) or pt.is_decimal(kind):
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if pt.is_timestamp(kind):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if kind.tz else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    return value
