"""Apply a batch of changes to a destination that holds the current rows: copy-on-write.

A data file with a changed key is written again, with the new rows in place of the old ones; rows with new keys go to a
file of their own; the other files stay. Files are ordered by the key (or by the table's cluster columns), so that their
bounds tell which files may hold a key. The cost of a batch is that of the files it touches: for scattered keys the
whole table. Many small files are packed into one.

Memory holds the keys of the batch and of one data file, and the rows of a small batch and of one data file. The rows of
a large batch are not put in place: they stream into files of their own.

The files written here are not part of the table before a commit; after a crash they never are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.model.change import OP, SEQ, UPSERT
from strandline.model.keys import same_as_next
from strandline.model.types import conform, conform_column
from strandline.sinks.contract import Batch
from strandline.storage.open import Storage
from strandline.storage.parquet import reader, writer
from strandline.storage.snapshot import DataFile

CHANGED_BELOW = "changes"
"""The folder of the changes that a batch applies; not part of the table."""
_FILE, _AT, _NUMBER = "_sl_file", "_sl_at", "_sl_number"
_SMALL_BYTES, _MANY = 1 << 20, 16
_FILES, _LEAST_BYTES = 64, 4 << 20
_PLACED_BYTES = 32 << 20  # of a batch, or of a data file, whose rows are put in place
Places = npt.NDArray[np.int64]


def budget_for(size: int) -> writer.Budget:
    """When a file of a mirror of so many bytes closes. A changed row costs a file: a small mirror has small files."""
    most = writer.DEFAULT.file_bytes
    return replace(writer.DEFAULT, file_bytes=min(most, max(_LEAST_BYTES, size // _FILES)))


class OldFile(Protocol):
    """A data file of the destination, written by a sink or by others."""

    @property
    def size(self) -> int: ...

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Values between which all values of a column lie; None for an unknown bound."""
        ...

    def batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Its rows with these columns."""
        ...


@dataclass(frozen=True)
class NewFiles:
    """Where new data files go, and their columns. Rows are in the order of the cluster columns, or of the key."""

    storage: Storage
    folder: str
    prefix: str
    columns: pa.Schema
    cluster_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    budget: writer.Budget = writer.DEFAULT

    @property
    def order(self) -> tuple[str, ...]:
        return self.cluster_by or self.key

    def write(self, rows: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
        names = iter(lambda: f"{self.prefix}-{uuid4().hex}.parquet", "")
        for file in writer.write_files(
            self.storage,
            self.folder,
            names.__next__,
            rows,
            self.columns,
            cluster_by=self.cluster_by,
            budget=self.budget,
        ):
            yield DataFile(f"{self.folder}/{file.path}", file.size, {}, 0, file.stats_text, file.raw_bytes, file.crc)


@dataclass(frozen=True)
class Rewrite:
    """The data files that leave the destination, and the new ones, with their paths in the storage."""

    removed: list[Any] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)


def rewrite(old: Sequence[OldFile], new: NewFiles, batch: Batch, changes: Sequence[str]) -> Rewrite:
    """Write the data files that the changes in the files of `changes`, and the expiry of rows, make necessary."""
    done = Rewrite()
    new = replace(new, budget=budget_for(sum(file.size for file in old)))
    changed = _Changes.read(new, batch, changes)
    if batch.is_first:
        done.added.extend(new.write(changed.upserted_rows()))
        done.removed.extend(old)
        return done
    touched = [each for file in old if (each := _look_into(file, batch, changed)) is not None]
    small = [file for file in old if file.size < _SMALL_BYTES]
    packed = small if len(small) >= _MANY else []
    is_packed = {id(file) for file in packed}
    for each in touched:
        if id(each.file) not in is_packed:
            done.added.extend(new.write(each.new_rows(changed, new)))
            done.removed.append(each.file)
    looked = {id(each.file): each for each in touched}
    joined = [looked.get(id(file)) or _Touched.untouched(file) for file in packed]
    rest = chain(changed.upserted_rows(), *(each.kept_rows(new.columns) for each in joined))
    done.added.extend(new.write(_sort_rows(rest, new) if changed.is_placed else rest))
    done.removed.extend(packed)
    return done


class _Changes:
    """The last change of each key, in the order of the keys. The rows of a small batch are in memory."""

    def __init__(self, new: NewFiles, key: Sequence[str], last: pa.Table, paths: Sequence[str], is_small: bool) -> None:
        self.columns = new.columns
        self._storage = new.storage
        self._paths = paths
        self.key = list(key)
        self.last = last
        self.is_placed = is_small
        self._upserts = pc.equal(last[OP], UPSERT) if last.num_rows else None
        self._firsts = _comparable_values(last[self.key[0]]) if last.num_rows else None
        self._placed = np.zeros(last.num_rows, bool)
        self._rows = pa.Table.from_batches(self._read_rows(), self.columns) if is_small and last.num_rows else None

    @classmethod
    def read(cls, new: NewFiles, batch: Batch, paths: Sequence[str]) -> _Changes:
        parts, size = [], 0
        for number, path in enumerate(paths):
            with reader.open_file(new.storage, path) as file:
                size += sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))
                part = pa.Table.from_batches(
                    reader.batches(file, [*batch.key, OP, SEQ]),
                    pa.schema([file.schema_arrow.field(name) for name in [*batch.key, OP, SEQ]]),
                )
            exact = [conform_column(part.column(name), new.columns.field(name).type) for name in batch.key]
            places = [np.full(part.num_rows, number), np.arange(part.num_rows)]
            parts.append(pa.table([*exact, part[OP], part[SEQ], *places], [*batch.key, OP, SEQ, _FILE, _AT]))
        if not parts:
            return cls(new, batch.key, pa.table({}), (), True)
        ordered = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*batch.key, SEQ]])
        last = ordered.filter(pc.invert(same_as_next(ordered, batch.key)))
        return cls(new, batch.key, last, paths, size <= _PLACED_BYTES)

    def between(self, low: Any, high: Any) -> pa.Table:
        """The changes whose first key column may lie between two bounds, with their numbers."""
        first, end = 0, self.last.num_rows
        if self._firsts is not None:
            first = 0 if low is None else int(np.searchsorted(self._firsts, low, "left"))
            end = end if high is None else int(np.searchsorted(self._firsts, high, "right"))
        numbers = pa.array(np.arange(first, max(first, end)))
        found = self.last.select(self.key) if self.last.num_rows else self.last
        return found.slice(first, max(0, end - first)).append_column(_NUMBER, numbers)

    def take_rows(self, numbers: Places) -> pa.Table:
        """The new rows of the changes with these numbers, without those in place already; from here on all are."""
        if not len(numbers):
            return self.columns.empty_table()
        assert self._rows is not None and self._upserts is not None
        numbers = np.unique(numbers[~self._placed[numbers]])
        self._placed[numbers] = True
        is_upsert = self._upserts.to_numpy()
        index = np.cumsum(is_upsert) - 1
        return self._rows.take(pa.array(index[numbers[is_upsert[numbers]]]))

    def upserted_rows(self) -> Iterator[pa.RecordBatch]:
        """The new rows that are not in place yet."""
        if not self.last.num_rows:
            return
        if self._rows is not None:
            yield from self.take_rows(np.flatnonzero(~self._placed)).to_batches()
        else:
            yield from self._stream_rows()

    def _read_rows(self) -> Iterator[pa.RecordBatch]:
        """The new rows in the order of their keys."""
        rows = pa.Table.from_batches(self._stream_rows(), self.columns)
        wanted = self.last.filter(self._upserts).select([_FILE, _AT])
        streamed = pc.sort_indices(wanted, [(_FILE, "ascending"), (_AT, "ascending")]).to_numpy()
        back = np.empty(len(streamed), np.int64)
        back[streamed] = np.arange(len(streamed))
        yield from rows.take(pa.array(back)).to_batches()

    def _stream_rows(self) -> Iterator[pa.RecordBatch]:
        """The new rows as they lie in the files of the changes."""
        last, columns = self.last.filter(self._upserts), self.columns
        for number, path in enumerate(self._paths):
            wanted = np.sort(last.filter(pc.equal(last[_FILE], number))[_AT].to_numpy())
            start = 0
            with reader.open_file(self._storage, path) as file:
                inside = [name for name in columns.names if name in file.schema_arrow.names]
                for batch in reader.batches(file, inside) if len(wanted) else ():
                    first, end = np.searchsorted(wanted, [start, start + batch.num_rows])
                    rows = batch.take(pa.array(wanted[first:end] - start))
                    yield from conform(pa.Table.from_batches([rows]), columns).to_batches()
                    start += batch.num_rows


@dataclass(frozen=True)
class _Touched:
    """A data file, the places of its rows that leave it, and the numbers of the changes that replace them."""

    file: OldFile
    leaving: Places
    numbers: Places

    @staticmethod
    def untouched(file: OldFile) -> _Touched:
        return _Touched(file, np.empty(0, np.int64), np.empty(0, np.int64))

    def kept_rows(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        leaving, start = np.sort(self.leaving), 0
        for batch in self.file.batches(columns):
            first, end = np.searchsorted(leaving, [start, start + batch.num_rows])
            stays = np.ones(batch.num_rows, bool)
            stays[leaving[first:end] - start] = False
            yield batch.filter(pa.array(stays)) if end > first else batch
            start += batch.num_rows

    def new_rows(self, changed: _Changes, new: NewFiles) -> Iterable[pa.RecordBatch]:
        """The rows that take the place of the file's: with the new rows, if they fit into memory."""
        kept = self.kept_rows(new.columns)
        if not changed.is_placed or self.file.size > _PLACED_BYTES:
            return kept
        return _sort_rows(chain(kept, changed.take_rows(self.numbers).to_batches()), new)


