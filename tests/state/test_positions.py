"""The positions of a backfill move with their marks, forward only, all or none, under the newest fence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consuming
import strandline as sl
from strandline.state.dump import dump_state, load_state
from strandline.state.positions import Position
from strandline.state.removal import forget_consumer
from support import refused

state, registry, marks, leases = consuming.state, consuming.registry, consuming.marks, consuming.leases
consumer, fence = consuming.consumer, consuming.fence

FIRST, SECOND = Position(1, b"m", 10), Position(2, b"t", 25)
END = Position(3, b"t", 30, is_done=True)


def known(marks):
    return marks.consumer_states("a")["a"]


def test_a_position_moves_with_its_mark(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    assert known(marks).positions == {}
    marks.advance(consumer, {0: (5, 5), 1: (5, 5)}, fence=fence, backfill={0: (None, FIRST), 1: (None, FIRST)})
    marks.advance(consumer, {0: (5, 8)}, fence=fence, backfill={0: (FIRST, SECOND)})
    assert known(marks).positions == {0: SECOND, 1: FIRST}
    assert known(marks).marks == {0: 8, 1: 5}
    marks.advance(consumer, {0: (8, 8)}, fence=fence, backfill={0: (SECOND, END)})
    assert known(marks).positions[0] == END


def test_nothing_moves_when_one_position_is_elsewhere(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    marks.advance(consumer, {0: (5, 6)}, fence=fence, backfill={0: (None, FIRST)})
    with refused(sl.Conflict, consumer="a", vnode=0):
        marks.advance(consumer, {0: (6, 7), 1: (5, 7)}, fence=fence, backfill={0: (None, FIRST), 1: (None, FIRST)})
    with refused(sl.Conflict, consumer="a", vnode=1):
        marks.advance(consumer, {0: (6, 7), 1: (5, 7)}, fence=fence, backfill={0: (FIRST, SECOND), 1: (FIRST, SECOND)})
    assert (known(marks).marks, known(marks).positions) == ({0: 6, 1: 5}, {0: FIRST})


@pytest.mark.parametrize(
    "later",
    [
        Position(1, b"m", 10),
        Position(3, b"z", 30),
        Position(2, b"a", 30),
        Position(2, b"z", 9),
        Position(2, b"a", 9, is_done=True),
    ],
)
def test_a_position_never_goes_back(marks, consumer, fence, later):
    marks.start(consumer, {0: 5}, fence)
    marks.advance(consumer, {0: (5, 5)}, fence=fence, backfill={0: (None, FIRST)})
    with refused(sl.Invalid, vnode=0):
        marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={0: (FIRST, later)})
    assert (known(marks).marks, known(marks).positions) == ({0: 5}, {0: FIRST})


def test_a_backfill_that_has_ended_does_not_go_on(marks, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    marks.advance(consumer, {0: (5, 5)}, fence=fence, backfill={0: (None, END)})
    with refused(sl.Invalid, vnode=0):
        marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={0: (END, Position(4, b"z", 40))})


def test_a_position_without_its_mark_is_refused(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    with refused(sl.Invalid, vnode=1):
        marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={1: (None, FIRST)})
    assert known(marks).marks == {0: 5, 1: 5}


def test_a_late_worker_moves_no_position(marks, leases, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    with refused(sl.Conflict):
        marks.advance(consumer, {0: (5, 9)}, fence=fence - 1, backfill={0: (None, FIRST)})
    assert known(marks).positions == {}


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_any_bytes_are_a_position(keys):
    at = Position()
    for key in sorted(keys):
        later = Position(at.round + 1, key, at.rows + 1)
        at.check_next(later, 0)
        at = later


def test_positions_are_in_a_dump_and_go_with_their_consumer(state, marks, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    marks.advance(consumer, {0: (5, 5)}, fence=fence, backfill={0: (None, Position(1, b"\x00\xff", 10))})
    dump = dump_state(state)
    forget_consumer(state, "a", consumer.lease, fence)
    assert not dump_state(state)["tables"]["strandline_positions"]
    load_state(state, dump, may_replace=True)
    assert known(marks).positions == {0: Position(1, b"\x00\xff", 10)}
