"""Marks, intents and receipts: forward only, all or none, under the newest fence, also across a kill -9."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event, inspect, text

import consuming
import strandline as sl
from consuming import FACTS, foresee, open_intent
from strandline.state import database as states
from strandline.state import receipts
from strandline.state.address import parse_url
from strandline.state.marks import ConsumerState
from support import python, refused

state, registry, marks, leases = consuming.state, consuming.registry, consuming.marks, consuming.leases
consumer, fence = consuming.consumer, consuming.fence


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
    assert marks.slowest_consumers("g1", 4096) == [((1 << 63) - 1, "a")]


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


def test_without_a_lease_nothing_moves(registry, marks, leases, consumer):
    for fence in (0, 1):
        with refused(sl.Conflict, fence=fence):
            marks.start(consumer, {0: 0}, fence)
    lease = leases.acquire(consumer.lease, "me", 600)
    leases.release(lease)
    with refused(sl.Conflict, fence=lease.fence):
        marks.start(consumer, {0: 0}, lease.fence)
    other = registry.register("b", **FACTS).consumer
    foreign = leases.acquire(other.lease, "me", 600)
    with refused(sl.Conflict):
        marks.start(consumer, {0: 0}, foreign.fence)
    assert marks.load(consumer) == {}


def test_the_slowest_living_consumer_holds_the_log(registry, marks, leases):
    assert marks.slowest_consumers("g1", 2) == []
    first, second = (registry.register(name, **FACTS).consumer for name in ("a", "b"))
    other = registry.register("c", **FACTS | {"table_generation": "g2"}).consumer
    fences = {each.name: leases.acquire(each.lease, "me", 600).fence for each in (first, second, other)}
    assert marks.slowest_consumers("g1", 2) == [(0, "a"), (0, "b")]
    marks.start(first, {0: 8, 1: 6}, fences["a"])
    assert marks.slowest_consumers("g1", 2) == [(0, "b"), (6, "a")], "the other has not started"
    marks.start(second, {0: 9}, fences["b"])
    assert marks.slowest_consumers("g1", 2) == [(0, "b"), (6, "a")], "nor has all of it"
    marks.start(second, {1: 7}, fences["b"])
    assert marks.slowest_consumers("g1", 2) == [(6, "a"), (7, "b")]
    assert marks.slowest_consumers("g1", 4) == [(0, "a"), (0, "b")], "vnodes that came later"
    assert marks.slowest_consumers("g1", 1) == [(8, "a"), (9, "b")], "vnodes that are no more"
    registry.retire("a")
    assert marks.slowest_consumers("g1", 2) == [(7, "b")]
    revived = registry.register("a", revive=True, **FACTS).consumer
    assert marks.slowest_consumers("g1", 2) == [(0, "a"), (7, "b")], "a new life has not started"
    marks.start(revived, {0: 8, 1: 6}, fences["a"])
    assert marks.slowest_consumers("g1", 2) == [(6, "a"), (7, "b")]
    registry.register("b", **FACTS | {"destination": "s3://b"})
    assert marks.slowest_consumers("g1", 2) == [(0, "b"), (6, "a")], "a new generation has not started"
    registry.register("b", **FACTS | {"table_generation": "g2"})
    assert marks.slowest_consumers("g1", 2) == [(6, "a")]
    assert marks.slowest_consumers("g2", 2) == [(0, "b"), (0, "c")]
    with refused(sl.Invalid):
        marks.slowest_consumers("g1", 0)


def test_a_retired_consumer_moves_no_mark_and_keeps_what_it_had_on_record(registry, marks, consumer, fence):
    marks.start(consumer, {0: 5, 1: 5}, fence)
    intent = open_intent(marks, consumer, fence, vnodes=[0], after=5, upto=6)
    retired = registry.retire("a")
    for call in (
        lambda: marks.advance(retired, {1: (5, 6)}, fence=fence),
        lambda: marks.advance(retired, {0: (5, 6)}, fence=fence, intent=intent),
        lambda: marks.start(retired, {2: 0}, fence),
        lambda: marks.save_cuts(intent, [1], fence),
        lambda: open_intent(marks, retired, fence, lane="1", vnodes=[1], after=5, upto=6),
    ):
        with refused(sl.Conflict, consumer="a", generation=retired.generation, found=retired.generation):
            call()
    revived = registry.register("a", revive=True, **FACTS)
    assert revived.is_new and "a batch begun there" in revived.why
    assert marks.load(revived.consumer) == {} and marks.intents(revived.consumer) == []
    assert marks.load(retired) == {0: 5, 1: 5} and marks.intents(retired) == [intent]
    marks.start(revived.consumer, {0: 9}, fence)
    marks.advance(revived.consumer, {0: (9, 10)}, fence=fence)
    assert marks.load(revived.consumer) == {0: 10}


def test_many_consumers_are_read_by_one_query(state, registry, marks, leases):
    found = [registry.register(f"c{number}", **FACTS).consumer for number in range(20)]
    for number, consumer in enumerate(found[1:], 1):
        fence = leases.acquire(consumer.lease, "me", 600).fence
        marks.start(consumer, dict.fromkeys(range(number), number), fence)
        for turn in range(2):
            marks.advance(consumer, {}, fence=fence, receipt={"rows": number, "turn": turn})
        if number % 2:
            open_intent(marks, consumer, fence, lane="x", vnodes=[0], after=number, upto=99)
        if number == 3:
            open_intent(marks, consumer, fence, lane="y", vnodes=[1], after=number, upto=99)
    retired = registry.retire("c5")
    statements = []
    event.listen(state._engine, "before_cursor_execute", lambda *words: statements.append(words[2]))
    standings, receipts = marks.consumer_states(), marks.last_receipts(found)
    assert len([each for each in statements if each.startswith("SELECT")]) == 5
    now = [retired if each.name == "c5" else each for each in found]
    assert standings == {each.name: ConsumerState(each, marks.load(each), tuple(marks.intents(each))) for each in now}
    assert standings["c0"].marks == {} and standings["c5"].marks == dict.fromkeys(range(5), 5)
    assert [intent.lane for intent in standings["c3"].intents] == ["x", "y"]
    assert receipts == {each.generation: marks.receipts(each, 1)[0] for each in found[1:]}
    assert marks.consumer_states("c3") == {"c3": standings["c3"]} and marks.consumer_states("nobody") == {}
    assert marks.last_receipts([]) == {}


# --- intents and receipts --------------------------------------------------------------------------------------


def test_the_last_receipts_are_kept_the_newest_first(registry, marks, consumer, fence, monkeypatch):
    monkeypatch.setattr(receipts, "RECEIPTS", 5)
    other = registry.register("b", **FACTS).consumer
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
        self.identity, self.definition, self.begun = ("s3://a", "g1"), 0, {}
        self.marks, self.intents, self.receipts, self.is_retired = {}, {}, [], False

    def covered(self, vnodes):
        return any(set(vnodes) & set(vs) for vs, _, _, _ in self.intents.values())

    def register(self, identity, definition, revive):
        if self.is_retired and not revive:
            return
        if identity != self.identity or (revive and self.is_retired):
            self.__init__()
            self.identity, self.definition = identity, definition
        else:
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
        self.intents[lane], self.begun[lane] = (tuple(sorted(vnodes)), after, upto, cuts), self.definition

    def save_cuts(self, lane, cuts):
        if self.is_retired:
            return sl.Conflict
        self.intents[lane] = (*self.intents[lane][:3], cuts)

    def slowest_consumers(self, name, vnodes):
        if self.is_retired or self.identity[1] != "g1":
            return []
        return [(min(self.marks.get(vnode, 0) for vnode in range(vnodes)), name)]


VNODES, SEQS, LANES, BIT = st.integers(0, 2), st.integers(0, 4), st.sampled_from("xy"), st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("start"), st.dictionaries(VNODES, SEQS, max_size=3)),
    st.tuples(st.just("move"), st.sets(VNODES), st.integers(-1, 3), st.booleans()),
    st.tuples(st.just("open"), LANES, st.sets(VNODES), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("open"), LANES, st.sets(VNODES), st.just(None), st.integers(1, 3)),
    st.tuples(st.just("close"), LANES, st.booleans()),
    st.tuples(st.just("cuts"), LANES, st.integers(0, 9)),
    st.tuples(
        st.just("register"), st.sampled_from(["s3://a"] * 4 + ["s3://b"]), st.sampled_from(["g1"] * 3 + ["g2"]), BIT,
        st.booleans(),
    ),
    st.tuples(st.just("take over"), st.booleans()),
    st.tuples(st.just("retire"), st.integers(0, 3)),
    st.tuples(st.just("revive")),
)  # fmt: skip


class Machine:
    """A model and a consumer of a state, given the same calls."""

    def __init__(self, registry, marks, leases, name):
        self.registry, self.marks, self.leases, self.name, self.model = registry, marks, leases, name, Model()
        self.generations = 0
        self.register(None, *self.model.identity, 0, False)
        self.fence = leases.acquire(self.consumer.lease, "me", 600).fence
        self.count = 0

    def register(self, due, destination, table_generation, definition, revive):
        """Register, which is foreseen to do what it does, or to fail as the model says."""
        facts = {"kind": "sink", "table": "t", "destination": destination, "definition": {"is": definition}}
        # Consumers of other runs share the state, so the table is this run's own.
        told = {**facts, "table_generation": f"{self.name}/{table_generation}", "revive": revive}
        foreseen = self.both(due, lambda: foresee(self.registry, self.marks, self.name, **told))
        registered = self.both(due, lambda: self.registry.register(self.name, **told))
        if due is None:
            self.consumer = registered.consumer
            self.generations += registered.is_new
            is_new, now = registered.is_new, self.consumer
            made = {"generation": now.generation, "created_s": now.created_s} if is_new else {}
            assert replace(foreseen, consumer=replace(foreseen.consumer, **made)) == registered
        return registered

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
        elif verb == "register":
            destination, table_generation, definition, revive = words
            identity = (destination, table_generation)
            is_new = revive if model.is_retired else identity != model.identity
            due = model.register(identity, definition, revive)
            registered = self.register(due, *identity, definition, revive)
            assert due is not None or registered.is_new == is_new
        elif verb == "take over":
            self.fence = self.leases.acquire(consumer.lease, "me", 600).fence
            if words[0]:
                with refused(sl.Conflict):
                    marks.advance(consumer, {}, fence=fence, receipt=receipt)
        elif verb == "retire" and words[0] == 0:
            model.is_retired = True
            self.consumer = self.registry.retire(self.name)
        elif verb == "revive":
            self.step("register", *model.identity, model.definition, True)

    def compare(self):
        model, marks, consumer = self.model, self.marks, self.consumer
        found = marks.load(consumer)
        assert found == model.marks
        intents = {each.lane: each for each in marks.intents(consumer)}
        assert {lane: (i.vnodes, i.after, i.upto, i.cuts) for lane, i in intents.items()} == model.intents
        for lane, intent in intents.items():
            assert intent.definition == {"is": model.begun[lane]}
            assert {found[vnode] for vnode in intent.vnodes} == {intent.after}, "an intent stands on its marks"
        covered = [vnode for intent in intents.values() for vnode in intent.vnodes]
        assert len(covered) == len(set(covered))
        assert [each.body for each in marks.receipts(consumer)] == model.receipts
        assert marks.slowest_consumers(f"{self.name}/g1", 3) == model.slowest_consumers(self.name, 3)
        assert self.registry.get(self.name) == consumer
        assert len(self.registry.history(self.name)) == self.generations


def test_marks_and_intents_do_what_a_plain_model_does(registry, marks, leases):
    names = iter(range(10_000))

    @settings(max_examples=30)
    @given(st.lists(STEPS, max_size=14))
    def run(steps):
        machine = Machine(registry, marks, leases, f"model-{next(names)}")
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
from strandline.state.marks import Marks
from strandline.state.consumers import Registry
from strandline.state.database import Database
def work(number, url, fence):
    chance, done, lost = random.Random(number), 0, 0
    with Database(url) as state:
        marks = Marks(state)
        consumer = Registry(state).get("a")
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


# --- crashes ---------------------------------------------------------------------------------------------------

OPEN_INTENT = """
from strandline.crash import crash_point
from strandline.state.intents import IntentDraft
from strandline.state.marks import begin_intent
def open_intent(state, consumer, fence, *facts):
    with state.transaction() as connection:
        intent = begin_intent(connection, consumer, IntentDraft(*facts), fence)
    crash_point("marks.intent_saved")
    return intent
