"""Intents: on record from before the first row is sent until the advance that closes them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import consuming
import strandline as sl
from consuming import FACTS, open_intent
from strandline.state.intents import IntentDraft
from support import refused

state, registry, marks, leases = consuming.state, consuming.registry, consuming.marks, consuming.leases
consumer, fence = consuming.consumer, consuming.fence


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


def test_an_intent_that_races_a_definition_has_the_one_that_its_beginner_knew(registry, marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    for turn in range(8):
        now, at = registry.get("a"), marks.load(consumer)[0]

        def change(turn=turn):
            return registry.register("a", **FACTS | {"definition": {"turn": turn}})

        def begin(now=now, at=at):
            try:
                return open_intent(marks, now, fence, after=at, upto=at + 1)
            except sl.Conflict:
                return None

        with ThreadPoolExecutor(2) as pool:
            changed, opened = pool.submit(change), pool.submit(begin)
        assert registry.get("a") == changed.result().consumer
        assert marks.intents(now) == [intent for intent in [opened.result()] if intent is not None]
        for intent in marks.intents(now):
            assert intent.definition == now.definition
            marks.advance(now, {0: (at, at + 1), 1: (at, at + 1)}, fence=fence, intent=intent)


def test_an_open_intent_keeps_the_definition_that_it_was_begun_with(registry, marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    intent = open_intent(marks, consumer, fence)
    changed = registry.register("a", **FACTS | {"definition": {"where": "y"}})
    assert not changed.is_new and "definition changed; " in changed.why
    assert registry.get("a").definition == {"where": "y"} != intent.definition
    assert marks.intents(consumer) == [intent]
    marks.advance(changed.consumer, {0: (0, 5), 1: (0, 5)}, fence=fence, intent=intent)
    assert open_intent(marks, changed.consumer, fence, after=5, upto=6).definition == {"where": "y"}


def test_an_intent_is_opened_only_for_the_definition_on_record(registry, marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    now = registry.register("a", **FACTS | {"definition": {"where": "y"}}).consumer
    with refused(sl.Conflict, consumer="a"):
        open_intent(marks, consumer, fence)
    assert open_intent(marks, now, fence).definition == {"where": "y"}


def draft(**change):
    return replace(IntentDraft("0", (2, 0, 2), 3, 5, 0), **change)


def test_the_vnodes_of_a_draft_are_kept_once_each_and_in_order():
    assert draft().check_vnodes() == (0, 2)


@pytest.mark.parametrize(
    "change",
    [{"vnodes": ()}, {"after": 5}, {"upto": 2}, {"after": -1}, {"vnodes": (-1,)}, {"schema_id": -1}, {"lane": "a\0"}],
    ids=repr,
)
def test_a_draft_of_nothing_or_of_what_cannot_be_kept_is_refused(change):
    with refused(sl.Invalid):
        draft(**change).check_vnodes()
