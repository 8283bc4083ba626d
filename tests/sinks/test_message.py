"""What a sender says of its rows: read, or refused with the reason, and cut into parts that say the same."""

import itertools
import json

import numpy as np
import pytest

from strandline.model.definition import MAX_VNODES
from strandline.sinks.forward.message import ChunkHeader, Replay, Sender, pack, unpack
from strandline.sinks.forward.refusal import Refusal

FACTS = {"version": 1, "sink": "lake.central", "life": 7, "is_first": False, "ranges": [[0, 1, 4, 0, 8, 0]]}


def parse(**change):
    return ChunkHeader.parse(json.dumps({**FACTS, **change}))


def places(chunk, *rows):
    return chunk.places(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def status_of(act):
    with pytest.raises(Refusal) as caught:
        act()
    return caught.value.status


def test_a_header_says_sender_and_range_of_each_vnode():
    chunk = parse(ranges=[[0, 1, 4, 0, 8, 0], [3, 3, 2, 5, 2, 6]])
    assert chunk.sender == Sender("lake.central", 7)
    assert chunk.ranges == {
        0: (pack(4, 0), pack(8, 0)),
        1: (pack(4, 0), pack(8, 0)),
        3: (pack(2, 5), pack(2, 6)),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"sink": ""},
        {"sink": "a b"},
        {"sink": "x" * 201},
        {"sink": 5},
        {"life": -1},
        {"life": True},
        {"life": 1 << 53},
        {"is_first": 1},
        {"ranges": []},
        {"ranges": {}},
        {"ranges": [[0, 0, 4, 0, 8]]},
        {"ranges": [[1, 0, 4, 0, 8, 0]]},
        {"ranges": [[0, MAX_VNODES, 4, 0, 8, 0]]},
        {"ranges": [[0, 0, 8, 0, 4, 0]]},
        {"ranges": [[0, 0, 4, 0, 1 << 32, 0]]},
        {"ranges": [[0, 0, 4, 0, 8, 1 << 31]]},
        {"ranges": [[0, 0, 4.0, 0, 8, 0]]},
        {"ranges": [[0, 2, 4, 0, 8, 0], [2, 3, 4, 0, 8, 0]]},
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_malformed(change):
    assert status_of(lambda: parse(**change)) == 400


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null"])
def test_a_header_that_is_no_object_is_malformed(text):
    assert status_of(lambda: ChunkHeader.parse(text)) == 400


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_sender_of_another_version_keeps_its_rows(version):
    assert status_of(lambda: parse(version=version)) == 412


def test_a_replay_says_the_seq_of_its_rows():
    facts = {"version": 1, "sink": "s", "life": 2, "as_of": 9}
    assert Replay.parse(json.dumps(facts)) == Replay(Sender("s", 2), 9)
    for as_of in (None, -1, True, 1 << 32, "9"):
        assert status_of(lambda as_of=as_of: Replay.parse(json.dumps({**facts, "as_of": as_of}))) == 400


def test_rows_have_places_inside_the_ranges():
    found = places(parse(), (0, 4, 0), (1, 7, 3), (0, 4, 1))
    assert found.vnodes.tolist() == [0, 1, 0]
    assert found.positions.tolist() == [pack(4, 0), pack(7, 3), pack(4, 1)]


@pytest.mark.parametrize(
    ("rows", "row", "column"),
    [
        ([(0, 4, 0), (2, 4, 0)], 1, "_vnode"),
        ([(-1, 4, 0)], 0, "_vnode"),
        ([(MAX_VNODES, 4, 0)], 0, "_vnode"),
        ([(0, 3, 0)], 0, "_seq"),
        ([(0, 8, 0)], 0, "_seq"),
        ([(0, -1, 0)], 0, "_seq"),
        ([(0, 4, -1)], 0, "_index"),
        ([(0, 4, 0), (0, 4, 0)], 1, "_seq"),
        ([(0, 5, 0), (1, 4, 0), (0, 4, 0)], 2, "_seq"),
    ],
)
def test_a_row_outside_of_its_chunk_or_out_of_order_is_named(rows, row, column):
    with pytest.raises(Refusal) as caught:
        places(parse(), *rows)
    assert caught.value.error.fields == {"row": row, "column": column}


def test_parts_of_a_chunk_follow_each_other_and_cover_the_whole():
    chunk = parse(is_first=True)
    found = places(chunk, (0, 4, 0), (1, 5, 0), (0, 6, 0), (1, 7, 0))
    parts = chunk.split(found, [0, 1, 3])
    assert [part.is_first for part in parts] == [True, False, False]
    for vnode, (start, end) in chunk.ranges.items():
        edges = [part.ranges[vnode] for part in parts]
        assert edges[0][0] == start and edges[-1][1] == end
        assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
    for part, (first, last) in zip(parts, [(0, 1), (1, 3), (3, 4)], strict=True):
        inside = found.slice(first, last)
        assert all(
            part.ranges[v][0] <= p < part.ranges[v][1]
            for v, p in zip(inside.vnodes.tolist(), inside.positions.tolist(), strict=True)
        )


@pytest.mark.parametrize("place", [(0, 0), (5, 7), ((1 << 32) - 1, (1 << 31) - 1)])
def test_positions_are_held_by_one_number(place):
    assert unpack(pack(*place)) == place
    assert 0 <= pack(*place) < 1 << 63
