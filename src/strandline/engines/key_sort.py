"""Sort rows by (vnode, key) inside a task, with a limit on memory.

A partition of usual size is sorted in columns, which costs a fraction of Spark's own sort by rows. A larger one goes
to temporary files by ranges of hashes. Each lot then holds the rows of one range, so rows with equal keys are always in
the same lot, and a lot fits in memory. The files have no names: a killed task leaves nothing behind.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.model.change import HASH, VNODE
from strandline.model.keys import shift_for

BUDGET_BYTES = 128 << 20
# How many ranges of hashes a vnode is cut into in temporary files, as a power of two.
_RANGE_BITS = 5


@dataclass(frozen=True)
class _Place:
    """Where a temporary file holds rows of one range."""

    file: int
    batch: int
    size: int


class KeySort:
    """Rows with `_hash` go in by `add` and come out of `lots`, once, in the order (vnode, `order`).

    Equal rows keep the order in which they came. The columns to sort by hold no nulls."""

    def __init__(self, vnodes: int, order: Sequence[str], *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._shift = shift_for(vnodes)
        self._range_bits = min(_RANGE_BITS, self._shift)
        self._order = [(name, "ascending") for name in order]
        self._budget_bytes = budget_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._files: list[IO[Any]] = []
        self._places: dict[int, list[_Place]] = defaultdict(list)

    def __enter__(self) -> KeySort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def add(self, rows: pa.Table) -> None:
        if self._held and self._held_bytes + rows.nbytes > self._budget_bytes:
            self._spill()
        self._held.append(rows)
        self._held_bytes += rows.nbytes

    def lots(self) -> Iterator[pa.Table]:
        """The sorted rows. A lot holds whole vnodes, or a range of the hashes of one vnode."""
        if not self._places:
            if self._held:
                yield self._sort(self._take_held())
            return
        if self._held:
            self._spill()
        readers = [pa.ipc.open_file(pa.PythonFile(file, "r")) for file in self._files]
        for places in self._lots_of_places():
            yield self._sort(pa.Table.from_batches([readers[at.file].get_batch(at.batch) for at in places]))

    def _take_held(self) -> pa.Table:
        rows, self._held, self._held_bytes = pa.concat_tables(self._held).combine_chunks(), [], 0
        return rows

    def _spill(self) -> None:
        """Write the held rows to a new temporary file, a batch for each range of hashes."""
        rows = self._take_held()
        ranges = _hashes(rows) >> (self._shift - self._range_bits)
        order = np.argsort(ranges, kind="stable")
        rows, ranges = rows.take(pa.array(order)), ranges[order]
        starts = np.flatnonzero(np.diff(ranges, prepend=-1))
        # Spark gives each of its tasks the folder for its own temporary files.
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        file = tempfile.TemporaryFile(dir=folder if folder and os.path.isdir(folder) else None)  # noqa: SIM115
        self._files.append(file)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(pa.PythonFile(file, "w"), rows.schema, options=options) as writer:
            for batch, (start, end) in enumerate(zip(starts, [*starts[1:], len(ranges)], strict=True)):
                part = rows.slice(start, end - start).combine_chunks()
                writer.write_batch(part.to_batches()[0])
                self._places[int(ranges[start])].append(_Place(len(self._files) - 1, batch, part.nbytes))
        file.flush()

    def _lots_of_places(self) -> Iterator[list[_Place]]:
        """Neighbouring ranges of one vnode together, as many as fit the budget."""
        lot: list[_Place] = []
        size, vnode = 0, -1
        for number in sorted(self._places):
            places = self._places[number]
            more = sum(place.size for place in places)
            if lot and (number >> self._range_bits != vnode or size + more > self._budget_bytes):
                yield lot
                lot, size = [], 0
            lot += places
            size, vnode = size + more, number >> self._range_bits
        if lot:
            yield lot

    def _sort(self, rows: pa.Table) -> pa.Table:
        vnodes = _hashes(rows) >> self._shift
        keys = rows.select(list(dict.fromkeys(name for name, _ in self._order)))
        order = self._order
        if (vnodes != vnodes[0]).any():
            keys = keys.append_column(VNODE, pa.array(vnodes))
            order = [(VNODE, "ascending"), *order]
        return rows.take(pc.sort_indices(keys, sort_keys=order))


def _hashes(rows: pa.Table) -> npt.NDArray[np.int64]:
    return np.asarray(rows.column(HASH).to_numpy(), np.int64)
