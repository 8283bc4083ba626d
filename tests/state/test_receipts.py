"""Receipts: the newest first, a bounded number of each generation, and the last ones in one query."""

from __future__ import annotations

import itertools

import consuming
from strandline.state.receipts import RECEIPTS, keep_receipt, read_last_receipts, read_receipts

state, registry, marks = consuming.state, consuming.registry, consuming.marks


def test_only_the_newest_receipts_of_a_generation_are_kept(state, marks):
    with state.transaction() as connection:
        keep_receipt(connection, "other", '{"n": -1}')
        for number in range(RECEIPTS + 5):
            keep_receipt(connection, "own", f'{{"n": {number}}}')
    with state.reading() as connection:
        found = read_receipts(connection, "own", RECEIPTS * 2)
        assert [each.body["n"] for each in found] == list(range(RECEIPTS + 4, 4, -1))
        assert [each.body["n"] for each in read_receipts(connection, "own", 2)] == [RECEIPTS + 4, RECEIPTS + 3]
        assert all(later.at_s >= earlier.at_s for later, earlier in itertools.pairwise(found))
        last = read_last_receipts(connection, {"own", "other", "unknown"})
    assert {name: each.body["n"] for name, each in last.items()} == {"own": RECEIPTS + 4, "other": -1}
