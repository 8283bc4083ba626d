"""The row group being filled: copies of its rows, and one copy of each wide value.

Rows come in Arrow batches that are often far larger than the rows kept of them, so nothing here is a slice of a batch:
a slice would keep the batch in memory. Wide texts that repeat (a 128 KB list of tools on every row of a conversation)
are held once and shared by their rows. So memory is bounded by the group's size in the file, not by its rows' size.

Invariant: a row is counted before it is added, and the counts never pass a budget, unless a group has one row. Rows,
keys, raw bytes and wide texts are counted exactly. The encoded size of narrow and nested columns is estimated a piece
at a time, so a group may hold a little more or less of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.model.types import is_json
from strandline.storage.parquet.runs import Runs, dense_values, stored_values

Sizes = npt.NDArray[np.int64]

MIB = 1 << 20
# A smaller group is kept as it came: no dictionary pays there.
SMALL_BYTES = 128 << 10
# Texts this long on average are worth a lookup among those that the group holds.
_WIDE_BYTES = 256
# The size of a repeated value: its place in the dictionary.
_CODE_BYTES = 2
_SAMPLE_ROWS = 512
_JUDGED_BYTES = 64 << 10
_JUDGED_ROWS = 4096


@dataclass(frozen=True)
class Budget:
    """When a row group and a file close."""

    group_keys: int = 16
    group_rows: int = 50_000
    group_bytes: int = 32 * MIB
    group_raw_bytes: int = 256 * MIB
    file_bytes: int = 128 * MIB


DEFAULT = Budget()


class RowGroup:
    """Rows that are written together. `raw_bytes` is their size without dictionaries, `encoded_bytes` their size when
    each repeated value counts once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [_TextColumn(field) if _is_text(field.type) else _PlainColumn(field) for field in schema]
        self._keys: set[tuple[Any, ...]] = set()
        self.schema = pa.schema([column.field for column in self._columns])
        self.rows = self.raw_bytes = self.encoded_bytes = 0

    def take(self, batch: pa.RecordBatch, runs: Runs, budget: Budget) -> int:
        """Add as many rows of a batch as fit and return their number. A row too large for any group is taken alone.

        `runs` are the cluster keys of the batch; none are counted without cluster columns."""
        if self._is_small(batch, runs, budget):
            for column, values in zip(self._columns, batch.columns, strict=True):
                column.keep(values)
            self._add_counts(batch.num_rows, batch.nbytes, batch.nbytes)
            return int(batch.num_rows)
        # First the quick limits: rows that do not fit anyway would be measured again for the next group.
        rows = min(batch.num_rows, budget.group_rows - self.rows, self._rows_within_keys(runs, budget.group_keys))
        if not rows and self.rows:
            return 0
        batch = batch.slice(0, max(1, rows))
        measured = [column.measure(values) for column, values in zip(self._columns, batch.columns, strict=True)]
        raw: Sizes = sum((each.raw for each in measured), np.zeros(batch.num_rows, np.int64))
        encoded: Sizes = sum((each.encoded for each in measured), np.zeros(batch.num_rows, np.int64))
        fitting = min(
            _count_fitting(raw, budget.group_raw_bytes - self.raw_bytes),
            _count_fitting(encoded, budget.group_bytes - self.encoded_bytes),
        )
        count: int = max(fitting, 0 if self.rows else 1)
        if count:
            for column, each in zip(self._columns, measured, strict=True):
                column.add(each, count)
            self._keys.update(key for start, key in runs if start < count)
            self._add_counts(count, int(raw[:count].sum()), int(encoded[:count].sum()))
        return count

    def _is_small(self, batch: pa.RecordBatch, runs: Runs, budget: Budget) -> bool:
        room = min(SMALL_BYTES, budget.group_bytes, budget.group_raw_bytes) - self.raw_bytes
        return (
            not runs
            and self.rows + batch.num_rows <= budget.group_rows
            # A slice would keep a larger batch in memory.
            and batch.get_total_buffer_size() <= min(room, 2 * batch.nbytes)
        )

    def _add_counts(self, rows: int, raw_bytes: int, encoded_bytes: int) -> None:
        self.rows += rows
        self.raw_bytes += raw_bytes
        self.encoded_bytes += encoded_bytes

    def _rows_within_keys(self, runs: Runs, most: int) -> int:
        """The number of rows before the first one with a cluster key too many."""
        seen = set(self._keys)
        for start, key in runs:
            seen.add(key)
            if len(seen) > most:
                return start
        return sys.maxsize

    def table(self) -> pa.Table:
        return pa.Table.from_arrays([column.build() for column in self._columns], schema=self.schema)

    def coded_table(self) -> pa.Table:
        """The same rows in a form that can be cut and reordered: shared texts are in dictionaries."""
        return pa.table([column.build_coded() for column in self._columns], self.schema.names)

    def repeating_paths(self) -> set[str]:
        """The paths of the Parquet columns for which a dictionary pays."""
        if self.raw_bytes < SMALL_BYTES:
            return set()
        return {path for column in self._columns for path in column.repeating_paths()}

    def lacks_dictionary(self, dictionary: set[str]) -> bool:
        """Whether a file with dictionaries for these paths only would write many repeated values in full."""
        lost = [
            c for c in self._columns if c.raw_bytes - c.encoded_bytes > _JUDGED_BYTES and not c.paths() <= dictionary
        ]
        size = sum(column.raw_bytes - column.encoded_bytes for column in lost)
        return size > max(MIB, self.encoded_bytes // 8) and any(set(c.repeating_paths()) - dictionary for c in lost)


@dataclass(frozen=True)
class _MeasuredValues:
    """Values that may be added, and the bytes that each would add."""

    values: pa.Array
    raw: Sizes
    encoded: Sizes
    entries: pa.Array | None = None
    codes: npt.NDArray[np.int32] | None = None


class _PlainColumn:
    """A column of any type but text, kept as it is."""

    def __init__(self, field: pa.Field) -> None:
        self.field = field
        self._kept: list[pa.Array] = []
        self.raw_bytes = self.encoded_bytes = 0

    def measure(self, values: pa.Array) -> _MeasuredValues:
        raw = row_bytes(values)
        return _MeasuredValues(values, raw, _estimate_encoded(raw, values))

    def add(self, measured: _MeasuredValues, count: int) -> None:
        self.raw_bytes += int(measured.raw[:count].sum())
        self.encoded_bytes += int(measured.encoded[:count].sum())
        self._kept.append(pa.concat_arrays([measured.values.slice(0, count)]))

    def keep(self, values: pa.Array) -> None:
        self.raw_bytes += values.nbytes
        self.encoded_bytes += values.nbytes
        self._kept.append(values)

    def build(self) -> pa.ChunkedArray:
        return pa.chunked_array(self._kept, type=self.field.type)

    build_coded = build

    def paths(self) -> set[str]:
        return {path for path, _ in _leaves(self.field.name, _first_rows(self._kept))}

    def repeating_paths(self) -> Iterator[str]:
        if not pt.is_nested(self.field.type) and _has_saved(self):
            return iter([self.field.name])
        return (path for path, values in _leaves(self.field.name, _first_rows(self._kept)) if _is_repeating(values))


class _TextColumn:
    """A column of texts, bytes or JSON. Wide values are looked up among those of the group."""

    def __init__(self, field: pa.Field) -> None:
        view = pa.binary_view() if pt.is_binary(field.type) else pa.string_view()
        self.field = field.with_type(pa.json_(view) if is_json(field.type) else view)
        self._view = view
        self._plain = pa.binary() if pt.is_binary(field.type) else pa.string()
        self._kept: list[pa.Array | npt.NDArray[np.int32]] = []
        self._codes: dict[bytes, int] = {}
        self._shared_rows = self._shared_bytes = self._held_bytes = 0
        self.raw_bytes = self.encoded_bytes = 0

    def measure(self, values: pa.Array) -> _MeasuredValues:
        if pt.is_dictionary(values.type):
            entries, codes = values.dictionary.cast(pa.binary()), pc.fill_null(values.indices, -1).to_numpy()
            lengths = np.append(row_bytes(entries), 0)[codes]
            return self._measure_entries(values, lengths, entries, codes)
        values = stored_values(values)
        lengths = row_bytes(values)
        is_wide = int(lengths.sum()) >= _WIDE_BYTES * len(values) or int(lengths.max(initial=0)) >= _JUDGED_BYTES
        if not is_wide:
            return _MeasuredValues(values, lengths, _estimate_encoded(lengths, values))
        if self._is_lookup_wasted():
            return _MeasuredValues(values, lengths, lengths)
        build_coded = values.dictionary_encode()
        codes = pc.fill_null(build_coded.indices, -1).to_numpy()
        return self._measure_entries(values, lengths, build_coded.dictionary.cast(pa.binary()), codes)

    def _measure_entries(
        self, values: pa.Array, lengths: Sizes, entries: pa.Array, codes: npt.NDArray[np.int32]
    ) -> _MeasuredValues:
        """An entry that is new to the group counts in full at its first row."""
        first = np.full(len(entries) + 1, -1, np.int64)
        # The last assignment wins: the first row of each entry. Nulls (-1) go to the spare last place.
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        encoded = np.full(len(codes), _CODE_BYTES, np.int64)
        for at, row in enumerate(first[:-1]):
            if row >= 0 and entries[at].as_py() not in self._codes:
                encoded[row] += lengths[row]
        return _MeasuredValues(values, lengths, encoded, entries, codes)

    def _is_lookup_wasted(self) -> bool:
        """Whether wide values of the group differ so often that looking them up does not pay."""
        return self._shared_rows > 1000 and self._held_bytes > 0.9 * self._shared_bytes

    def add(self, measured: _MeasuredValues, count: int) -> None:
        size = int(measured.raw[:count].sum())
        self.raw_bytes += size
        self.encoded_bytes += int(measured.encoded[:count].sum())
        if measured.codes is None or measured.entries is None:
            self._kept.append(pa.concat_arrays([measured.values.slice(0, count)]))
            return
        codes = measured.codes[:count]
        places = np.full(len(measured.entries) + 1, -1, np.int32)
        for at in np.unique(codes[codes >= 0]):
            value = measured.entries[int(at)].as_py()
            place = self._codes.get(value)
            if place is None:
                place = self._codes[value] = len(self._codes)
                self._held_bytes += len(value)
            places[at] = place
        self._kept.append(places[codes])
        self._shared_rows += count
        self._shared_bytes += size

    def keep(self, values: pa.Array) -> None:
        values = dense_values(values)
        self.raw_bytes += values.nbytes
        self.encoded_bytes += values.nbytes
        self._kept.append(values)

    def build(self) -> pa.ChunkedArray:
        words, buffers = self._shared_views()
        chunks = [
            kept.cast(self._view)
            if isinstance(kept, pa.Array)
            else _build_views(self._view, words[kept], buffers, kept >= 0)
            for kept in self._kept
        ]
        if is_json(self.field.type):
            chunks = [pa.ExtensionArray.from_storage(self.field.type, chunk) for chunk in chunks]
        return pa.chunked_array(chunks, type=self.field.type)

    def build_coded(self) -> pa.ChunkedArray:
        if not self._codes:
            # Looked-up values without entries are all null.
            plain = (kept if isinstance(kept, pa.Array) else pa.nulls(len(kept), self._plain) for kept in self._kept)
            return pa.chunked_array(plain, type=self._plain)
        held = pa.array(list(self._codes), pa.binary()).cast(self._plain)
        chunks = [
            kept.dictionary_encode()
            if isinstance(kept, pa.Array)
            else pa.DictionaryArray.from_arrays(pa.array(kept, mask=kept < 0), held)
            for kept in self._kept
        ]
        return pa.chunked_array(chunks).unify_dictionaries()

    def _shared_views(self) -> tuple[npt.NDArray[np.int32], list[pa.Buffer]]:
        """The shared values as Arrow views, and the buffers with their bytes; the last view is null."""
        _, words, *buffers = pa.array([*self._codes, None], pa.binary_view()).buffers()
        return np.frombuffer(words, np.int32).reshape(-1, 4), [buffer or pa.py_buffer(b"") for buffer in buffers]

    def paths(self) -> set[str]:
        return {self.field.name}

    def repeating_paths(self) -> Iterator[str]:
        plain = [kept for kept in self._kept if isinstance(kept, pa.Array)]
        saved = self._shared_bytes - self._held_bytes - _CODE_BYTES * self._shared_rows
        shared_pays = saved > self._shared_bytes // 5
        if (
            shared_pays
            or _has_saved(self)
            or (self._shared_bytes * 2 < self.raw_bytes and plain and _is_repeating(_first_rows(plain)))
        ):
            yield self.field.name


def row_bytes(values: pa.Array) -> Sizes:
    """The size of each value without a dictionary."""
    values = stored_values(values)
    kind = values.type
    if pt.is_string(kind) or pt.is_binary(kind):
        # Many batches have few rows: this is much quicker than Arrow's own lengths.
        offsets = np.frombuffer(values.buffers()[1] or b"\0\0\0\0", np.int32)
        return np.diff(offsets[values.offset : values.offset + len(values) + 1]).astype(np.int64)
    if pt.is_struct(kind):
        inner = (row_bytes(values.field(at)) for at in range(kind.num_fields))
        return sum(inner, np.zeros(len(values), np.int64))
    if pt.is_list(kind) or pt.is_map(kind):
        inside = [values.keys, values.items] if pt.is_map(kind) else [values.values]
        ends = np.concatenate([[0], np.cumsum(sum((row_bytes(part) for part in inside), np.int64(0)))])
        offsets = values.offsets.to_numpy()
        return np.asarray(4 + ends[offsets[1:]] - ends[offsets[:-1]], np.int64)
    return np.full(len(values), max(1, kind.bit_width // 8), np.int64)


def _count_fitting(sizes: Sizes, room: int) -> int:
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))


def _estimate_encoded(raw: Sizes, values: pa.Array) -> Sizes:
    """The size of each value in a column with a dictionary. Few bytes count as they are; more are estimated from the
    first rows, and many from all rows."""
    size = int(raw.sum())
    if size < _JUDGED_BYTES:
        return raw
    plain = held = 0
    for _, leaf in _leaves("", values if size > MIB else values.slice(0, _SAMPLE_ROWS)):
        size, distinct = _measure_bytes(leaf)
        plain += size
        held += min(size, distinct + _CODE_BYTES * len(leaf))
    return raw if held >= plain else np.ceil(raw * (held / plain)).astype(np.int64)


def _measure_bytes(leaf: pa.Array) -> tuple[int, int]:
    """The bytes of a column's values, and of its distinct values."""
    if not len(leaf) or pt.is_boolean(leaf.type):
        return len(leaf), len(leaf)
    return int(row_bytes(leaf).sum()), int(row_bytes(leaf.dictionary_encode().dictionary).sum())


def _is_repeating(leaf: pa.Array) -> bool:
    plain, distinct = _measure_bytes(leaf)
    return distinct + _CODE_BYTES * len(leaf) < plain


def _has_saved(column: _PlainColumn | _TextColumn) -> bool:
    """Whether a dictionary has saved enough by the counts of all rows; the first rows alone may differ."""
    return column.encoded_bytes < 0.8 * column.raw_bytes


def _first_rows(kept: Sequence[pa.Array]) -> pa.Array:
    """The first rows of a column, enough for an estimate."""
    chosen, rows = [], 0
    for values in kept:
        chosen.append(values.slice(0, _JUDGED_ROWS - rows))
        rows += len(chosen[-1])
        if rows == _JUDGED_ROWS:
            break
    return pa.concat_arrays(chosen)


def _leaves(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The Parquet columns of a column, with their paths."""
    kind = values.type
    if pt.is_struct(kind):
        for at, field in enumerate(kind):
            yield from _leaves(f"{path}.{field.name}", values.field(at))
    elif pt.is_map(kind):
        start, end = (values.offsets[at].as_py() for at in (0, len(values)))
        yield from _leaves(f"{path}.key_value.key", values.keys.slice(start, end - start))
        yield from _leaves(f"{path}.key_value.value", values.items.slice(start, end - start))
    elif pt.is_list(kind):
        yield from _leaves(f"{path}.list.element", values.flatten())
    else:
        yield path, values


def _build_views(
    kind: pa.DataType, words: npt.NDArray[np.int32], buffers: list[pa.Buffer], valid: npt.NDArray[np.bool_]
) -> pa.Array:
    bitmap = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(words), [bitmap, pa.py_buffer(np.ascontiguousarray(words)), *buffers])


def _is_text(kind: pa.DataType) -> bool:
    return is_json(kind) or pt.is_string(kind) or pt.is_binary(kind)
