"""The positions of a backfill move with their marks, forward only, all or none, under the newest fence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consuming
import strandline as sl
from strandline.model.key_order import is_at_most
from strandline.state.dump import dump_state, load_state
from strandline.state.intents import IntentDraft
from strandline.state.key_positions import Position
from strandline.state.marks import begin_intent
from strandline.state.removal import forget_consumer
from support import refused

state, registry, marks, leases = consuming.state, consuming.registry, consuming.marks, consuming.leases
consumer, fence = consuming.consumer, consuming.fence

START = Position()
BEGUN = START.begun(b"m", (12, 0.4))
FIRST = BEGUN.finished(10, sent=(5, 10), pace=5.0)
AGAIN = FIRST.begun(b"t", (15, 0.2))
SECOND = AGAIN.finished(15)
LAST = SECOND.begun(None)
END = LAST.finished(5)


def walk(marks, consumer, fence, vnode, positions, seq=5):
    """Move a vnode from one position to the next."""
    before = None
    for each in positions:
        marks.advance(consumer, {vnode: (seq, seq)}, fence=fence, backfill={vnode: (before, each)})
        before = each


def known(marks):
    return marks.consumer_states("a")["a"]


def test_rounds_go_forward():
    assert (FIRST.round, FIRST.key, FIRST.rows, FIRST.sent, FIRST.share) == (1, b"m", 10, (5, 10), 0.4)
    assert (SECOND.share, END.share) == (0.4, 1.0)
    assert (END.round, END.key, END.rows, END.is_done) == (3, b"t", 30, True)


def test_a_position_moves_with_its_mark(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    assert known(marks).positions == {}
    marks.advance(consumer, {0: (5, 5), 1: (5, 5)}, fence=fence, backfill={0: (None, START), 1: (None, START)})
    marks.advance(consumer, {0: (5, 5)}, fence=fence, backfill={0: (START, BEGUN)})
    marks.advance(consumer, {0: (5, 8)}, fence=fence, backfill={0: (BEGUN, FIRST)})
    assert known(marks).positions == {0: FIRST, 1: START}
    assert known(marks).marks == {0: 8, 1: 5}


def test_a_round_begins_with_its_intent(state, marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    marks.advance(consumer, {0: (5, 5), 1: (5, 5)}, fence=fence, backfill={0: (None, START), 1: (None, START)})
    moves = {0: (START, BEGUN), 1: (START, BEGUN)}
    draft = IntentDraft("a", (0, 1), 5, 5, 0, backfill=moves)
    with state.transaction() as connection:
        intent = begin_intent(connection, consumer, draft, fence)
    assert known(marks).positions == {0: BEGUN, 1: BEGUN} and known(marks).intents == (intent,)
    ends = {0: (BEGUN, FIRST), 1: (BEGUN, FIRST)}
    marks.advance(consumer, {0: (5, 5), 1: (5, 5)}, fence=fence, intent=intent, backfill=ends)
    assert known(marks).positions == {0: FIRST, 1: FIRST} and known(marks).intents == ()


def test_a_catch_up_moves_the_mark_and_keeps_the_key(marks, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    walk(marks, consumer, fence, 0, [START, BEGUN, FIRST])
    marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={0: (FIRST, FIRST.caught_up((9, 2)))})
    assert known(marks).marks == {0: 9} and known(marks).positions == {0: replace(FIRST, sent=(9, 2))}


def test_an_intent_without_changes_and_without_a_round_holds_nothing():
    with refused(sl.Invalid):
        IntentDraft("a", (0,), 5, 5, 0).check_vnodes()


def test_nothing_moves_when_one_position_is_elsewhere(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    walk(marks, consumer, fence, 0, [START])
    with refused(sl.Conflict, consumer="a", vnode=0):
        marks.advance(consumer, {0: (5, 7), 1: (5, 7)}, fence=fence, backfill={0: (None, START), 1: (None, START)})
    with refused(sl.Conflict, consumer="a", vnode=1):
        marks.advance(consumer, {0: (5, 7), 1: (5, 7)}, fence=fence, backfill={0: (START, BEGUN), 1: (START, BEGUN)})
    assert (known(marks).marks, known(marks).positions) == ({0: 5, 1: 5}, {0: START})


@pytest.mark.parametrize(
    ("position", "later"),
    [
        (START, FIRST),
        (FIRST, FIRST.begun(b"m")),
        (FIRST, FIRST.begun(b"a")),
        (FIRST, START.begun(b"z")),
        (FIRST, SECOND),
        (AGAIN, FIRST),
        (AGAIN, FIRST.begun(b"z")),
        (AGAIN, Position(2, b"s", 25)),
        (AGAIN, Position(2, b"t", 9)),
        (AGAIN, Position(3, b"t", 25)),
        (AGAIN, Position(2, b"t", 25, is_done=True)),
        (AGAIN, replace(SECOND, share=0.1)),
        (AGAIN, AGAIN.caught_up((5, 3))),
        (LAST, Position(3, b"t", 30)),
        (END, END.caught_up((9, 4))),
        (END, END.begun(b"z")),
        (END, START),
    ],
)
def test_a_position_only_goes_forward_a_round_at_a_time(marks, consumer, fence, position, later):
    marks.start(consumer, {0: 5}, fence)
    path = [START, BEGUN, FIRST, AGAIN, SECOND, LAST, END]
    walk(marks, consumer, fence, 0, path[: path.index(position) + 1])
    with refused(sl.Invalid, vnode=0):
        marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={0: (position, later)})
    assert (known(marks).marks, known(marks).positions) == ({0: 5}, {0: position})


def test_a_position_without_its_mark_is_refused(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    with refused(sl.Invalid, vnode=1):
        marks.advance(consumer, {0: (5, 9)}, fence=fence, backfill={1: (None, START)})
    assert known(marks).marks == {0: 5, 1: 5}


def test_a_late_worker_moves_no_position(marks, leases, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    with refused(sl.Conflict):
        marks.advance(consumer, {0: (5, 9)}, fence=fence - 1, backfill={0: (None, START)})
    assert known(marks).positions == {}


@given(st.lists(st.binary(min_size=1, max_size=4), unique=True, max_size=8))
def test_any_bytes_are_a_position(keys):
    at = Position()
    for key in sorted(keys):
        if not is_at_most(key, at.key) or not at.key:
            for later in (at.begun(key), at.begun(key).finished(1)):
                at.check_next(later, 0)
                at = later


def test_positions_are_in_a_dump_and_go_with_their_consumer(state, marks, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    at = START.begun(b"\x00\xff")
    walk(marks, consumer, fence, 0, [START, at])
    dump = dump_state(state)
    forget_consumer(state, "a", consumer.lease, fence)
    assert not dump_state(state)["tables"]["strandline_backfills"]
    load_state(state, dump, may_replace=True)
    assert known(marks).positions == {0: at}
