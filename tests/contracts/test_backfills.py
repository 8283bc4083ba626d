"""What every destination promises while a history is delivered in rounds: at the end it is the table, and no row was
sent twice, whatever happened to the table between the rounds."""

import itertools

import pytest

from backfills import History, plain_rows, small_rounds
from forks import Interrupted, at_crash_points
from support import ITEMS

MIRRORED = ("delta-mirror", "iceberg-mirror")


@pytest.fixture(autouse=True)
def rounds_are_small(monkeypatch):
    small_rounds(monkeypatch)


def tick(lake, here=None, name="out"):
    """The report of a sink that had something to do and did it. `here` is called at each crash point."""
    with at_crash_points(here or (lambda point: None)):
        (report,) = [each for each in lake.tick().sinks if each.name == name]
    assert report.error is None, report.error
    return report


def positions(lake, name="out"):
    return lake.consumer_state(name).positions


def finish(lake):
    """Tick until nothing is left."""
    for _ in range(20):
        reports = lake.tick().sinks
        if not reports:
            return
        assert [each.error for each in reports] == [None] * len(reports)
    raise AssertionError("it does not end")


def after_rounds(act):
    """Calls `act(number)` after each advance of marks."""
    numbers = itertools.count()

    def here(point):
        if point == "marks.advanced":
            act(next(numbers))

    return here


def is_done(lake, name="out"):
    found = positions(lake, name)
    return bool(found) and all(each.is_done for each in found.values())


# --- a table that changes between the rounds ----------------------------------------------------------------------


@pytest.fixture(params=["parquet", "delta", "iceberg", "receiver", "foreign", *MIRRORED])
def anyone(request, place_of):
    return place_of(request.param)


@pytest.mark.parametrize("shape", ["number", "text", "composite"])
def test_the_destination_equals_a_table_that_changes_between_rounds(lake, anyone, shape):
    history = History(lake, shape)
    history.put(*range(0, 40, 2))
    history.fold()
    history.put(3, 4, 38)
    history.drop(6)
    anyone.expect(history.schema, *history.key)
    lake.sink("out", "items", to=anyone.sink())

    def change(number):
        if number > 6:
            return
        history.put(1 + 2 * number, 39 - number, 2)
        history.drop(0 if number % 2 else 8 + number, 37)
        [history.fold, history.pack, history.clean][number % 3]()

    first = tick(lake, after_rounds(change))
    assert first.is_new
    finish(lake)
    assert is_done(lake) and max(each.round for each in positions(lake).values()) > 3
    history.check(anyone)
    history.put(2, 99)
    assert tick(lake).rows == 2
    history.check(anyone)


def test_rows_without_a_key_come_round_by_round(lake, anyone):
    events = lake.create_table("events", ITEMS, vnodes=2, compact_ratio=1e9)
    anyone.expect(ITEMS)
    events.append([{"id": at % 3, "name": "a", "qty": 1} for at in range(9)])
    events.append([{"id": 7, "name": "b", "qty": 1}] * 5)
    lake.sink("out", "events", to=anyone.sink())

    def change(number):
        if number < 6:
            events.append([{"id": 7, "name": "c", "qty": number}] * (number + 1))
            events.compact(full=True) if number % 2 else None

    tick(lake, after_rounds(change))
    finish(lake)
    assert is_done(lake) and max(each.round for each in positions(lake).values()) > 3
    assert plain_rows(anyone.changes()) == plain_rows(events.to_arrow().to_pylist())
    events.append([{"id": 8, "name": "d", "qty": 1}])
    assert tick(lake).rows == 1
    assert plain_rows(anyone.changes()) == plain_rows(events.to_arrow().to_pylist())


@pytest.mark.parametrize("point", ["marks.intent_saved", "loop.lanes_done", "loop.finished", "state.before_commit"])
@pytest.mark.parametrize("ordinal", [1, 2, 5])
def test_a_round_that_was_interrupted_is_repeated_with_the_same_rows(lake, anyone, point, ordinal):
    history = History(lake)
    history.put(*range(0, 30))
    lake.sink("out", "items", to=anyone.sink())
    left = itertools.count(1)

    def here(name):
        if name == point and next(left) == ordinal:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick()
    history.put(1, 29, 50)
    history.drop(2, 28)
    history.fold()
    history.clean()
    finish(lake)
    history.check(anyone)
