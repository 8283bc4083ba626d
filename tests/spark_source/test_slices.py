"""Slices cover every vnode that holds rows exactly once, and are ranges of hashes."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.spark_source import slices
from strandline.spark_source.slices import Slice, cut, table_sizes


@given(st.lists(st.sampled_from([0, 1, 5 << 20, 20 << 20, 40 << 20]), min_size=1, max_size=40), st.data())
def test_slices_cover_what_holds_rows_once_and_in_order(sizes, data):
    first = data.draw(st.integers(0, len(sizes)))
    end = data.draw(st.integers(first, len(sizes)))
    found = list(cut(sizes, first, end))
    covered = [vnode for each in found for vnode in range(each.first, each.end)]
    assert covered == sorted(set(covered))
    assert {vnode for vnode in range(first, end) if sizes[vnode]} <= set(covered) <= set(range(first, end))
    for each in found:
        held = [sizes[vnode] for vnode in range(each.first, each.end) if sizes[vnode]]
        assert held and (len(held) == 1 or sum(held) <= slices.TASK_BYTES)


def test_a_slice_is_a_range_of_hashes():
    assert Slice(1, 3, 4).hashes == f"_hash >= {1 << 30} AND _hash < {3 << 30}"
    assert Slice(0, 4, 4).is_whole and not Slice(1, 4, 4).is_whole


def test_the_sizes_of_a_table_count_baseline_and_log(items):
    items.upsert([{"id": n, "name": "x" * 50} for n in range(400)])
    items.compact(full=True)
    rows, sizes = table_sizes(items.merge())
    assert sum(rows) == 400 and all(sizes)
    items.upsert([{"id": n} for n in range(400, 410)])
    more, larger = table_sizes(items.merge())
    assert sum(more) >= 410 and all(new >= old for new, old in zip(larger, sizes, strict=True))
