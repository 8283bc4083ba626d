"""Consumers: which life of a name is the current one, and why; one at a time, also for racing processes."""

import time
from dataclasses import replace

import pytest
from sqlalchemy import update

import consuming
import strandline as sl
from consuming import FACTS, foresee, open_intent
from strandline.state import consumers as module
from strandline.state.consumers import Registry, preview
from strandline.state.database import Database
from support import refused

state, registry, marks, leases = consuming.state, consuming.registry, consuming.marks, consuming.leases
consumer, fence = consuming.consumer, consuming.fence


def test_a_consumer_is_what_was_registered(registry, marks):
    first = registry.register("a", **FACTS)
    assert first.is_new
    consumer = first.consumer
    assert {name: getattr(consumer, name) for name in FACTS} == FACTS
    assert len(consumer.generation) == 32 and not consumer.is_retired and consumer.life == 1
    assert abs(consumer.created_s - time.time()) < 60
    assert registry.get("a") == consumer
    assert registry.all() == [consumer]
    assert marks.load(consumer) == {}
    assert hash(consumer) == hash(registry.get("a"))


def test_the_same_destination_and_table_keep_the_marks(registry, marks, consumer, fence):
    marks.start(consumer, {0: 7}, fence)
    again = registry.register("a", **FACTS)
    assert (again.consumer, again.is_new, again.why) == (consumer, False, "")
    renamed = registry.register("a", **{**FACTS, "table": "renamed"})
    assert (renamed.consumer.generation, renamed.is_new) == (consumer.generation, False)
    assert registry.get("a").table == "renamed"
    changed = registry.register("a", **{**FACTS, "definition": {"where": "y"}})
    assert (changed.consumer.generation, changed.is_new) == (consumer.generation, False)
    assert "definition" in changed.why
    assert registry.get("a").definition == {"where": "y"}
    assert marks.load(registry.get("a")) == {0: 7}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"destination": "s3://b"}, "destination changed from s3://a to s3://b"),
        ({"table_generation": "g2"}, "table was recreated"),
        ({"kind": "view"}, "kind changed from sink to view"),
    ],
)
def test_another_destination_or_a_recreated_table_is_a_new_generation_without_marks(
    registry, marks, leases, consumer, fence, change, why
):
    marks.start(consumer, {0: 7, 1: 7}, fence)
    open_intent(marks, consumer, fence, after=7, upto=9)
    new = registry.register("a", **FACTS | change)
    assert new.is_new and why in new.why and "a batch begun there" in new.why
    assert new.consumer.generation != consumer.generation
    assert marks.load(new.consumer) == {} and marks.intents(new.consumer) == []
    assert registry.history("a") == [consumer, new.consumer]
    assert marks.load(consumer) == {0: 7, 1: 7}, "the old one stays on record"
    with refused(sl.Conflict, consumer="a", generation=consumer.generation, found=new.consumer.generation):
        marks.advance(consumer, {0: (7, 8)}, fence=fence)
    back = registry.register("a", **FACTS)
    assert back.is_new and marks.load(back.consumer) == {}, "what was unread meanwhile may be gone"
    assert [each.generation for each in registry.history("a")][2] == back.consumer.generation
    assert [each.life for each in registry.history("a")] == [1, 2, 3]


def test_an_unknown_consumer_is_not_found_and_the_known_are_named(registry, marks, consumer):
    for call in (registry.get, registry.retire):
        with refused(sl.NotFound, consumer="b") as caught:
            call("b")
        assert "a" in caught.value.hint
    with refused(sl.NotFound, consumer="a"):
        marks.load(replace(consumer, generation="0" * 32))


