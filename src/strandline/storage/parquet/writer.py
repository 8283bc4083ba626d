"""The one Parquet writer: log, baseline and exports go through it, on the driver and inside Spark tasks.

It streams: rows are collected in a row group (`RowGroup`) until the next one would pass a budget; then the group is
written and freed, so memory holds one group whatever the size of the file. Rows of a clustered table come ordered by
its cluster columns, so repeated values lie together. A new file starts after `file_bytes`. Files are published whole by
`Storage.output`, or staged for a later publish.

The values of a file's first group decide which columns get a dictionary. When a later group shows that another column
repeats wide values, it starts a new file: a Parquet writer cannot change its dictionaries.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from strandline.crash import crash_point
from strandline.model.stored_names import stored_schema
from strandline.storage.digest import DigestStream
from strandline.storage.open import StagedFile, Storage
from strandline.storage.parquet.rowgroup import DEFAULT, MIB, Budget, RowGroup
from strandline.storage.parquet.runs import Runs, runs_of
from strandline.storage.parquet.stats import bounded_columns, file_stats
from strandline.storage.snapshot import DataFile

__all__ = ["DEFAULT", "Budget", "batch_rows", "groups", "stage_empty", "stage_files", "write_files"]

_LEVEL = 3
_BATCH_BYTES = 32 * MIB
_PIECE_ROWS, _PIECE_BYTES = 4096, 8 * MIB
_TINY_ROWS, _TINY_BYTES = 1024, MIB


def batch_rows(files: Iterable[DataFile], *, most: int = 50_000) -> int:
    """How many rows of these files make a batch that fits memory and Arrow's string offsets."""
    rows = raw_bytes = 1
    for file in files:
        rows += file.rows
        raw_bytes += file.raw_bytes
    return max(1, min(most, _BATCH_BYTES * rows // raw_bytes))


def write_files(
    storage: Storage,
    folder: str,
    new_name: Callable[[], str],
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    cluster_by: Sequence[str] = (),
    budget: Budget = DEFAULT,
) -> Iterator[DataFile]:
    """Write `batches` below `folder` as one file, or several when they are large; no rows, no file.

    The caller takes each file as it is finished and fills in its partition."""
    source = _GroupWriter(batches, schema, cluster_by, budget)
    while source.has_more():
        name = new_name()
        with storage.output(f"{folder}/{name}") as stream:
            written = source.write(stream)
        crash_point("parquet.file_written")
        yield written.to_data_file(name)


def stage_files(
    storage: Storage,
    new_name: Callable[[], str],
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    cluster_by: Sequence[str] = (),
    budget: Budget = DEFAULT,
) -> Iterator[tuple[DataFile, StagedFile]]:
    """The same, but the files stay invisible until they are published."""
    source = _GroupWriter(batches, schema, cluster_by, budget)
    while source.has_more():
        name = new_name()
        with storage.stage(name) as stage:
            written = source.write(stage.stream)
        crash_point("parquet.file_written")
        yield written.to_data_file(name), stage.staged


def stage_empty(storage: Storage, name: str, schema: pa.Schema) -> tuple[DataFile, StagedFile]:
    """A staged file that has columns and no rows."""
    with storage.stage(name) as stage:
        pq.write_table(schema.empty_table(), stage.stream, compression="zstd", store_schema=False)
        size = stage.stream.tell()
    return DataFile(name, size, {}, 0, json.dumps({"numRecords": 0}), 0), stage.staged


@dataclass(frozen=True)
class _WrittenFile:
    size: int
    raw_bytes: int
    stats_text: str
    crc: int

    def to_data_file(self, name: str) -> DataFile:
        return DataFile(name, self.size, {}, 0, self.stats_text, self.raw_bytes, self.crc)


class _GroupWriter:
    """Writes a stream of rows into files, a group at a time."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, cluster_by: Sequence[str], budget: Budget
    ) -> None:
        # Rows come in the order of the columns, under the table's own names.
        self._schema = stored_schema(schema)
        self._budget = budget
        self._groups = groups(batches, self._schema, cluster_by, budget)
        self._next: RowGroup | None = None
        self._dictionary: set[str] = set()
        self._is_cut = False

    def has_more(self) -> bool:
        self._next = self._next or next(self._groups, None)
        return self._next is not None

    def write(self, stream: pa.NativeFile) -> _WrittenFile:
        """Fill one file."""
        group = self._next
        assert group is not None
        # A file that was cut short for a missing dictionary passes its own dictionaries on: so a column cuts a series
        # of files at most once.
        self._dictionary = group.repeating_paths() | (self._dictionary if self._is_cut else set())
        self._is_cut = False
        raw_bytes = count = 0
        tap = DigestStream(stream)
        output = tap.buffered()
        writer = pq.ParquetWriter(
            output,
            group.schema,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=sorted(self._dictionary) or False,
            # A dictionary is smaller than its group; a limit below that would lead to plain pages.
            dictionary_pagesize_limit=2 * self._budget.group_bytes,
            # A page can end only after so many values: with the usual 1,024, wide values would make huge pages.
            write_batch_size=16 if group.raw_bytes > 1024 * group.rows else 64,
            write_page_index=True,
            write_statistics=bounded_columns(self._schema),
            write_page_checksum=True,
            # Every type of a table is a Parquet type; readers need not know the Arrow types used here.
            store_schema=False,
        )
        try:
            while group is not None:
                if count and group.lacks_dictionary(self._dictionary):
                    self._is_cut = True
                    break
                count += 1
                raw_bytes += group.raw_bytes
                writer.write_table(group.table(), row_group_size=group.rows)
                # Free the group before the next one is collected.
                self._next = group = None
                if output.tell() >= self._budget.file_bytes:
                    break
                self._next = group = next(self._groups, None)
        except BaseException:
            # The stream is given up: the writer must not finish the file when it is collected.
            writer.is_open = False
            raise
        writer.close()
        output.flush()
        stats = file_stats(writer.writer.metadata, self._schema)
        return _WrittenFile(stream.tell(), raw_bytes, json.dumps(stats), tap.crc)


def groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, cluster_by: Sequence[str], budget: Budget
) -> Iterator[RowGroup]:
    """Rows in groups; a group closes before the row that would pass a budget."""
    group = RowGroup(schema)
    for batch in _resize_batches(batches):
        runs = runs_of(batch, cluster_by)
        start = 0
        while start < batch.num_rows:
            count = group.take(batch.slice(start), runs, budget)
            start += count
            runs = _runs_after(runs, count)
            if not count:
                full, group = group, RowGroup(schema)
                yield full
                del full
    if group.rows:
        yield group


def _runs_after(runs: Runs, count: int) -> Runs:
    """The runs of a batch without its first rows."""
    if not runs or not count:
        return runs
    starts = [start for start, _ in runs]
    first = bisect_right(starts, count) - 1
    return [(0, runs[first][1]), *((start - count, key) for start, key in runs[first + 1 :])]


def _resize_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of a handy size: large ones are cut, tiny ones joined."""
    tiny: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_tiny = batch.num_rows < _TINY_ROWS and batch.nbytes < _TINY_BYTES
        if is_tiny and not any(pt.is_dictionary(kind) for kind in batch.schema.types):
            # A slice would keep a larger batch in memory; joining makes a copy.
            is_slice = batch.get_total_buffer_size() > 2 * batch.nbytes
            tiny.append(pa.concat_batches([batch, batch.slice(0, 0)]) if is_slice else batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows < _TINY_ROWS and size < _TINY_BYTES:
                continue
            batch = None
        if tiny:
            yield tiny[0] if len(tiny) == 1 else pa.concat_batches(tiny)
            tiny, rows, size = [], 0, 0
        if batch is not None:
            step = max(1, min(_PIECE_ROWS, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes)))
            yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))
    if tiny:
        yield tiny[0] if len(tiny) == 1 else pa.concat_batches(tiny)
