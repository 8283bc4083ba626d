"""What every destination promises while a history is delivered in rounds: at the end it is the table, and no row was
sent twice, whatever happened to the table between the rounds."""

import datetime as dt
import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

import strandline as sl
from backfills import History, plain_rows, small_rounds
from forks import Interrupted, at_crash_points
from positions_receiver import positions_receiver
from strandline.consumers import ranges, work
from strandline.consumers import sink as sink_module
from strandline.engines.choice import DriverLimit
from strandline.pipeline import redelivery
from strandline.tables.horizon import micros
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


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg", *MIRRORED])
def test_a_stalled_finisher_of_an_earlier_round_changes_nothing(lake, place_of, monkeypatch, kind):
    history, place = History(lake), place_of(kind)
    history.put(*range(30))
    lake.sink("out", "items", to=place.sink())
    plain, finished = sink_module._SinkWork.finish, []

    def finish_and_note(self, intent):
        plain(self, intent)
        finished.append((self._sink.to, *self._done[intent.id]))

    monkeypatch.setattr(sink_module._SinkWork, "finish", finish_and_note)
    tick(lake, after_rounds(lambda number: history.put(number, 29 - number) if number < 5 else None))
    finish(lake)
    assert len({(batch.upto, batch.end_round) for _, batch, _ in finished}) > 6
    before = place.traces()
    producer = lake.producer(lake.state.registry.get("out"))
    for to, batch, results in finished:
        delivery = to.open(producer)
        assert delivery.is_delivered(replace(batch, is_replay=True))
        delivery.finish(batch, results)
        delivery.close()
    if kind != "parquet":
        assert place.traces() == before
    history.check(place)


# --- what leaves of a row -----------------------------------------------------------------------------------------


def test_withheld_rows_masks_and_deletes_that_stay_behave_in_rounds_as_ever(lake, place_of):
    for kind in ("parquet", "receiver", "foreign"):
        history = History(lake, "text", name=kind)
        place = place_of(kind)
        place.expect(history.schema, "id")
        history.put(*range(0, 30, 2), qty=1)
        history.put(*range(1, 30, 2), qty=-1)
        to = place.sink()
        lake.sink(kind, kind, to=to, where="qty > 0", mask={"name": "hash"}, salt="s", deletes=False)

        def change(number, history=history):
            if number < 5:
                history.put(4 * number, qty=-number)
                history.put(4 * number + 1, 20 + number, qty=2)
                history.drop(2, 28)

        tick(lake, after_rounds(change), name=kind)
        finish(lake)
        assert is_done(lake, kind)
        wanted = {key for key, row in history.rows_at().items() if row["qty"] > 0}
        found = place.current("id")
        assert wanted <= set(found)
        assert all(len(row["name"]) == 64 and row["qty"] > 0 for row in found.values())
        assert {change["_op"] for change in place.changes()} == {"upsert"}
        sent = [(row["id"], row["name"]) for row in place.changes()]
        assert len(sent) == len(set(sent))


def test_a_row_that_the_condition_refuses_leaves_a_place_that_has_it(lake, anyone):
    history = History(lake)
    history.put(*range(20))
    lake.sink("out", "items", to=anyone.sink(), where="qty > 0")

    def change(number):
        if number < 6:
            history.put(number, 19 - number, qty=0)

    tick(lake, after_rounds(change))
    finish(lake)
    assert sorted(anyone.current()) == sorted(id_ for id_, row in history.rows_at().items() if row["qty"] > 0)


@pytest.mark.parametrize("names_row", [True, False])
def test_refused_rows_of_a_round_become_dead_letters_and_the_rounds_go_on(lake, place_of, names_row):
    history, place = History(lake), place_of("foreign")
    history.put(*range(30))
    place.endpoint.control(refuse={"column": "id", "value": 7, "names_row": names_row})
    lake.sink("out", "items", to=place.sink(chunk_rows=3, lanes=2))
    report = tick(lake)
    finish(lake)
    letters = lake.state.letters.all()
    dead = sum(each.rows for each in letters)
    assert report.dead == dead and (dead == 1 if names_row else 1 <= dead <= 3)
    assert len(place.current()) == 30 - dead and 7 not in place.current()
    assert len(place.changes()) == 30 - dead
    assert is_done(lake)