def test_a_retired_consumer_stays_retired_until_it_is_revived(registry, marks, consumer, fence):
    marks.start(consumer, {0: 7}, fence)
    assert registry.retire("a").is_retired and registry.get("a").is_retired
    again = registry.register("a", **FACTS)
    assert not again.is_new and again.consumer.is_retired and "retired" in again.why
    for change in ({"destination": "s3://b"}, {"table_generation": "g2"}, {"definition": {"where": "y"}}):
        assert registry.register("a", **FACTS | change) == again, "whatever is told"
    with refused(sl.Conflict, consumer="a"):
        marks.advance(consumer, {0: (7, 8)}, fence=fence)
    revived = registry.register("a", revive=True, **FACTS)
    assert revived.is_new and not revived.consumer.is_retired and "retired" in revived.why
    assert marks.load(revived.consumer) == {}
    assert not registry.register("a", revive=True, **FACTS).is_new


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({}, False),
        ({"table": "renamed"}, False),
        ({"definition": {"where": "y"}}, False),
        ({"destination": "s3://b"}, True),
        ({"name": "b"}, True),
    ],
)
@pytest.mark.parametrize("is_retired", [False, True])
def test_what_is_foreseen_is_what_register_does(registry, marks, consumer, change, is_new, is_retired):
    if is_retired:
        registry.retire("a")
    for revive in (False, True):
        told = {"name": "a", **FACTS, **change, "revive": revive}
        due = foresee(registry, marks, **told)
        done = registry.register(**told)
        is_other = is_new and not (is_retired and change == {"destination": "s3://b"})
        is_revived = is_retired and revive and change != {"name": "b"}
        assert done.is_new == due.is_new == ((is_other and not revive) or is_revived)
        assert due.why == done.why
        if done.is_new:
            assert due.consumer.generation == ""
        made = {"generation": done.consumer.generation, "created_s": done.consumer.created_s}
        assert replace(due.consumer, **made) == done.consumer


def test_that_a_definition_changes_beside_an_open_intent_is_foreseen(registry, marks, consumer, fence):
    marks.start(consumer, {0: 0, 1: 0}, fence)
    open_intent(marks, consumer, fence)
    told = FACTS | {"definition": {"where": "y"}}
    assert foresee(registry, marks, "a", **told) == registry.register("a", **told)


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "a/b"}, {"name": "a b"}, {"name": None}, {"name": "x" * 129}, {"kind": ""},
        {"table": "a\0b"}, {"destination": "\ud800"}, {"destination": None}, {"table_generation": 7},
        {"definition": {"x": float("nan")}}, {"definition": {"x": object()}}, {"definition": []}, {"definition": None},
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused(registry, wrong):
    told = {"name": "a", **FACTS, **wrong}
    with refused(sl.Invalid):
        registry.register(**told)
    with refused(sl.Invalid):
        preview(**told, found=None, under_way=[])
    assert registry.all() == []


def test_odd_texts_come_back_as_they_were(registry):
    odd = {"destination": "ünï ' \" ; -- \\ % :x \n", "definition": {"ключ": ["\0", "\ud800", 1.5, None, {"": 2**70}]}}
    assert registry.register("a", **FACTS | odd).consumer.destination == odd["destination"]
    assert registry.get("a").definition == odd["definition"]
    assert registry.register("a", **FACTS | odd).why == ""


def test_values_that_only_python_takes_for_equal_are_a_changed_definition(registry):
    registry.register("a", **FACTS | {"definition": {"n": 1}})
    for value in (True, 1.0, 1):
        assert "definition" in registry.register("a", **FACTS | {"definition": {"n": value}}).why
        assert repr(registry.get("a").definition) == repr({"n": value})
        assert registry.register("a", **FACTS | {"definition": {"n": value}}).why == ""


def test_a_definition_on_record_that_is_no_json_is_corrupt(state, registry, consumer):
    with state.transaction() as connection:
        connection.execute(update(module.generations).values(definition="{"))
    with refused(sl.Corrupt):
        registry.get("a")


REGISTER = """
from strandline.state.consumers import Registry
from strandline.state.database import Database
def work(number, url):
    facts = dict(kind="sink", table="t", table_generation="g1", definition={})
    with Database(url) as state:
        registry = Registry(state)
        same = registry.register("same", destination="s3://a", **facts)
        other = registry.register("other", destination=f"s3://{number}", **facts)
        return same.is_new, same.consumer.generation, other.is_new, other.consumer.generation
"""


def test_racing_processes_register_one_consumer_once(state_url, in_processes):
    answers = [answer for _, answer in in_processes(REGISTER, 4, state_url)]
    assert sum(is_new for is_new, _, _, _ in answers) == 1
    assert len({generation for _, generation, _, _ in answers}) == 1
    with Database(state_url) as state:
        registry = Registry(state)
        assert [each.name for each in registry.all()] == ["other", "same"]
        assert registry.get("same").generation == answers[0][1]
        history = [each.generation for each in registry.history("other")]
        assert sorted(history) == sorted(generation for _, _, _, generation in answers)
        assert registry.get("other").generation == history[-1]