"""

SCENARIO = (
    OPEN_INTENT
    + """
from strandline import crash
from strandline.state.leases import Leases
from strandline.state.marks import Marks
from strandline.state.consumers import Registry
from strandline.state.database import Database
FACTS = dict(kind="sink", table="t", table_generation="g1", destination="s3://a")
def scenario(url):
    state = Database(url)
    registry, marks, leases = Registry(state), Marks(state), Leases(state)
    state.bind("lake")
    consumer = registry.register("a", definition={"n": 1}, **FACTS).consumer
    lease = leases.acquire(consumer.lease, "doomed", 600)
    fence = lease.fence
    marks.start(consumer, {0: 0, 1: 0, 2: 0}, fence)
    intent = open_intent(state, consumer, fence, "x", [0, 1], 0, 5, 0, [1])
    intent = marks.save_cuts(intent, [1, 2], fence)
    marks.advance(consumer, {0: (0, 5), 1: (0, 5)}, fence=fence, intent=intent, receipt={"rows": 1})
    marks.advance(consumer, {2: (0, 7)}, fence=fence, receipt={"rows": 2})
    lease = leases.renew(lease, 600)
    consumer = registry.register("a", definition={"n": 2}, **FACTS).consumer
    open_intent(state, consumer, fence, "y", [0], 5, 6, 0)
    registry.retire("a")
    consumer = registry.register("a", definition={"n": 2}, revive=True, **FACTS).consumer
    marks.start(consumer, {0: 3, 1: 9}, fence)
    registry.register("a", definition={"n": 2}, **{**FACTS, "destination": "s3://b"})
    registry.retire("a")
    leases.release(lease)
def work(number, *arguments):
    crash._ARMED, url = arguments[2 * number : 2 * number + 2]
    scenario(url)
"""
)

VOLATILE = {"generation", "id", "created_s", "at_s", "since_s", "expires_s"}


def contents(url):
    """Every row of a state, without ids and times; read without the code that wrote it."""
    engine = create_engine(parse_url(url))
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


SEND = (
    OPEN_INTENT
    + """
import sys
from strandline.state.leases import Leases
from strandline.state.marks import Marks
from strandline.state.consumers import Registry
from strandline.state.database import Database
state = Database(sys.argv[1])
marks = Marks(state)
consumer = Registry(state).get("a")
fence = Leases(state).acquire(consumer.lease, "doomed", 0.05).fence
intent = open_intent(state, consumer, fence, "0", [0], 0, 5, 0, [2, 5])
with open(sys.argv[2], "a") as destination:
    destination.write("effect\\n")
marks.advance(consumer, {0: (0, 5)}, fence=fence, intent=intent, receipt={"rows": 5})
"""
)


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
