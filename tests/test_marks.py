"""Marks, intents and receipts: forward only, all or none, under the newest fence, also across a kill -9."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, text, update

import strandline as sl
from strandline import marks as module
from strandline import state as states
from strandline.leases import Leases
from strandline.marks import Marks
from strandline.state import State, _checked
from support import python, refused

FACTS = {"kind": "sink", "table": "t", "table_generation": "g1", "destination": "s3://a", "definition": {"where": "x"}}


@pytest.fixture
def state(state_url):
    with State(state_url, timeout_s=20) as opened:
        yield opened


@pytest.fixture
def marks(state):
    return Marks(state)


@pytest.fixture
def leases(state):
    return Leases(state)


@pytest.fixture
def consumer(marks):
    return marks.register("a", **FACTS).consumer


@pytest.fixture
def fence(leases, consumer):
    return leases.acquire(consumer.lease, "me", 600).fence


def open_intent(marks, consumer, fence, *, lane="0", vnodes=(0, 1), after=0, upto=5, **more):
    return marks.open_intent(
        consumer, lane=lane, vnodes=vnodes, after=after, upto=upto, schema_id=0, fence=fence, **more
    )


# --- consumers -------------------------------------------------------------------------------------------------


def test_a_consumer_is_what_was_registered(marks):
    first = marks.register("a", **FACTS)
    assert first.is_new
    consumer = first.consumer
    assert {name: getattr(consumer, name) for name in FACTS} == FACTS
    assert len(consumer.generation) == 32 and not consumer.is_retired
    assert abs(consumer.created_s - time.time()) < 60
    assert marks.get("a") == consumer
    assert marks.all() == [consumer]
    assert marks.load(consumer) == {}
    assert hash(consumer) == hash(marks.get("a"))


def test_the_same_destination_and_table_keep_the_marks(marks, consumer, fence):
    marks.start(consumer, {0: 7}, fence)
    again = marks.register("a", **FACTS)
    assert (again.consumer, again.is_new, again.why) == (consumer, False, "")
    renamed = marks.register("a", **{**FACTS, "table": "renamed"})
    assert (renamed.consumer.generation, renamed.is_new) == (consumer.generation, False)
    assert marks.get("a").table == "renamed"
    changed = marks.register("a", **{**FACTS, "definition": {"where": "y"}})
    assert (changed.consumer.generation, changed.is_new) == (consumer.generation, False)
    assert "definition" in changed.why
    assert marks.get("a").definition == {"where": "y"}
    assert marks.load(marks.get("a")) == {0: 7}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"destination": "s3://b"}, "destination changed from s3://a to s3://b"),
        ({"table_generation": "g2"}, "table was recreated"),
        ({"kind": "view"}, "kind changed from sink to view"),
    ],
)
def test_another_destination_or_a_recreated_table_is_a_new_generation_without_marks(
    marks, leases, consumer, fence, change, why
):
    marks.start(consumer, {0: 7, 1: 7}, fence)
    open_intent(marks, consumer, fence, after=7, upto=9)
    new = marks.register("a", **FACTS | change)
    assert new.is_new and why in new.why and "1 open intent" in new.why
    assert new.consumer.generation != consumer.generation
    assert marks.load(new.consumer) == {} and marks.intents(new.consumer) == []
    assert marks.history("a") == [consumer, new.consumer]
    assert marks.load(consumer) == {0: 7, 1: 7}, "the old one stays on record"
    with refused(sl.Conflict, consumer="a", generation=consumer.generation, found=new.consumer.generation):
        marks.advance(consumer, {0: (7, 8)}, fence=fence)
    back = marks.register("a", **FACTS)
    assert back.is_new and marks.load(back.consumer) == {}, "what was unread meanwhile may be gone"
    assert [each.generation for each in marks.history("a")][2] == back.consumer.generation


def test_a_definition_does_not_change_while_an_intent_is_open(marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    intent = open_intent(marks, consumer, fence)
    with refused(sl.Conflict, consumer="a", intent=intent.id, lane="0"):
        marks.register("a", **FACTS | {"definition": {"where": "y"}})
    assert marks.get("a") == consumer
    assert marks.register("a", **FACTS).consumer == consumer, "the same one may be registered"
    marks.advance(consumer, {0: (0, 5), 1: (0, 5)}, fence=fence, intent=intent)
    assert not marks.register("a", **FACTS | {"definition": {"where": "y"}}).is_new


def test_an_intent_is_opened_only_for_the_definition_on_record(marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    now = marks.register("a", **FACTS | {"definition": {"where": "y"}}).consumer
    with refused(sl.Conflict, consumer="a"):
        open_intent(marks, consumer, fence)
    assert open_intent(marks, now, fence).definition == {"where": "y"}


def test_an_unknown_consumer_is_not_found_and_the_known_are_named(marks, consumer):
    for call in (marks.get, marks.retire):
        with refused(sl.NotFound, consumer="b") as caught:
            call("b")
        assert "a" in caught.value.hint
    with refused(sl.NotFound, consumer="a"):
        marks.load(replace(consumer, generation="0" * 32))


def test_a_retired_consumer_stays_retired_until_it_is_revived(marks, consumer, fence):
    marks.start(consumer, {0: 7}, fence)
    assert marks.retire("a").is_retired and marks.get("a").is_retired
    again = marks.register("a", **FACTS)
    assert not again.is_new and again.consumer.is_retired and "retired" in again.why
    with refused(sl.Conflict, consumer="a"):
        marks.advance(consumer, {0: (7, 8)}, fence=fence)
    revived = marks.register("a", revive=True, **FACTS)
    assert revived.is_new and not revived.consumer.is_retired and "retired" in revived.why
    assert marks.load(revived.consumer) == {}
    assert not marks.register("a", revive=True, **FACTS).is_new


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "a/b"}, {"name": "a b"}, {"name": None}, {"name": "x" * 129}, {"kind": ""},
        {"table": "a\0b"}, {"destination": "\ud800"}, {"destination": None}, {"table_generation": 7},
        {"definition": {"x": float("nan")}}, {"definition": {"x": object()}}, {"definition": []}, {"definition": None},
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused(marks, wrong):
    with refused(sl.Invalid):
        marks.register(**{"name": "a", **FACTS, **wrong})
    assert marks.all() == []


def test_odd_texts_come_back_as_they_were(marks):
    odd = {"destination": "ünï ' \" ; -- \\ % :x \n", "definition": {"ключ": ["\0", "\ud800", 1.5, None, {"": 2**70}]}}
    assert marks.register("a", **FACTS | odd).consumer.destination == odd["destination"]
    assert marks.get("a").definition == odd["definition"]
    assert marks.register("a", **FACTS | odd).why == ""


def test_a_definition_on_record_that_is_no_json_is_corrupt(state, marks, consumer):
    with state.transaction() as connection:
        connection.execute(update(module.generations).values(definition="{"))
    with refused(sl.Corrupt):
        marks.get("a")


# --- marks -----------------------------------------------------------------------------------------------------


def test_marks_start_once_and_move_forward_together(marks, consumer, fence):
    marks.start(consumer, {0: 3, 1: 0}, fence)
    with refused(sl.Conflict, consumer="a", vnode=1, found=0):
        marks.start(consumer, {2: 0, 1: 5}, fence)
    assert marks.load(consumer) == {0: 3, 1: 0}
    marks.advance(consumer, {0: (3, 9), 1: (0, 4)}, fence=fence)
    assert marks.load(consumer) == {0: 9, 1: 4}
    with refused(sl.Conflict, consumer="a", vnode=1, expected=0, found=4):
        marks.advance(consumer, {0: (9, 10), 1: (0, 10)}, fence=fence)
    with refused(sl.Conflict, consumer="a", vnode=7, expected=0):
        marks.advance(consumer, {0: (9, 10), 7: (0, 10)}, fence=fence)
    assert marks.load(consumer) == {0: 9, 1: 4}, "all or none"


def test_a_mark_never_goes_back_by_an_advance(marks, consumer, fence):
    marks.start(consumer, {0: 5}, fence)
    with refused(sl.Invalid, consumer="a", vnode=0, expected=5, to=4):
        marks.advance(consumer, {0: (5, 4)}, fence=fence)
    assert marks.load(consumer) == {0: 5}


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", None, 1 << 63])
def test_what_is_no_vnode_or_seq_is_refused(marks, consumer, fence, wrong):
    marks.start(consumer, {0: 0}, fence)
    for call in (
        lambda: marks.start(consumer, {1: wrong}, fence),
        lambda: marks.start(consumer, {wrong: 1}, fence),
        lambda: marks.advance(consumer, {0: (0, wrong)}, fence=fence),
        lambda: marks.advance(consumer, {0: (wrong, 1)}, fence=fence),
        lambda: marks.advance(consumer, {wrong: (0, 1)}, fence=fence),
        lambda: marks.reset(consumer, {0: wrong}),
        lambda: open_intent(marks, consumer, fence, vnodes=[wrong]),
        lambda: open_intent(marks, consumer, fence, upto=wrong),
    ):
        with refused(sl.Invalid):
            call()
    assert marks.load(consumer) == {0: 0}


def test_the_highest_seq_and_many_vnodes_are_kept(marks, consumer, fence):
    marks.start(consumer, dict.fromkeys(range(4096), 0), fence)
    marks.advance(consumer, dict.fromkeys(range(4096), (0, (1 << 63) - 1)), fence=fence)
    assert marks.load(consumer) == dict.fromkeys(range(4096), (1 << 63) - 1)
    marks.reset(consumer, dict.fromkeys(range(4096), 1))
    assert marks.slowest("g1", 4096) == 1


def test_an_owner_that_was_taken_over_changes_nothing(marks, leases, consumer):
    stalled = leases.acquire(consumer.lease, "stalled", 0.05)
    marks.start(consumer, {0: 0, 1: 0}, stalled.fence)
    intent = open_intent(marks, consumer, stalled.fence, vnodes=[0])
    time.sleep(0.1)
    taker = leases.acquire(consumer.lease, "taker", 600)
    for call in (
        lambda: marks.advance(consumer, {1: (0, 9)}, fence=stalled.fence),
        lambda: marks.advance(consumer, {0: (0, 5)}, fence=stalled.fence, intent=intent),
        lambda: marks.advance(consumer, {}, fence=stalled.fence, receipt={}),
        lambda: marks.start(consumer, {2: 0}, stalled.fence),
        lambda: marks.save_cuts(intent, [1], stalled.fence),
        lambda: open_intent(marks, consumer, stalled.fence, lane="1", vnodes=[1]),
    ):
        with refused(sl.Conflict, fence=stalled.fence, found=taker.fence, owner="taker") as caught:
            call()
        assert "taken over" in str(caught.value)
    assert marks.load(consumer) == {0: 0, 1: 0}
    assert marks.intents(consumer) == [intent]
    assert marks.receipts(consumer) == []
    marks.advance(consumer, {0: (0, 5)}, fence=taker.fence, intent=intent)
    assert marks.load(consumer) == {0: 5, 1: 0}


def test_without_a_lease_nothing_moves(marks, leases, consumer):
    for fence in (0, 1):
        with refused(sl.Conflict, fence=fence):
            marks.start(consumer, {0: 0}, fence)
    lease = leases.acquire(consumer.lease, "me", 600)
    leases.release(lease)
    with refused(sl.Conflict, fence=lease.fence):
        marks.start(consumer, {0: 0}, lease.fence)
    other = marks.register("b", **FACTS).consumer
    foreign = leases.acquire(other.lease, "me", 600)
    with refused(sl.Conflict):
        marks.start(consumer, {0: 0}, foreign.fence)
    assert marks.load(consumer) == {}


def test_a_reset_goes_back_and_gives_up_intents_only_by_force(marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5, 2: 9}, fence)
    marks.reset(consumer, {0: 2, 7: 1})
    assert marks.load(consumer) == {0: 2, 1: 5, 2: 9, 7: 1}
    intent = open_intent(marks, consumer, fence, vnodes=[1], after=5, upto=6)
    for seqs in ({0: 1}, None):
        with refused(sl.Conflict, consumer="a", intent=intent.id):
            marks.reset(consumer, seqs)
    marks.reset(consumer, {0: 1}, force=True)
    assert marks.load(consumer) == {0: 1, 1: 5, 2: 9, 7: 1}
    assert marks.intents(consumer) == []
    with refused(sl.Conflict, intent=intent.id):
        marks.advance(consumer, {1: (5, 6)}, fence=fence, intent=intent)
    marks.reset(consumer, None)
    assert marks.load(consumer) == {}
    marks.start(consumer, {0: 0}, fence)


def test_the_slowest_living_consumer_holds_the_log(marks, leases):
    assert marks.slowest("g1", 2) is None
    first, second = (marks.register(name, **FACTS).consumer for name in ("a", "b"))
    other = marks.register("c", **FACTS | {"table_generation": "g2"}).consumer
    fences = {each.name: leases.acquire(each.lease, "me", 600).fence for each in (first, second, other)}
    assert marks.slowest("g1", 2) == 0
    marks.start(first, {0: 8, 1: 6}, fences["a"])
    assert marks.slowest("g1", 2) == 0, "the other has not started"
    marks.start(second, {0: 9}, fences["b"])
    assert marks.slowest("g1", 2) == 0, "nor has all of it"
    marks.start(second, {1: 7}, fences["b"])
    assert marks.slowest("g1", 2) == 6
    assert marks.slowest("g1", 4) == 0, "vnodes that came later"
    assert marks.slowest("g1", 1) == 8, "vnodes that are no more"
    marks.retire("a")
    assert marks.slowest("g1", 2) == 7
    marks.register("b", **FACTS | {"destination": "s3://b"})
    assert marks.slowest("g1", 2) == 0, "a new generation has not started"
    marks.register("b", **FACTS | {"table_generation": "g2"})
    assert (marks.slowest("g1", 2), marks.slowest("g2", 2)) == (None, 0)
    with refused(sl.Invalid):
        marks.slowest("g1", 0)


# --- intents and receipts --------------------------------------------------------------------------------------


def test_an_intent_is_on_record_until_the_advance_that_closes_it(marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0, 2: 0}, fence)
    intent = open_intent(marks, consumer, fence, vnodes=[1, 0, 1], cuts=[{"rows": 5}])
    assert intent.vnodes == (0, 1) and intent.definition == FACTS["definition"]
    assert marks.intents(consumer) == [intent]
    halved = marks.save_cuts(intent, {"halves": [2, 3]}, fence)
    assert marks.intents(consumer) == [halved] == [replace(intent, cuts={"halves": [2, 3]})]
    for moves in ({0: (0, 5)}, {0: (0, 5), 1: (0, 4)}, {0: (0, 5), 1: (0, 5), 2: (0, 5)}, {}):
        with refused(sl.Invalid, intent=intent.id):
            marks.advance(consumer, moves, fence=fence, intent=intent)
    with refused(sl.Invalid, intent=intent.id):
        marks.advance(consumer, {0: (0, 5)}, fence=fence, intent=replace(intent, vnodes=(0,)))
    with refused(sl.Conflict, intent=intent.id):
        marks.advance(consumer, {0: (0, 5)}, fence=fence)
    marks.advance(consumer, {2: (0, 1)}, fence=fence)
    marks.advance(consumer, {0: (0, 5), 1: (0, 5)}, fence=fence, intent=intent, receipt={"rows": 5})
    assert marks.load(consumer) == {0: 5, 1: 5, 2: 1}
    assert marks.intents(consumer) == []
    for call in (
        lambda: marks.advance(consumer, {0: (5, 6), 1: (5, 6)}, fence=fence, intent=intent),
        lambda: marks.save_cuts(intent, [], fence),
        lambda: marks.save_cuts(replace(intent, generation="0" * 32), [], fence),
    ):
        with refused(sl.Conflict, intent=intent.id):
            call()


def test_a_lane_and_a_vnode_have_one_open_intent(marks, consumer, fence):
    marks.start(consumer, dict.fromkeys(range(4), 0), fence)
    first = open_intent(marks, consumer, fence, lane="0", vnodes=[0, 1])
    with refused(sl.Conflict, consumer="a", intent=first.id):
        open_intent(marks, consumer, fence, lane="0", vnodes=[2])
    with refused(sl.Conflict, consumer="a", intent=first.id):
        open_intent(marks, consumer, fence, lane="1", vnodes=[1, 2])
    second = open_intent(marks, consumer, fence, lane="1", vnodes=[2, 3], upto=9)
    assert marks.intents(consumer) == [first, second]
    marks.advance(consumer, {2: (0, 9), 3: (0, 9)}, fence=fence, intent=second)
    assert marks.intents(consumer) == [first], "lanes go on independently"


def test_an_intent_stands_on_its_marks(marks, consumer, fence):
    marks.start(consumer, {0: 3, 1: 4}, fence)
    with refused(sl.Conflict, consumer="a", vnode=1, expected=3, found=4):
        open_intent(marks, consumer, fence, after=3)
    with refused(sl.Conflict, consumer="a", vnode=2, expected=3):
        open_intent(marks, consumer, fence, vnodes=[0, 2], after=3)
    for after, upto, vnodes in ((3, 3, [0]), (3, 2, [0]), (3, 5, [])):
        with refused(sl.Invalid):
            open_intent(marks, consumer, fence, vnodes=vnodes, after=after, upto=upto)
    with refused(sl.Invalid):
        open_intent(marks, consumer, fence, vnodes=[0], after=3, cuts=object())
    assert marks.intents(consumer) == []


def test_the_last_receipts_are_kept_the_newest_first(marks, consumer, fence, monkeypatch):
    monkeypatch.setattr(module, "RECEIPTS", 5)
    other = marks.register("b", **FACTS).consumer
    marks.start(consumer, {0: 0}, fence)
    for number in range(8):
        marks.advance(consumer, {0: (number, number + 1)}, fence=fence, receipt={"rows": number})
    marks.advance(consumer, {}, fence=fence, receipt={"rows": 8, "error": "down"})
    assert [each.body["rows"] for each in marks.receipts(consumer)] == [8, 7, 6, 5, 4]
    assert [each.body for each in marks.receipts(consumer, 1)] == [{"rows": 8, "error": "down"}]
    times = [each.at_s for each in marks.receipts(consumer)]
    assert times == sorted(times, reverse=True) and abs(times[0] - time.time()) < 60
    assert marks.receipts(other) == []
    with refused(sl.Conflict):
        marks.advance(consumer, {0: (0, 1)}, fence=fence, receipt={"rows": 9})
    assert marks.receipts(consumer, 1)[0].body["rows"] == 8, "no receipt without its advance"


# --- against a model -------------------------------------------------------------------------------------------


class Model:
    """One consumer in the simplest words. Each method does the thing, or says which kind of error is due."""

    def __init__(self):
        self.identity, self.definition = ("s3://a", "g1"), 0
        self.marks, self.intents, self.receipts, self.is_retired = {}, {}, [], False

    def covered(self, vnodes):
        return any(set(vnodes) & set(vs) for vs, _, _, _ in self.intents.values())

    def register(self, identity, definition):
        if identity != self.identity:
            self.__init__()
            self.identity, self.definition = identity, definition
        elif definition != self.definition:
            if self.intents:
                return sl.Conflict
            self.definition = definition

    def start(self, seqs):
        if self.is_retired or seqs.keys() & self.marks.keys():
            return sl.Conflict
        self.marks |= seqs

    def advance(self, moves, lane, receipt):
        if any(to < expected for expected, to in moves.values()):
            return sl.Invalid
        if self.is_retired or any(self.marks.get(vnode) != expected for vnode, (expected, _) in moves.items()):
            return sl.Conflict
        if lane is not None:
            vnodes, after, upto, _ = self.intents[lane]
            if moves != dict.fromkeys(vnodes, (after, upto)):
                return sl.Invalid
            del self.intents[lane]
        elif self.covered(moves):
            return sl.Conflict
        self.marks |= {vnode: to for vnode, (_, to) in moves.items()}
        self.receipts = [receipt, *self.receipts]

    def open(self, lane, vnodes, after, upto, cuts):
        if not vnodes or after >= upto:
            return sl.Invalid
        if self.is_retired or lane in self.intents or self.covered(vnodes):
            return sl.Conflict
        if any(self.marks.get(vnode) != after for vnode in vnodes):
            return sl.Conflict
        self.intents[lane] = (tuple(sorted(vnodes)), after, upto, cuts)

    def save_cuts(self, lane, cuts):
        if self.is_retired:
            return sl.Conflict
        self.intents[lane] = (*self.intents[lane][:3], cuts)

    def reset(self, seqs, force):
        if self.is_retired or (self.intents and not force):
            return sl.Conflict
        self.intents = {}
        self.marks = self.marks | seqs if seqs is not None else {}

    def retire(self):
        self.is_retired = True

    def slowest(self, vnodes):
        if self.is_retired or self.identity[1] != "g1":
            return None
        return min(self.marks.get(vnode, 0) for vnode in range(vnodes))


VNODES, SEQS, LANES, BIT = st.integers(0, 2), st.integers(0, 4), st.sampled_from("xy"), st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("start"), st.dictionaries(VNODES, SEQS, max_size=3)),
    st.tuples(st.just("move"), st.sets(VNODES), st.integers(-1, 3), st.booleans()),
    st.tuples(st.just("open"), LANES, st.sets(VNODES), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("open"), LANES, st.sets(VNODES), st.just(None), st.integers(1, 3)),
    st.tuples(st.just("close"), LANES, st.booleans()),
    st.tuples(st.just("cuts"), LANES, st.integers(0, 9)),
    st.tuples(st.just("reset"), st.none() | st.dictionaries(VNODES, SEQS, max_size=2), st.booleans()),
    st.tuples(st.just("register"), st.sampled_from(["s3://a"] * 4 + ["s3://b"]), st.sampled_from("1112"), BIT),
    st.tuples(st.just("take over"), st.booleans()),
    st.tuples(st.just("retire"), st.integers(0, 3)),
)  # fmt: skip


class Machine:
    """A model and a consumer of a state, given the same calls."""

    def __init__(self, marks, leases, name):
        self.marks, self.leases, self.name, self.model = marks, leases, name, Model()
        self.register(*self.model.identity, 0)
        self.generations = 1
        self.fence = leases.acquire(self.consumer.lease, "me", 600).fence
        self.count = 0

    def register(self, destination, table_generation, definition):
        facts = {"kind": "sink", "table": "t", "definition": {"is": definition}}
        # Consumers of other runs share the state, so the table is this run's own.
        self.registered = self.marks.register(
            self.name, destination=destination, table_generation=f"{self.name}/{table_generation}", **facts
        )
        self.consumer = self.registered.consumer

    def both(self, due, call):
        """The call fails as the model says, or does what it did."""
        if due is None:
            return call()
        with refused(due):
            call()
        return None

    def step(self, verb, *words):
        model, marks, consumer, fence = self.model, self.marks, self.consumer, self.fence
        self.count += 1
        receipt = {"n": self.count}
        if verb == "start":
            self.both(model.start(*words), lambda: marks.start(consumer, *words, fence))
        elif verb == "move":
            vnodes, by, is_right = words
            expected = {vnode: model.marks.get(vnode, 0) + (not is_right) for vnode in vnodes}
            moves = {vnode: (seq, max(0, seq + by)) for vnode, seq in expected.items()}
            due = model.advance(moves, None, receipt)
            self.both(due, lambda: marks.advance(consumer, moves, fence=fence, receipt=receipt))
        elif verb == "open":
            lane, vnodes, after, more = words
            after = model.marks.get(min(vnodes, default=0), 0) if after is None else after
            due = model.open(lane, vnodes, after, after + more, self.count)
            self.both(
                due,
                lambda: open_intent(
                    marks, consumer, fence, lane=lane, vnodes=vnodes, after=after, upto=after + more, cuts=self.count
                ),
            )
        elif verb == "close" and words[0] in model.intents:
            lane, is_whole = words
            (intent,) = (each for each in marks.intents(consumer) if each.lane == lane)
            moves = dict.fromkeys(intent.vnodes[not is_whole :], (intent.after, intent.upto))
            due = model.advance(moves, lane, receipt)
            self.both(due, lambda: marks.advance(consumer, moves, fence=fence, intent=intent, receipt=receipt))
        elif verb == "cuts" and words[0] in model.intents:
            (intent,) = (each for each in marks.intents(consumer) if each.lane == words[0])
            self.both(model.save_cuts(*words), lambda: marks.save_cuts(intent, words[1], fence))
        elif verb == "reset":
            self.both(model.reset(*words), lambda: marks.reset(consumer, words[0], force=words[1]))
        elif verb == "register":
            destination, table, definition = words
            identity = (destination, f"g{table}")
            is_new = identity != model.identity
            due = model.register(identity, definition)
            self.both(due, lambda: self.register(*identity, definition))
            if due is None:
                assert self.registered.is_new == is_new
                self.generations += is_new
        elif verb == "take over":
            self.fence = self.leases.acquire(consumer.lease, "me", 600).fence
            if words[0]:
                with refused(sl.Conflict):
                    marks.advance(consumer, {}, fence=fence, receipt=receipt)
        elif verb == "retire" and words[0] == 0:
            model.retire()
            self.consumer = marks.retire(self.name)

    def compare(self):
        model, marks, consumer = self.model, self.marks, self.consumer
        found = marks.load(consumer)
        assert found == model.marks
        intents = {each.lane: each for each in marks.intents(consumer)}
        assert {lane: (i.vnodes, i.after, i.upto, i.cuts) for lane, i in intents.items()} == model.intents
        for intent in intents.values():
            assert intent.definition == {"is": model.definition}
            assert {found[vnode] for vnode in intent.vnodes} == {intent.after}, "an intent stands on its marks"
        covered = [vnode for intent in intents.values() for vnode in intent.vnodes]
        assert len(covered) == len(set(covered))
        assert [each.body for each in marks.receipts(consumer)] == model.receipts
        assert marks.slowest(f"{self.name}/g1", 3) == model.slowest(3)
        assert marks.get(self.name) == consumer
        assert len(marks.history(self.name)) == self.generations


def test_marks_and_intents_do_what_a_plain_model_does(marks, leases):
    names = iter(range(10_000))

    @settings(max_examples=30)
    @given(st.lists(STEPS, max_size=14))
    def run(steps):
        machine = Machine(marks, leases, f"model-{next(names)}")
        for step in steps:
            machine.step(*step)
            machine.compare()

    run()


# --- races -----------------------------------------------------------------------------------------------------


def test_racing_threads_lose_no_advance(marks, leases, consumer, fence):
    marks.start(consumer, dict.fromkeys(range(4), 0), fence)

    def work(number):
        chance, done = random.Random(number), 0
        for _ in range(12):
            vnodes = chance.sample(range(4), 2)
            seqs = marks.load(consumer)
            try:
                marks.advance(
                    consumer,
                    {vnode: (seqs[vnode], seqs[vnode] + 1) for vnode in vnodes},
                    fence=fence,
                    receipt={"worker": number},
                )
                done += 2
            except sl.Conflict as conflict:
                assert conflict.fields["found"] > conflict.fields["expected"]
        return done

    with ThreadPoolExecutor(6) as pool:
        done = sum(pool.map(work, range(6)))
    assert sum(marks.load(consumer).values()) == done > 0
    assert len(marks.receipts(consumer)) == done // 2


ADVANCE = """
import random
from strandline.errors import Conflict
from strandline.marks import Marks
from strandline.state import State
def work(number, url, fence):
    chance, done, lost = random.Random(number), 0, 0
    with State(url) as state:
        marks = Marks(state)
        consumer = marks.get("a")
        while done < 20:
            seqs = marks.load(consumer)
            vnodes = chance.sample(range(3), 2)
            try:
                moves = {vnode: (seqs[vnode], seqs[vnode] + 1) for vnode in vnodes}
                marks.advance(consumer, moves, fence=int(fence))
                done += 2
            except Conflict:
                lost += 1
    return done, lost