@pytest.mark.parametrize("names_rows", [True, False])
def test_refused_rows_at_a_receiver_with_positions_leave_no_gap(lake, names_rows):
    history = History(lake)
    history.put(*range(30))
    refused = {0, 7, 8, 27, 28, 29}
    with positions_receiver() as receiver:
        receiver.refuses = lambda row: row["id"] in refused
        receiver.names_rows = names_rows
        lake.sink("out", "items", to=sl.HttpSink(receiver.url, chunk_rows=3, lanes=2))
        tick(lake, after_rounds(lambda number: history.put(number + 1, 26 - number) if number < 4 else None))
        finish(lake)
        dead = [id_ for letter in lake.state.letters.all() for id_ in letter.key_table["id"].to_pylist()]
        rows = {row["id"]: row["name"] for row in receiver.rows}
        assert refused <= set(dead) and not refused & set(rows)
        assert set(rows) | set(dead) == set(history.rows_at())
        assert len({(row["id"], row["_seq"]) for row in receiver.rows}) == len(receiver.rows)
        assert is_done(lake)
        assert set(receiver.positions.popitem()[1].values()) == {(history.table.head + 1, 0)}


@pytest.mark.parametrize("is_strandline", [True, False])
def test_a_dead_letter_that_is_sent_again_in_the_middle_is_no_row_twice(lake, place_of, is_strandline):
    history, place = History(lake), place_of("foreign")
    history.put(*range(30))
    with positions_receiver() as receiver:
        to = sl.HttpSink(receiver.url, lanes=1) if is_strandline else place.sink(lanes=1)
        receiver.refuses = lambda row: row["id"] == 7
        place.endpoint.control(refuse={"column": "id", "value": 7, "names_row": True})
        lake.sink("out", "items", to=to)
        tick(lake, after_rounds(lambda number: lake.state.rates.set_stopped("out", True) if number == 3 else None))
        (letter,) = lake.state.letters.all()
        history.put(7, 8, 29)
        receiver.refuses = lambda row: False
        place.endpoint.control(refuse=None)
        (sent,) = redelivery.replay(lake, [letter.id])
        assert (sent.rows, sent.error) == (1, None)
        lake.state.rates.set_stopped("out", False)
        finish(lake)
        changes = receiver.rows if is_strandline else place.changes()
    assert is_done(lake)
    found = {row["id"]: row["name"] for row in changes}
    assert found == {id_: row["name"] for id_, row in history.rows_at().items()}
    # The letter had the newest row; its change came too, as it does without a history.
    assert [row["name"] for row in changes if row["id"] == 7] == ["v2", "v2"]
    assert len(changes) == 30 + 2


def test_a_lane_that_fails_stays_behind_and_catches_up_with_the_others(lake, place_of, monkeypatch):
    monkeypatch.setattr(ranges, "LANE_ROWS", 1)
    small_rounds(monkeypatch, rows=8)
    history, place = History(lake), place_of("foreign")
    history.put(*range(60))
    lake.sink("out", "items", to=place.sink(lanes=4, patience="0s"))
    place.endpoint.control(refuse={"column": "_vnode", "value": 2, "status": 500})
    report = lake.tick().sinks[0]
    assert type(report.error) is sl.Unavailable
    found = positions(lake)
    assert [found[vnode].is_done for vnode in range(4)] == [True, True, False, True]
    assert found[2].rows == 0
    history.put(1, 2, 3, 4, 70)
    history.drop(5, 6, 7)
    assert type(lake.tick().sinks[0].error) is sl.Unavailable
    place.endpoint.control(refuse=None)
    finish(lake)
    assert is_done(lake)
    history.check(place)


def test_vnodes_that_fell_behind_join_the_others(lake, place_of, monkeypatch):
    monkeypatch.setattr(ranges, "LANE_ROWS", 1)
    history, place = History(lake), place_of("foreign")
    history.put(*range(60))
    lake.sink("out", "items", to=place.sink(lanes=4, patience="0s"))
    rounds_done = itertools.count(1)

    def here(point):
        if point == "marks.advanced" and next(rounds_done) == 12:
            lake.state.rates.set_stopped("out", True)

    place.endpoint.control(refuse={"column": "_vnode", "value": 1, "status": 500})
    with at_crash_points(here):
        lake.tick()
    place.endpoint.control(refuse=None)
    found = positions(lake)
    assert found[1].rows == 0 < found[0].rows and not found[0].is_done
    history.put(59, 0)
    for _ in range(20):
        lake.state.rates.set_stopped("out", False)
        before = found[1].round

        def stop_behind(point, before=before):
            # The last of a plan are those that fell behind.
            if point == "marks.advanced" and positions(lake)[1].round > before:
                lake.state.rates.set_stopped("out", True)

        tick(lake, stop_behind)
        found = positions(lake)
        if found[0].key == found[1].key:
            break
    assert not found[0].is_done and found[0].round > found[1].round
    lake.state.rates.set_stopped("out", False)
    (left,) = lake.plan().sinks[0].works
    assert (left.source, left.vnodes) == (work.ROUND, (0, 1, 2, 3))
    finish(lake)
    assert is_done(lake)
    history.check(place)


