"""The rows of one Spark task in an order of the user's, with bounded memory: of one key, the last row wins.

Spark's data source API cannot ask for sorted input. So a task sorts its own rows: in memory, or when they are many,
in parts by their hash that wait in a temporary folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.engines import temp_folder
from strandline.model.change import HASH
from strandline.model.keys import HASH_BITS

HELD_BYTES = 64 << 20
_BATCH_BYTES = 16 << 20
_PART_BITS = 5


def sort_rows(rows: Iterator[pa.Table], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows, each with its `_hash`, sorted by `_hash` and then `order`; nulls come first, and NaN last."""
    held: list[pa.Table] = []
    parts = _Parts()
    try:
        for table in rows:
            held.append(table)
            if sum(each.nbytes for each in held) > HELD_BYTES:
                parts.add(pa.concat_tables(held))
                held = []
        if not parts.is_used:
            yield from _sort_table(held, order)
            return
        if held:
            parts.add(pa.concat_tables(held))
        held = []
        for part in parts.read():
            yield from _sort_table(part, order)
    finally:
        parts.remove()


def _sort_table(pieces: Sequence[pa.Table], order: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not pieces:
        return
    table = pa.concat_tables(pieces).combine_chunks()
    table = table.take(_sort_indices(table.select([HASH, *dict.fromkeys(order)]), order))
    rows = max(1, _BATCH_BYTES * table.num_rows // max(1, table.nbytes))
    yield from table.to_batches(max_chunksize=min(rows, 50_000))


def _sort_indices(columns: pa.Table, order: Sequence[str]) -> pa.Array:
    keys = [HASH]
    for name in order:
        if pt.is_floating(columns.schema.field(name).type):
            # Where Arrow puts nulls it puts NaN too.
            keys.append(f"_nan_{len(keys)}")
            columns = columns.append_column(keys[-1], pc.is_nan(columns.column(name)))
        keys.append(name)
    return pc.sort_indices(columns, sort_keys=[(name, "ascending", "at_start") for name in keys])


class _Parts:
    """Rows in files by the top bits of their hash."""

    def __init__(self) -> None:
        self._folder = ""
        self._files: dict[int, pa.ipc.RecordBatchStreamWriter] = {}

    @property
    def is_used(self) -> bool:
        return bool(self._folder)

    def add(self, table: pa.Table) -> None:
        if not self._folder:
            self._folder = temp_folder.new_folder()
            os.makedirs(self._folder, mode=0o700)
        part_of = pc.shift_right(table.column(HASH), HASH_BITS - _PART_BITS)
        for part in pc.unique(part_of).to_pylist():
            if part not in self._files:
                path = os.path.join(self._folder, str(part))
                self._files[part] = pa.ipc.new_stream(path, table.schema)
            self._files[part].write_table(table.filter(pc.equal(part_of, part)))

    def read(self) -> Iterator[list[pa.Table]]:
        """The parts in the order of their hashes."""
        for file in self._files.values():
            file.close()
        for part in sorted(self._files):
            path = os.path.join(self._folder, str(part))
            with pa.ipc.open_stream(path) as stream:
                yield [stream.read_all()]
            os.remove(path)

    def remove(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