"""


def test_racing_processes_lose_no_advance(marks, consumer, fence, state_url, in_processes):
    marks.start(consumer, dict.fromkeys(range(3), 0), fence)
    answers = [answer for _, answer in in_processes(ADVANCE, 3, state_url, str(fence))]
    assert sum(marks.load(consumer).values()) == sum(done for done, _ in answers) == 60


REGISTER = """
from strandline.marks import Marks
from strandline.state import State
def work(number, url):
    facts = dict(kind="sink", table="t", table_generation="g1", definition={})
    with State(url) as state:
        marks = Marks(state)
        same = marks.register("same", destination="s3://a", **facts)
        other = marks.register("other", destination=f"s3://{number}", **facts)
        return same.is_new, same.consumer.generation, other.is_new, other.consumer.generation
"""


def test_racing_processes_register_one_consumer_once(state_url, in_processes):
    answers = [answer for _, answer in in_processes(REGISTER, 4, state_url)]
    assert sum(is_new for is_new, _, _, _ in answers) == 1
    assert len({generation for _, generation, _, _ in answers}) == 1
    with State(state_url) as state:
        marks = Marks(state)
        assert [each.name for each in marks.all()] == ["other", "same"]
        assert marks.get("same").generation == answers[0][1]
        history = [each.generation for each in marks.history("other")]
        assert sorted(history) == sorted(generation for _, _, _, generation in answers)
        assert marks.get("other").generation == history[-1]


def test_racing_threads_open_one_intent(marks, consumer, fence):
    marks.start(consumer, dict.fromkeys(range(4), 0), fence)

    def work(number):
        try:
            return open_intent(marks, consumer, fence, lane=str(number), vnodes=[number % 3, 3])
        except sl.Conflict:
            return None

    with ThreadPoolExecutor(6) as pool:
        opened = [intent for intent in pool.map(work, range(12)) if intent]
    assert marks.intents(consumer) == opened and len(opened) == 1


def test_a_definition_that_races_an_intent_leaves_them_equal(marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    for turn in range(8):
        now = marks.get("a")

        def change(turn=turn):
            try:
                return marks.register("a", **FACTS | {"definition": {"turn": turn}})
            except sl.Conflict:
                return None

        def begin(now=now):
            try:
                return open_intent(marks, now, fence)
            except sl.Conflict:
                return None

        with ThreadPoolExecutor(2) as pool:
            changed, opened = pool.submit(change), pool.submit(begin)
        assert (changed.result() is None) != (opened.result() is None)
        for intent in marks.intents(now):
            assert intent.definition == marks.get("a").definition
        marks.reset(now, {0: 0, 1: 0}, force=True)


# --- crashes ---------------------------------------------------------------------------------------------------

SCENARIO = """
from strandline import crash
from strandline.leases import Leases
from strandline.marks import Marks
from strandline.state import State
FACTS = dict(kind="sink", table="t", table_generation="g1", destination="s3://a")
def scenario(url):
    state = State(url)
    marks, leases = Marks(state), Leases(state)
    state.bind("lake")
    consumer = marks.register("a", definition={"n": 1}, **FACTS).consumer
    lease = leases.acquire(consumer.lease, "doomed", 600)
    fence = lease.fence
    marks.start(consumer, {0: 0, 1: 0, 2: 0}, fence)
    intent = marks.open_intent(
        consumer, lane="x", vnodes=[0, 1], after=0, upto=5, schema_id=0, cuts=[1], fence=fence)
    intent = marks.save_cuts(intent, [1, 2], fence)
    marks.advance(consumer, {0: (0, 5), 1: (0, 5)}, fence=fence, intent=intent, receipt={"rows": 1})
    marks.advance(consumer, {2: (0, 7)}, fence=fence, receipt={"rows": 2})
    lease = leases.renew(lease, 600)
    consumer = marks.register("a", definition={"n": 2}, **FACTS).consumer
    marks.open_intent(consumer, lane="y", vnodes=[0], after=5, upto=6, schema_id=0, fence=fence)
    marks.reset(consumer, {0: 3, 1: 9}, force=True)
    state.raise_epoch(4)
    marks.register("a", definition={"n": 2}, **{**FACTS, "destination": "s3://b"})
    marks.retire("a")
    leases.release(lease)