def _look_into(file: OldFile, batch: Batch, changed: _Changes) -> _Touched | None:
    """The rows of a file that change or expire; None when there are none, by its bounds or by its keys."""
    near = changed.between(*file.bounds(batch.key[0])) if batch.key else pa.table({})
    column, moment = batch.expired or (None, None)
    low = file.bounds(column)[0] if column else None
    may_expire = moment is not None and (low is None or low < moment.as_py())
    if not near.num_rows and not may_expire:
        return None
    names = [*(batch.key if near.num_rows else ()), *([column] if may_expire else ())]
    columns = pa.schema([changed.columns.field(name) for name in dict.fromkeys(names)])
    here = pa.Table.from_batches(file.batches(columns), columns)
    here = here.append_column(_AT, pa.array(np.arange(here.num_rows)))
    leaving = numbers = np.empty(0, np.int64)
    if near.num_rows:
        found = here.select([*batch.key, _AT]).join(near, list(batch.key), join_type="inner")
        leaving, numbers = found[_AT].to_numpy(), found[_NUMBER].to_numpy()
    if may_expire and moment is not None:
        old = pc.fill_null(pc.less(here[column], moment.cast(here[column].type)), False)
        leaving = np.union1d(leaving, here.filter(old)[_AT].to_numpy())
    return _Touched(file, leaving, numbers) if len(leaving) else None


def _sort_rows(rows: Iterable[pa.RecordBatch], new: NewFiles) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(rows, new.columns)
    ordered = table.sort_by([(name, "ascending") for name in new.order]) if new.order else table
    yield from ordered.to_batches()


def _comparable_values(values: pa.ChunkedArray) -> Any:
    """Sorted values that can be compared with bounds; None for types whose bounds are not used."""
    is_usable = pt.is_integer(values.type) or pt.is_string(values.type)
    return values.to_numpy() if is_usable else None
