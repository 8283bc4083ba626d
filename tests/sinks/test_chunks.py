"""Cutting a batch into chunks: the same rows, the same cuts, and every position in exactly one of them."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.model.types import JSON
from strandline.sinks.contract import Batch
from strandline.sinks.forward import encode
from strandline.sinks.forward.chunks import CutRule, Cutter, parse_positions
from support import refused

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("more", JSON)])
LARGE = CutRule(1000, 1 << 20)


def batch_of(vnodes=(0, 1, 2, 3), after=4, upto=7, **rest):
    return Batch("b", tuple(vnodes), after, upto, COLUMNS, ("id",), **rest)


def rows_of(batch, places, name=str, withheld=()):
    """One row for each (vnode, seq), in that order; those whose ordinal is in `withheld` do not leave."""
    rows = [
        {"_op": "upsert", "_vnode": vnode, "_seq": seq, "id": at, "name": name(at), "more": "{}"}
        | ({"_op": "withheld", "name": None, "more": None} if at in withheld else {})
        for at, (vnode, seq) in enumerate(sorted(places))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=batch.lane_schema)


def cut(batch, rows, rule=LARGE, at=()):
    """The chunks of rows that come in record batches which end at these places."""
    borders = [0, *sorted({place for place in at if place < rows.num_rows}), rows.num_rows]
    pieces = [rows.slice(start, end - start) for start, end in itertools.pairwise(borders)]
    return list(Cutter(batch, rule).chunks(pieces))


def told(chunk):
    bodies = [encode.encode(chunk.rows, format) for format in encode.FORMATS]
    return chunk.start, chunk.end, chunk.ranges, chunk.key("g"), chunk.is_first, chunk.rows.to_pylist(), bodies


def spread(chunks):
    """What each vnode is covered from and to, chunk by chunk."""
    found = {}
    for chunk in chunks:
        for first, last, *ends in chunk.ranges:
            for vnode in range(first, last + 1):
                found.setdefault(vnode, []).append((tuple(ends[:2]), tuple(ends[2:])))
    return found


places = st.lists(st.tuples(st.sampled_from([0, 1, 3, 4, 5]), st.integers(5, 7)), max_size=40)
sets = st.sets(st.integers(0, 40))
rules = st.builds(CutRule, st.integers(1, 12), st.integers(1, 600))


@given(places=places, rule=rules, withheld=sets, at=sets, is_first=st.booleans())
def test_the_same_rows_are_cut_the_same_way_however_they_come(places, rule, withheld, at, is_first):
    batch = batch_of([0, 1, 3, 4, 5], is_first=is_first)
    rows = rows_of(batch, places, name=lambda at: "x" * (at * 7 % 50), withheld=withheld)
    whole, pieces = cut(batch, rows, rule), cut(batch, rows, rule, at)
    assert [told(chunk) for chunk in pieces] == [told(chunk) for chunk in whole]
    assert len({chunk.key("g") for chunk in whole}) == len(whole)
    assert not {chunk.key("g") for chunk in whole} & {chunk.key("another") for chunk in whole}
    restored = cut(replace(batch, id="another"), rows, rule)
    assert not {chunk.key("g") for chunk in whole} & {chunk.key("g") for chunk in restored}


@given(places=places, rule=rules, withheld=sets, is_first=st.booleans())
def test_chunks_cover_every_position_of_the_batch_once(places, rule, withheld, is_first):
    batch = batch_of([0, 1, 3, 4, 5], is_first=is_first)
    rows = rows_of(batch, places, withheld=withheld)
    chunks = [part for chunk in cut(batch, rows, rule) for part in chunk.split_vnodes()]
    for vnode, spans in spread(chunks).items():
        assert vnode in batch.vnodes
        assert spans[0][0] == (5, 0) and spans[-1][1] == (8, 0)
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
    assert set(spread(chunks)) == set(batch.vnodes)

    sent = [(row["_vnode"], row["_seq"], row["_index"], row["id"]) for c in chunks for row in c.rows.to_pylist()]
    all_rows = rows.to_pylist()
    expected = []
    for at, row in enumerate(all_rows):
        before = sum(each["_vnode"] == row["_vnode"] and each["_seq"] == row["_seq"] for each in all_rows[:at])
        expected += [] if at in withheld else [(row["_vnode"], row["_seq"], before, row["id"])]
    assert sent == expected
    for chunk in chunks:
        for row in chunk.rows.to_pylist():
            spans = spread([chunk])[row["_vnode"]]
            assert spans[0][0] <= (row["_seq"], row["_index"]) < spans[0][1]
        # A receiver that lost a vnode's beginning must notice: what goes on is never also what is new.
        begins = {ends[0] == (5, 0) for spans in spread([chunk]).values() for ends in spans}
        assert not is_first or begins in ({chunk.is_first}, set())


@given(places=places, rule=rules, withheld=sets, data=st.data())
def test_what_is_done_or_dead_is_not_sent_again(places, rule, withheld, data):
    batch = batch_of([0, 1, 3, 4, 5])
    rows = rows_of(batch, places, withheld=withheld)
    chunks = cut(batch, rows, rule)
    which = data.draw(st.integers(0, len(chunks) - 1))
    chunk = chunks[which]
    row = data.draw(st.integers(0, chunk.rows.num_rows - 1) | st.none()) if chunk.rows.num_rows else None
    later = replace(CutRule.from_dict(rule.skip_refused(chunk, row).to_dict()), rows=5, bytes=400)
    gone = {each["id"] for each in chunk.identities(row).to_pylist()}
    before = {each["id"] for chunk in chunks[:which] for each in chunk.rows.to_pylist()}
    again = cut(batch, rows, later)
    assert again[0].start == chunk.start
    sent = [each["id"] for chunk in again for each in chunk.rows.to_pylist()]
    assert sent == [at for at in range(rows.num_rows) if at not in withheld and at not in gone and at not in before]
    assert any(each.missing for each in again) or not gone
    assert chunk.key("g") not in [each.key("g") for each in again]


def test_a_chunk_closes_before_the_row_that_would_pass_its_rows():
    batch = batch_of([0])
    chunks = cut(batch, rows_of(batch, [(0, 5)] * 7), CutRule(3, 1 << 20))
    assert [chunk.rows.num_rows for chunk in chunks] == [3, 3, 1]
    assert [chunk.ranges for chunk in chunks] == [[(0, 0, 5, 0, 5, 3)], [(0, 0, 5, 3, 5, 6)], [(0, 0, 5, 6, 8, 0)]]


def test_a_chunk_closes_before_the_row_that_would_pass_its_bytes_and_a_giant_is_alone():
    batch = batch_of([0])
    sizes = {3: 5000}
    rows = rows_of(batch, [(0, 5)] * 6, name=lambda at: "x" * sizes.get(at, 100))
    chunks = cut(batch, rows, CutRule(1000, 300))
    assert [chunk.rows.num_rows for chunk in chunks] == [2, 1, 1, 2]
    assert all(chunk.bytes <= 300 for chunk in chunks if chunk.rows.num_rows > 1)


def test_vnodes_without_rows_are_covered_by_the_chunk_that_passes_them():
    batch = batch_of(range(16))
    chunks = cut(batch, rows_of(batch, [(2, 5), (2, 6), (9, 6)]), CutRule(2, 1 << 20))
    assert [chunk.ranges for chunk in chunks] == [[(0, 8, 5, 0, 8, 0)], [(9, 15, 5, 0, 8, 0)]]


def test_a_chunk_that_ends_within_a_vnode_says_where():
    batch = batch_of(range(4))
    chunks = cut(batch, rows_of(batch, [(0, 5), (1, 5), (1, 6), (1, 6), (3, 7)]), CutRule(3, 1 << 20))
    assert chunks[0].ranges == [(0, 0, 5, 0, 8, 0), (1, 1, 5, 0, 6, 1)]
    assert chunks[1].ranges == [(1, 1, 6, 1, 8, 0), (2, 3, 5, 0, 8, 0)]


def test_neighbours_are_one_range_only_if_the_batch_has_them_all():
    batch = batch_of([0, 1, 4, 5, 7])
    [chunk] = cut(batch, rows_of(batch, []))
    assert chunk.rows.num_rows == 0
    assert chunk.ranges == [(0, 1, 5, 0, 8, 0), (4, 5, 5, 0, 8, 0), (7, 7, 5, 0, 8, 0)]


def test_withheld_rows_are_counted_but_do_not_leave():
    batch = batch_of([0])
    rows = rows_of(batch, [(0, 5)] * 4, withheld={0, 2})
    cutter = Cutter(batch, LARGE)
    [chunk] = cutter.chunks([rows])
    assert cutter.withheld == 2
    assert [row["_index"] for row in chunk.rows.to_pylist()] == [1, 3]


def test_a_first_batch_goes_on_within_a_vnode_in_chunks_that_say_so():
    batch = batch_of(range(4), after=0, upto=7, is_first=True)
    rows = rows_of(batch, [(0, 7)] * 5 + [(1, 7)])
    parts = [part for chunk in cut(batch, rows, CutRule(3, 1 << 20)) for part in chunk.split_vnodes()]
    assert [(part.is_first, part.rows.num_rows, part.ranges) for part in parts] == [
        (True, 3, [(0, 0, 1, 0, 7, 3)]),
        (False, 2, [(0, 0, 7, 3, 8, 0)]),
        (True, 1, [(1, 3, 1, 0, 8, 0)]),
    ]


def test_halves_hold_the_same_rows_and_cover_the_same():
    batch = batch_of(range(3))
    for places in ([(0, 5)] * 3 + [(1, 5)] * 4, [(1, 5)] * 2, [(0, 5), (2, 6)]):
        [chunk] = cut(batch, rows_of(batch, places))
        halves = chunk.halves()
        assert [row for half in halves for row in half.rows.to_pylist()] == chunk.rows.to_pylist()
        assert all(half.rows.num_rows for half in halves)
        assert (halves[0].start, halves[0].end, halves[1].end) == (chunk.start, halves[1].start, chunk.end)
        assert halves[0].bytes + halves[1].bytes == chunk.bytes


def test_a_null_counts_nothing_whatever_lies_below_it():
    batch = batch_of([0])
    rows = rows_of(batch, [(0, 5)] * 2, name=lambda at: "x" * 1000)
    names = rows.column("name")
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\0"), *names.buffers()[1:]])
    columns = [hidden if name == "name" else rows.column(name) for name in rows.schema.names]
    masked = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
    plain = pa.RecordBatch.from_pylist(masked.to_pylist(), schema=rows.schema)
    [one], [other] = cut(batch, masked), cut(batch, plain)
    assert one.bytes == other.bytes < 200


def test_rows_without_a_key_are_named_by_seq_and_row():
    batch = Batch("b", (0,), 4, 7, COLUMNS, ())
    rows = [
        {"_op": "upsert", "_vnode": 0, "_seq": 5 + at // 2, "_row": 10 + at, "id": at, "name": "n", "more": None}
        for at in range(4)
    ]
    [chunk] = cut(batch, pa.RecordBatch.from_pylist(rows, schema=batch.lane_schema))
    assert chunk.identities(None).to_pylist() == [{"_seq": 5 + at // 2, "_row": 10 + at} for at in range(4)]
    data, _ = encode.encode(chunk.rows, "arrow")
    sent = pa.ipc.open_stream(data).read_all()
    assert sent.schema.names == ["_op", "_vnode", "_seq", "_index", "id", "name", "more"]
    assert [row["_index"] for row in sent.to_pylist()] == [0, 1, 0, 1]


def test_columns_in_storage_types_are_taken_as_what_they_are():
    batch = batch_of([0])
    rows = rows_of(batch, [(0, 5)] * 2)
    plain = pa.RecordBatch.from_arrays(
        [c.storage if isinstance(c.type, pa.BaseExtensionType) else c for c in rows.columns], names=rows.schema.names
    )
    [chunk], [same] = cut(batch, plain), cut(batch, rows)
    assert chunk.rows.equals(same.rows)


@pytest.mark.parametrize("order", [[(1, 5), (0, 5)], [(0, 6), (0, 5)], [(0, 4)], [(0, 8)], [(9, 5)]])
def test_rows_out_of_order_or_of_another_batch_are_an_internal_error(order):
    batch = batch_of([0, 1])
    one = [rows_of(batch, [place]) for place in order]
    with refused(sl.Internal):
        list(Cutter(batch, LARGE).chunks(one))
    with refused(sl.Internal):
        list(Cutter(batch, LARGE).chunks([pa.concat_batches(one)]))


def test_memory_holds_a_chunk_and_a_record_batch_however_many_rows_come():
    batch = batch_of([0], upto=10_000)
    text = pa.array(["x" * 1000] * 1000)

    def incoming(count):
        for at in range(count):
            columns = [
                pa.array(["upsert"] * 1000),
                pa.array(np.zeros(1000, np.int32)),
                pa.array(np.full(1000, 5 + at)),
                pa.array(np.arange(1000)),
                pa.concat_arrays([text]),
                pa.ExtensionArray.from_storage(JSON, pa.array(["{}"] * 1000)),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.lane_schema)

    def peak(count):
        start, most, rows = pa.total_allocated_bytes(), 0, 0
        for chunk in Cutter(batch, CutRule(700, 4 << 20)).chunks(incoming(count)):
            rows += chunk.rows.num_rows
            most = max(most, pa.total_allocated_bytes() - start)
        assert rows == 1000 * count
        return most

    few, many = peak(5), peak(200)
    assert many <= few + (1 << 20)
    assert many < 8 << 20


def test_a_small_rest_does_not_pin_the_record_batch_that_it_came_in():
    batch = batch_of([0])
    rows = rows_of(batch, [(0, 5)] * 1001, name=lambda at: "x" * 1000)
    size = rows.get_total_buffer_size()
    start = pa.total_allocated_bytes()
    cutter = Cutter(batch, CutRule(1000, 1 << 30))

    def incoming():
        nonlocal rows
        given, rows = rows, None
        yield given
        del given
        assert pa.total_allocated_bytes() < start - size // 2
        yield rows_of(batch, [(0, 6)])

    assert list(map(lambda chunk: chunk.rows.num_rows, cutter.chunks(incoming()))) == [1000, 2]


def test_what_a_receiver_says_it_has_is_read_by_vnode():
    assert parse_positions([[0, 2, 5, 0], [7, 7, 6, 3]], 8) == {0: (5, 0), 1: (5, 0), 2: (5, 0), 7: (6, 3)}
    assert parse_positions([[0, 10**12, 5, 0]], 4) == dict.fromkeys(range(4), (5, 0))
    assert parse_positions([], 8) == {}
    for wrong in (None, {}, [[0, 1, 2]], [["0", 1, 2, 3]], [[0, 1, 2, True]], "no", [1]):
        assert parse_positions(wrong, 8) is None