def work(number, *arguments):
    crash._ARMED, url = arguments[2 * number : 2 * number + 2]
    scenario(url)
"""

VOLATILE = {"generation", "id", "created_s", "at_s", "since_s", "expires_s"}


def contents(url):
    """Every row of a state, without ids and times; read without the code that wrote it."""
    engine = create_engine(_checked(url))
    with engine.connect() as connection:
        found = {}
        for name in sorted(inspect(connection).get_table_names()):
            rows = connection.execute(text(f"SELECT * FROM {name}")).mappings().all()
            found[name] = sorted(json.dumps({k: v for k, v in row.items() if k not in VOLATILE}) for row in rows)
    engine.dispose()
    return found


def test_a_process_killed_around_a_commit_leaves_the_state_before_or_after_it(new_state_url, in_processes, monkeypatch):
    alive = new_state_url()
    expected = [contents(alive)]

    def watch(name):
        if name == "state.committed":
            expected.append(contents(alive))

    names = {}
    exec(SCENARIO, names)
    with monkeypatch.context() as patch:
        patch.setattr(states, "crash_point", watch)
        names["scenario"](alive)
    commits = len(expected) - 1
    assert commits >= 17
    # Each commit's kill before it; after it only some, since that says little but that a commit is a commit.
    kills = [(f"state.before_commit:{number}", new_state_url(), number - 1) for number in range(1, commits + 1)]
    kills += [(f"state.committed:{number}", new_state_url(), number) for number in range(1, commits + 1, 5)]
    arguments = [word for point, url, _ in kills for word in (point, url)]
    answers = in_processes(SCENARIO, len(kills), *arguments, is_sound=False)
    assert [code for code, _ in answers] == [-9] * len(kills)
    for point, url, number in kills:
        assert contents(url) == expected[number], point


SEND = """
import sys
from strandline.leases import Leases
from strandline.marks import Marks
from strandline.state import State
state = State(sys.argv[1])
marks = Marks(state)
consumer = marks.get("a")
fence = Leases(state).acquire(consumer.lease, "doomed", 0.05).fence
intent = marks.open_intent(consumer, lane="0", vnodes=[0], after=0, upto=5, schema_id=0, cuts=[2, 5], fence=fence)
with open(sys.argv[2], "a") as destination:
    destination.write("effect\\n")
