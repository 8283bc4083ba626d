"""Positions of a sender: they move forward only, gaps are conflicts, and a newer life ends the older one."""

import numpy as np
import pytest

import strandline as sl
from strandline.sinks.forward.message import ChunkHeader, Places, Replay, Sender, pack
from strandline.sinks.forward.positions import (
    check_life,
    check_replay,
    find_new_rows,
    holds_chunk,
    list_positions,
    older_positions,
)
from strandline.sinks.forward.refusal import Refusal
from support import refused

SENDER = Sender("lake.central", 7)
OLDER, NEWER = Sender("lake.central", 6), Sender("lake.central", 8)
ROWS = Places(np.array([0, 0, 1]), np.array([pack(4, 0), pack(5, 0), pack(5, 0)]))


def chunk(start=4, end=6, *, is_first=False, sender=SENDER):
    return ChunkHeader(sender, is_first, {vnode: (pack(start, 0), pack(end, 0)) for vnode in (0, 1)})


def at(*seqs, sender=SENDER):
    """What the log keeps when the vnodes of a sender stand at these seqs."""
    kept = {sender.position_app(vnode): pack(seq, 0) for vnode, seq in enumerate(seqs)}
    return {sender.life_app: sender.life, **kept}


def test_a_chunk_that_follows_is_new_as_a_whole_and_moves_the_positions():
    found = find_new_rows(chunk(), ROWS, at(4, 4))
    assert found.is_new is None
    assert found.moved == {SENDER.position_app(0): pack(6, 0), SENDER.position_app(1): pack(6, 0)}


def test_of_a_chunk_that_overlaps_the_rest_is_new():
    found = find_new_rows(chunk(), ROWS, at(5, 4))
    assert found.is_new.tolist() == [False, True, True]
    assert holds_chunk(chunk(), at(6, 9)) and not holds_chunk(chunk(), at(6, 5))


def test_a_chunk_that_is_there_moves_nothing():
    found = find_new_rows(chunk(), ROWS, at(6, 7))
    assert found.moved == {} and not found.is_new.any()


@pytest.mark.parametrize("txns", [{}, at(3, 4), at(4)], ids=["nothing", "behind", "one vnode"])
def test_a_gap_is_a_conflict_with_the_positions(txns):
    with refused(sl.Conflict, positions=list_positions(txns, SENDER)):
        find_new_rows(chunk(), ROWS, txns)


def test_a_first_chunk_begins_where_nothing_is_known_and_says_its_life():
    found = find_new_rows(chunk(is_first=True), ROWS, {})
    assert found.moved[SENDER.life_app] == 7
    assert found.is_new is None


def test_positions_are_told_in_runs():
    txns = {**at(4, 4, 5), SENDER.position_app(9): pack(5, 2)}
    assert list_positions(txns, SENDER) == [[0, 1, 4, 0], [2, 2, 5, 0], [9, 9, 5, 2]]
    assert list_positions(txns, NEWER) == []


def test_an_older_life_is_refused_and_forgotten():
    txns = at(4, 4)
    for act in (lambda: check_life(OLDER, txns), lambda: find_new_rows(chunk(sender=OLDER), ROWS, txns)):
        with pytest.raises(Refusal) as caught:
            act()
        assert (caught.value.status, caught.value.error.fields) == (410, {"life": 7})
    check_life(NEWER, txns)
    assert older_positions(txns, NEWER) == {SENDER.position_app(0): pack(4, 0), SENDER.position_app(1): pack(4, 0)}
    assert older_positions(txns, SENDER) == {} and older_positions({}, SENDER) == {}


def test_a_replay_is_taken_unless_something_newer_is_here():
    assert check_replay(Replay(SENDER, 5), at(5, 6)) == {SENDER.replay_app: 5}
    assert check_replay(Replay(SENDER, 0), {}) == {SENDER.replay_app: 0, SENDER.life_app: 7}
    assert check_replay(Replay(SENDER, 5), {**at(5), SENDER.replay_app: 5}) == {}
    with refused(sl.Conflict, as_of=6):
        check_replay(Replay(SENDER, 5), at(5, 7))
    with refused(sl.Conflict, as_of=8):
        check_replay(Replay(SENDER, 5), {**at(5), SENDER.replay_app: 8})
    with pytest.raises(Refusal):
        check_replay(Replay(OLDER, 99), at(5))