# --- what happens to the table ------------------------------------------------------------------------------------


def test_rows_expire_from_a_mirror_whose_history_is_under_way(lake, mirror):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    visits = lake.create_table("visits", schema, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    visits.upsert([{"id": id_, "at": dt.datetime(2020, 1, 1 + id_ % 20)} for id_ in range(40)])
    lake.sink("out", "visits", to=mirror.sink())

    def change(number):
        if number in (2, 4):
            # As if it had been decided before the sink began.
            visits.log.expire(micros(dt.datetime(2020, 1, 3 + number)), rows=1)
            visits.compact(full=True)

    tick(lake, after_rounds(change))
    finish(lake)
    assert is_done(lake)
    assert sorted(mirror.current()) == sorted(visits.to_arrow()["id"].to_pylist())
    assert len(mirror.changes()) == visits.to_arrow().num_rows < 40


def test_no_row_expires_before_its_round(lake, place_of):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    visits = lake.create_table("visits", schema, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    visits.upsert([{"id": id_, "at": dt.datetime(2020, 1, 1 + id_ % 20)} for id_ in range(40)])
    visits.compact(full=True)
    place = place_of("parquet")
    lake.sink("out", "visits", to=place.sink())
    refusals = []

    def expire(number):
        try:
            visits.expire(dt.datetime(2020, 1, 10))
        except sl.Conflict as error:
            refusals.append(error.fields["consumer"])

    tick(lake, after_rounds(expire))
    assert len(refusals) > 3 and set(refusals) == {"out"}
    assert len(place.changes()) == 40
    assert visits.to_arrow().num_rows < 40 or visits.expire(dt.datetime(2020, 1, 10))


def test_a_column_that_comes_between_rounds_arrives(lake, anyone):
    history = History(lake)
    history.put(*range(30))
    lake.sink("out", "items", to=anyone.sink())

    def change(number):
        if number == 1:
            history.table.evolve(pa.schema([("colour", pa.string())]))
        if number == 2:
            history.table.upsert([{"id": 1, "colour": "red"}, {"id": 29, "colour": "blue"}], missing="null")

    tick(lake, after_rounds(change))
    finish(lake)
    assert {id_: row.get("colour") for id_, row in anyone.current().items() if row.get("colour")} == {
        1: "red",
        29: "blue",
    }
    assert sorted(anyone.current()) == list(range(30))


def test_a_purge_and_a_restore_between_rounds_arrive(lake, anyone):
    history = History(lake)
    history.put(*range(30))
    then = history.put(40)
    lake.sink("out", "items", to=anyone.sink())
    stop = itertools.count(1)

    def here(point):
        if point == "marks.advanced" and next(stop) == 4:
            lake.state.rates.set_stopped("out", True)

    tick(lake, here)
    lake.state.rates.set_stopped("out", False)
    history.table.purge([0, 29])
    history.put(1, 28, 41)
    stop = itertools.count(1)
    tick(lake, here)
    history.table.restore(then)
    lake.state.rates.set_stopped("out", False)
    tick(lake)
    finish(lake)
    assert is_done(lake)
    assert sorted(anyone.current()) == sorted(history.table.to_arrow()["id"].to_pylist())


# --- engines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg", "receiver", "foreign", *MIRRORED])
def test_rounds_on_spark_are_those_on_the_driver(spark, lake, place_of, monkeypatch, kind):
    monkeypatch.setattr(work, "DELIVERY", DriverLimit(0, 0))
    small_rounds(monkeypatch, rows=12)
    history, place = History(lake), place_of(kind)
    history.put(*range(30))
    history.fold()
    lake.sink("out", "items", to=place.sink())

    def change(number):
        if number < 2:
            history.put(number, 29 - number, 50 + number)
            history.drop(4 + number, 20 + number)

    report = tick(lake, after_rounds(change))
    assert report.jobs > 0
    finish(lake)
    assert is_done(lake)
    history.check(place)
