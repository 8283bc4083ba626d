"""Rows come out by vnode and key, whatever part of them fits in memory."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.engines.key_sort import KeySort
from strandline.model.change import HASH
from strandline.model.keys import hash_keys, vnode_of

KEYS = st.tuples(st.integers(-50, 50), st.text("ab", max_size=3))


def batches_of(keys, batch_rows):
    columns = [pa.array([key[at] for key in keys], kind) for at, kind in enumerate((pa.int64(), pa.string()))]
    rows = pa.table([*columns, pa.array(range(len(keys)))], ["id", "name", "came"])
    rows = rows.append_column(HASH, hash_keys(columns))
    return [pa.Table.from_batches([batch]) for batch in rows.to_batches(batch_rows)]


def sorted_lots(keys, *, vnodes, budget_bytes, batch_rows):
    with KeySort(vnodes, ["id", "name"], budget_bytes=budget_bytes) as sort:
        for rows in batches_of(keys, batch_rows):
            sort.add(rows)
        return [lot.to_pylist() for lot in sort.lots()]


@given(
    st.lists(KEYS, max_size=60),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([1, 500, 1 << 20]),
    st.integers(1, 20),
)
def test_every_lot_is_sorted_and_equal_keys_stay_together_in_their_order(keys, vnodes, budget_bytes, batch_rows):
    lots = sorted_lots(keys, vnodes=vnodes, budget_bytes=budget_bytes, batch_rows=batch_rows)
    for lot in lots:
        order = [(vnode_of(row[HASH], vnodes), row["id"], row["name"], row["came"]) for row in lot]
        assert order == sorted(order)
    assert sorted(row["came"] for lot in lots for row in lot) == list(range(len(keys)))
    # Lots follow each other by vnode, and no two lots share a hash.
    places = [{vnode_of(row[HASH], vnodes) for row in lot} for lot in lots]
    assert all(max(one) <= min(next_) for one, next_ in pairwise(places))
    hashes = [row[HASH] for lot in lots for row in lot]
    assert sum(len({row[HASH] for row in lot}) for lot in lots) == len(set(hashes))


def test_a_lot_fits_the_budget_and_small_rows_stay_in_memory():
    keys = [(number, "x") for number in range(20_000)]
    whole = sorted_lots(keys, vnodes=2, budget_bytes=1 << 30, batch_rows=1000)
    assert [len(lot) for lot in whole] == [20_000]
    row_bytes = batches_of(keys, 20_000)[0].nbytes / 20_000
    lots = sorted_lots(keys, vnodes=2, budget_bytes=100_000, batch_rows=1000)
    assert max(map(len, lots)) * row_bytes < 110_000


@pytest.mark.parametrize("folder", ["there", "missing", ""])
def test_temporary_files_have_no_name_and_lie_in_sparks_folder(folder, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / folder) if folder else "")
    keys = [(number, "x") for number in range(1000)]
    with KeySort(4, ["id"], budget_bytes=1000) as sort:
        for rows in batches_of(keys, 100):
            sort.add(rows)
        assert list((tmp_path / "there").iterdir()) == []
        assert sum(lot.num_rows for lot in sort.lots()) == 1000
