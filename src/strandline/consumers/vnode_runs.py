"""A sorted stream of rows, cut into the rows of each vnode."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from strandline.model.change import VNODE


class VnodeRuns:
    """A stream of batches sorted by `_vnode`, cut where the vnode changes. It holds one batch at most."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[int]:
        while (batch := self._next_batch()) is not None:
            self._rest = batch
            yield batch.column(VNODE)[0].as_py()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the current vnode of the iteration."""
        batch = self._next_batch()
        assert batch is not None
        vnode = batch.column(VNODE)[0]
        while batch is not None:
            end = pc.index(pc.not_equal(batch.column(VNODE), vnode), pa.scalar(True)).as_py()
            if end >= 0:
                self._rest = batch.slice(end)
                if end:
                    yield batch.slice(0, end)
                return
            yield batch
            batch = self._next_batch()

    def _next_batch(self) -> pa.RecordBatch | None:
        batch, self._rest = self._rest, None
        while batch is None or not batch.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return None
        return batch