marks.advance(consumer, {0: (0, 5)}, fence=fence, intent=intent, receipt={"rows": 5})
"""


@pytest.mark.parametrize(
    ("crash", "effects", "mark"),
    [("marks.intent_saved", 0, 0), ("state.before_commit:3", 1, 0), ("marks.advanced", 1, 5)],
)
def test_after_a_crash_the_next_owner_finds_what_was_under_way(
    marks, leases, consumer, state_url, tmp_path, crash, effects, mark
):
    lease = leases.acquire(consumer.lease, "first", 600)
    marks.start(consumer, {0: 0}, lease.fence)
    leases.release(lease)
    destination = tmp_path / "destination"
    destination.touch()
    assert python(SEND, state_url, str(destination), crash=crash).returncode == -9
    assert destination.read_text().count("effect") == effects
    assert marks.load(consumer) == {0: mark}
    assert [receipt.body for receipt in marks.receipts(consumer)] == [{"rows": 5}] * (mark == 5)
    time.sleep(0.06)
    next_owner = leases.acquire(consumer.lease, "next", 600)
    intents = marks.intents(consumer)
    assert [(each.after, each.upto, each.cuts) for each in intents] == [(0, 5, [2, 5])] * (mark == 0)
    for intent in intents:
        marks.advance(consumer, {0: (0, 5)}, fence=next_owner.fence, intent=intent)
    assert marks.load(consumer) == {0: 5} and marks.intents(consumer) == []
