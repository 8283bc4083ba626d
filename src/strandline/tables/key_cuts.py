"""Where to cut a table by key, so that each part has about so many rows: from the footers of its Parquet files.

A cut is a position (see `model/key_order`). Row groups say how many rows they have and the highest key among them.
Files are sorted by key within a vnode, so the rows up to a group's highest key are those of the groups that end before
it, and parts of a few others: a cut has at least the rows that were asked for, and is exact as a key. Cuts stay where
rows are, so a range whose rows were deleted has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from strandline.model.change import SEQ
from strandline.model.definition import TableDef
from strandline.model.key_order import Value, encode_key, is_at_most
from strandline.model.stored_names import stored_name
from strandline.storage.parquet import reader
from strandline.tables.merge import TableAt

_KEPT_FILES = 10_000
_kept: dict[str, list[GroupEnd]] = {}
"""The groups of files that were opened before: a file never changes."""


@dataclass(frozen=True)
class GroupEnd:
    """A row group: the position of its highest key, its rows, and about their size in memory. No key sorts before
    `start`, which may be the beginning of one."""

    key: bytes
    rows: int
    raw_bytes: int
    start: bytes = b""

    def is_behind(self, position: bytes) -> bool:
        """Whether all its keys lie behind a position, as far as it is known."""
        return not position or position[: len(self.start)] < self.start

    def may_hold(self, after: bytes, until: bytes | None) -> bool:
        """Whether a key behind `after` and up to `until` may be in it."""
        is_past = bool(after) and is_at_most(self.key, after)
        return not is_past and (until is None or not self.is_behind(until))


def find_group_ends(merge: TableAt) -> list[GroupEnd]:
    """The row groups of all files of a table, in the order of their ends. Groups whose footer does not tell are left
    out: their rows come with those of others."""
    found: list[GroupEnd] = []
    storage, definition = merge.log.storage, merge.definition
    kinds = key_types(definition)
    own = definition.schema
    names = [stored_name(own.field(name)) if definition.is_keyed else name for name in definition.identity]
    for folder, seq, file in [
        *((merge.baseline.folder, None, file) for file in merge.base_files()),
        *((merge.log.folder, seq, file) for seq, file in merge.log_files()),
    ]:
        place = storage.url(f"{folder}/{file.path}")
        known_groups = _kept.get(place)
        if known_groups is None:
            known = {} if definition.is_keyed or seq is None or file.pack is not None else {SEQ: seq}
            with reader.open_file(storage, f"{folder}/{file.path}") as opened:
                groups = [opened.metadata.row_group(at) for at in range(opened.metadata.num_row_groups)]
            ends = [(group, _ends_of(group, names, kinds, known)) for group in groups]
            if len(_kept) >= _KEPT_FILES:
                _kept.clear()
            row_bytes = file.raw_bytes / max(1, file.rows)
            known_groups = [
                GroupEnd(end[1], group.num_rows, round(row_bytes * group.num_rows), end[0])
                for group, end in ends
                if end is not None
            ]
            _kept[place] = known_groups
        found += known_groups
    in_order = cmp_to_key(compare_positions)
    return sorted(found, key=lambda group: in_order(group.key))


def key_types(definition: TableDef) -> list[pa.DataType]:
    """The types of the columns that name a row."""
    if not definition.is_keyed:
        return [pa.int64(), pa.int64()]
    return [definition.schema.field(name).type for name in definition.key]


def compare_positions(one: bytes, other: bytes) -> int:
    """-1, 0 or 1. A position that another one begins with stands behind it."""
    if one == other:
        return 0
    return -1 if is_at_most(one, other) else 1


def next_cut(groups: Sequence[GroupEnd], after: bytes, rows: int, raw_bytes: int) -> bytes | None:
    """The first cut behind a position with at least so many rows or bytes in between; None when no cut leaves rows
    behind it. `after` is empty at the beginning."""
    seen = size = 0
    for group in groups:
        if not group.is_behind(after):
            continue
        seen, size = seen + group.rows, size + group.raw_bytes
        if seen >= rows or size >= raw_bytes:
            return None if group.key == groups[-1].key else group.key
    return None


def _ends_of(
    group: pq.RowGroupMetaData, names: Sequence[str], kinds: Sequence[pa.DataType], known: dict[str, int]
) -> tuple[bytes, bytes] | None:
    """The lowest and the highest key of a row group, as far as its statistics tell: the bounds of the first column, and
    those of each further one as long as those before it have one value only."""
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    lows: list[Value] = []
    values: list[Value] = []
    for name, kind in zip(names, kinds, strict=True):
        if name in known:
            lows.append(known[name])
            values.append(known[name])
            continue
        bounds = _bounds_of(columns.get(name), kind)
        if bounds is None:
            break
        lows.append(bounds[0])
        values.append(bounds[1])
        if bounds[0] != bounds[1]:
            break
    return (encode_key(lows, kinds), encode_key(values, kinds)) if values else None


def _bounds_of(column: pq.ColumnChunkMetaData | None, kind: pa.DataType) -> tuple[Value, Value] | None:
    found = None if column is None or not column.is_stats_set else column.statistics
    if found is None or not found.has_min_max:
        return None
    low, high = found.min_raw, found.max_raw
    return (low.decode(), high.decode()) if pt.is_string(kind) else (low, high)
