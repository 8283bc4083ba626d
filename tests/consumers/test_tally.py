"""The rows of a batch are counted by vnode, with those of the highest seq."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.consumers.tally import add_tally, count_rows

ROWS = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8), max_size=5)


def count_slowly(rows):
    found = {}
    for vnode in {vnode for vnode, _ in rows}:
        seqs = [seq for at, seq in rows if at == vnode]
        found[vnode] = (len(seqs), max(seqs), seqs.count(max(seqs)))
    return found


def batch_of(rows):
    vnodes, seqs = [vnode for vnode, _ in rows], [seq for _, seq in rows]
    return pa.RecordBatch.from_arrays([pa.array(vnodes, pa.int32()), pa.array(seqs, pa.int64())], ["_vnode", "_seq"])


@given(ROWS)
def test_rows_are_counted_while_they_pass(parts):
    tally = {}
    batches = [batch_of(rows) for rows in parts]
    assert list(count_rows(iter(batches), tally)) == batches
    assert tally == count_slowly([row for rows in parts for row in rows])


@given(ROWS)
def test_counts_of_parts_are_those_of_the_whole(parts):
    whole = {}
    for rows in parts:
        add_tally(whole, count_slowly(rows))
    assert whole == count_slowly([row for rows in parts for row in rows])
