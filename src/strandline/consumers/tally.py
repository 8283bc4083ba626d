"""Count the rows of a batch by vnode while a lane takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from strandline.model.change import SEQ, VNODE
from strandline.sinks.contract import Tally


def count_rows(batches: Iterable[pa.RecordBatch], tally: dict[int, tuple[int, int, int]]) -> Iterator[pa.RecordBatch]:
    """The same batches; their rows are added to `tally`."""
    for batch in batches:
        if batch.num_rows:
            vnodes, places = np.unique(batch.column(VNODE).to_numpy(), return_inverse=True)
            seqs = batch.column(SEQ).to_numpy()
            highest = np.zeros(len(vnodes), np.int64)
            np.maximum.at(highest, places, seqs)
            rows = np.bincount(places, minlength=len(vnodes))
            at_highest = np.bincount(places[seqs == highest[places]], minlength=len(vnodes))
            found = zip(rows.tolist(), highest.tolist(), at_highest.tolist(), strict=True)
            add_tally(tally, dict(zip(vnodes.tolist(), found, strict=True)))
        yield batch


def add_tally(whole: dict[int, tuple[int, int, int]], part: Tally) -> None:
    """Add the counts of other rows."""
    for vnode, (rows, seq, at_seq) in part.items():
        had, last, at_last = whole.get(vnode, (0, 0, 0))
        same = (at_seq if seq >= last else 0) + (at_last if last >= seq else 0)
        whole[vnode] = (had + rows, max(seq, last), same)
