"""The one Parquet writer: log, baseline and exports go through it, on the driver and inside Spark tasks.

It streams: rows are gathered into a row group (`Group`) until the next one would pass a budget, then the group is
written and let go, so that memory holds one group whatever the size of the file. Rows of a clustered table come
ordered by its cluster columns, so that what repeats lies together. A new file starts after `file_bytes`. Files are
published whole by `Storage.output`, or staged for whoever publishes them; what is returned describes them.

Which columns get a dictionary is decided by the first group of a file, from its values. A later group that shows a
column to repeat after all, and widely, starts a new file: a Parquet writer cannot change its mind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.group import DEFAULT, MIB, Budget, Group
from strandline.stats import file_stats
from strandline.storage import Staged, Storage
from strandline.storage.snapshot import DataFile

__all__ = ["DEFAULT", "Budget", "batch_rows", "groups", "stage_empty", "stage_files", "write_files"]

_PAGE_BYTES = MIB
_LEVEL = 3


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
    cluster_by: Sequence[str] = (),
    budget: Budget = DEFAULT,
) -> Iterator[DataFile]:
    """Write `batches` below `folder` as one file, or several when they are large; no rows, no file.

    The caller takes each file as it is finished and fills in its partition."""
    source = _Source(batches, schema, cluster_by, budget)
    while source.has_more():
        name = new_name()
        with storage.output(f"{folder}/{name}") as stream:
            written = source.write(stream)
        yield written.described(name)


def stage_files(
    storage: Storage,
    new_name: Callable[[], str],
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    cluster_by: Sequence[str] = (),
    budget: Budget = DEFAULT,
) -> Iterator[tuple[DataFile, Staged]]:
    """The same, but the files stay invisible until someone publishes them."""
    source = _Source(batches, schema, cluster_by, budget)
    while source.has_more():
        name = new_name()
        with storage.stage(name) as stage:
            written = source.write(stage.stream)
        yield written.described(name), stage.staged


def stage_empty(storage: Storage, name: str, schema: pa.Schema) -> tuple[DataFile, Staged]:
    """A staged file that has columns and no rows."""
    with storage.stage(name) as stage:
        pq.write_table(schema.empty_table(), stage.stream, compression="zstd", store_schema=False)
        size = stage.stream.tell()
    return DataFile(name, size, {}, 0, json.dumps({"numRecords": 0}), 0), stage.staged


@dataclass(frozen=True)
class _Written:
    size: int
    raw_bytes: int
    stats_text: str

    def described(self, name: str) -> DataFile:
        return DataFile(name, self.size, {}, 0, self.stats_text, self.raw_bytes)


class _Source:
    """Rows on their way into files, a group at a time."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, cluster_by: Sequence[str], budget: Budget
    ) -> None:
        self._schema = schema
        self._budget = budget
        self._groups = groups(batches, schema, cluster_by, budget)
        self._next: Group | None = None
        self._dictionary: set[str] = set()

    def has_more(self) -> bool:
        self._next = self._next or next(self._groups, None)
        return self._next is not None

    def write(self, stream: pa.NativeFile) -> _Written:
        """Fill one file."""
        group = self._next
        assert group is not None
        # What repeated once may do so again; with the union a file is cut short at most once a column.
        self._dictionary |= group.repeating()
        raw_bytes = count = 0
        writer = pq.ParquetWriter(
            stream,
            group.schema,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=sorted(self._dictionary) or False,
            # A dictionary holds less than its group; a limit below that would end in plain pages.
            dictionary_pagesize_limit=2 * self._budget.group_bytes,
            # A page is cut after that many values, so wide ones go in few at a time.
            write_batch_size=max(1, min(1024, _PAGE_BYTES // max(1, group.widest_bytes(self._dictionary)))),
            write_page_index=True,
            write_page_checksum=True,
            # Every type that a table holds is a Parquet type; how this writer held the rows is no reader's concern.
            store_schema=False,
        )
        try:
            while group is not None and (not count or self._suits(group)):
                count += 1
                raw_bytes += group.raw_bytes
                writer.write_table(group.table(), row_group_size=group.rows)
                # Let go of it before the next one is gathered.
                self._next = group = None
                if stream.tell() >= self._budget.file_bytes:
                    break
                self._next = group = next(self._groups, None)
        except BaseException:
            # The stream is given up; the writer must not try to end its file when it is let go.
            writer.is_open = False
            raise
        writer.close()
        stats = file_stats(writer.writer.metadata, self._schema)
        return _Written(stream.tell(), raw_bytes, json.dumps(stats))

    def _suits(self, group: Group) -> bool:
        """Whether a file that is under way has a dictionary wherever this group needs one."""
        least = max(MIB, group.encoded_bytes // 8)
        return not any(n > least for path, n in group.saved_bytes().items() if path not in self._dictionary)


def groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, cluster_by: Sequence[str], budget: Budget
) -> Iterator[Group]:
    """Rows in groups: one closes before the row that would pass a budget."""
    group = Group(schema, cluster_by)
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            count = group.take(batch.slice(start), budget)
            start += count
            if not count:
                full, group = group, Group(schema, cluster_by)
                yield full
                del full
    if group.rows:
        yield group
