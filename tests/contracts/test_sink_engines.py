"""What every sink promises whatever carries its rows: Spark or the driver, one lane or many, on any path through a
table's life. Numbers in brackets are those of the faults that a test looks for."""

import datetime as dt
import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

import strandline as sl
from destinations import NEAR, ForeignPlace
from forks import Interrupted, at_crash_points
from strandline.consumers import ranges, work
from strandline.engines.choice import DriverLimit
from strandline.model.keys import hash_keys, vnode_of
from strandline.sinks.http import HttpSink
from strandline.state.leases import leases
from support import ITEMS, refused


def some(*ids, name="a", qty=1):
    return [{"id": id_, "name": name, "qty": qty} for id_ in ids]


def rows_by_id(table):
    return {row["id"]: row for row in table.to_arrow().to_pylist()}


def seen(place):
    """Every change that a place holds, in a comparable form."""
    return sorted(
        repr(sorted((name, value) for name, value in row.items() if name != "_seq")) for row in place.changes()
    )


# --- Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "delta", "receiver", "foreign", "delta-mirror", "iceberg-mirror"])
def test_spark_and_the_driver_deliver_the_same(spark, lake, place_of, monkeypatch, kind):
    items = lake.create_table("items", ITEMS, key=["id"], cluster_by=["name"], vnodes=4, compact_ratio=1e9)
    large, small = (place_of(kind) for _ in range(2))
    for name, place in (("large", large), ("small", small)):
        lake.sink(name, "items", to=place.sink(), where="qty > 0", mask={"name": "hash"}, salt="s")

    def deliver():
        with monkeypatch.context() as patched:
            patched.setattr(work, "DELIVERY", DriverLimit(0, 0))
            by_spark = lake.tick(only=["large"]).sinks[0]
        by_driver = lake.tick(only=["small"]).sinks[0]
        assert (by_spark.error, by_driver.error) == (None, None)
        assert (by_spark.jobs > 0, by_driver.jobs) == (True, 0)
        assert by_spark.rows == by_driver.rows and by_spark.rows_read == by_driver.rows_read
        assert seen(large) == seen(small)

    items.upsert([*some(*range(40), name="é"), *some(50, qty=0), *some(51, qty=None)])
    items.compact(full=True)
    items.upsert(some(3, 60, name=None))
    items.delete([1, 2])
    deliver()
    items.evolve(pa.schema([("colour", pa.string())]))
    items.upsert([{"id": 4, "qty": -1}, {"id": 5, "qty": 7, "colour": "red"}], missing="null")
    items.delete([60, 999])
    deliver()
    assert sorted(large.current()) == sorted({*range(40)} - {1, 2, 4})


# --- lanes --------------------------------------------------------------------------------------------------------

VNODE = 2


def vnode_of_id(id_):
    return vnode_of(hash_keys([pa.chunked_array([[id_]], pa.int64())])[0].as_py(), 4)


@pytest.fixture
def lanes(lake, place_of, monkeypatch):
    """A sink of four lanes, a vnode each, to a receiver that answers 500 to the rows of one of them."""
    monkeypatch.setattr(ranges, "LANE_ROWS", 2)
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=4, compact_ratio=1e9)
    place = place_of("foreign")
    lake.sink("out", "items", to=place.sink(lanes=4, chunk_rows=3, patience="0s"))
    place.endpoint.control(refuse={"column": "_vnode", "value": VNODE, "status": 500})
    items.upsert(some(*range(24)))
    return items, place


def marks(lake, name="out"):
    return lake.state.marks.load(lake.state.registry.get(name))


def recover(lake, items, place):
    """The receiver takes everything again, and gets what it lacks, once."""
    place.endpoint.control(refuse=None)
    report = lake.tick().sinks[0]
    assert report.error is None
    assert lake.tick().sinks == ()
    assert place.current() == rows_by_id(items)
    assert len(place.changes()) == items.changes().num_rows


def test_lanes_fail_and_advance_alone(lake, lanes):
    items, place = lanes
    report = lake.tick().sinks[0]
    assert type(report.error) is sl.Unavailable
    assert marks(lake) == {vnode: 0 if vnode == VNODE else 1 for vnode in range(4)}
    assert {change["_vnode"] for change in place.changes()} == {0, 1, 3}
    items.upsert(some(*range(100, 124)))
    assert type(lake.tick().sinks[0].error) is sl.Unavailable
    assert marks(lake) == {vnode: 0 if vnode == VNODE else 2 for vnode in range(4)}
    recover(lake, items, place)


def test_a_lane_that_fails_again_does_not_hold_the_others_back_when_little_is_new(lake, lanes):
    items, place = lanes
    lake.tick()
    items.upsert(some(100, 101))
    lake.tick()
    assert marks(lake) == {vnode: 0 if vnode == VNODE else 2 for vnode in range(4)}
    recover(lake, items, place)


def test_a_vnode_that_fell_behind_and_has_no_changes_does_not_hold_the_log(lake, lanes):
    items, place = lanes
    lake.tick()
    seq = items.upsert(some(*(id_ for id_ in range(100, 120) if vnode_of_id(id_) < VNODE))).seq
    lake.tick()
    recover(lake, items, place)
    assert min(marks(lake).values()) == seq
    items.compact(full=True)
    assert items.vacuum(keep=0, grace=0).trimmed_to == seq


def test_lanes_on_spark_fail_and_advance_alone(spark, lake, lanes, monkeypatch):
    items, place = lanes
    monkeypatch.setattr(work, "DELIVERY", DriverLimit(0, 0))
    report = lake.tick().sinks[0]
    assert (type(report.error), report.jobs > 0) == (sl.Unavailable, True)
    assert marks(lake) == {vnode: 0 if vnode == VNODE else 1 for vnode in range(4)}
    items.upsert(some(*range(100, 124)))
    recover(lake, items, place)


def refused_in_one_lane(lake, lanes):
    """A row of one lane is refused for good: it is a letter, and the rest of all lanes arrives in the same tick."""
    _, place = lanes
    place.endpoint.control(refuse={"column": "id", "value": 7, "status": 422, "names_row": True})
    report = lake.tick(only=["out"]).sinks[0]
    assert (report.error, report.rows, report.dead) == (None, 23, 1)
    assert marks(lake) == dict.fromkeys(range(4), 1)
    assert sorted(change["id"] for change in place.changes()) == [id_ for id_ in range(24) if id_ != 7]
    return report


def test_a_row_that_is_refused_in_one_lane_disturbs_no_other(lake, lanes):
    """[12]"""
    assert refused_in_one_lane(lake, lanes).jobs == 0


def test_a_row_that_is_refused_in_one_lane_on_spark_disturbs_no_other(spark, lake, lanes, monkeypatch):
    """[12]"""
    monkeypatch.setattr(work, "DELIVERY", DriverLimit(0, 0))
    assert refused_in_one_lane(lake, lanes).jobs


def test_many_lanes_and_one_deliver_the_same(lake, items, place_of, monkeypatch):
    monkeypatch.setattr(ranges, "LANE_ROWS", 2)
    for kind in ("receiver", "foreign"):
        many, one = (place_of(kind) for _ in range(2))
        lake.sink(f"{kind}-many", "items", to=many.sink(lanes=4, chunk_rows=2))
        lake.sink(f"{kind}-one", "items", to=one.sink(lanes=1))
        items.upsert(some(*range(30)))
        items.delete([4, 5])
        assert [report.error for report in lake.tick().sinks] == [None] * len(lake.declared)
        assert many.current() == one.current() == rows_by_id(items)
        assert seen(many) == seen(one) or kind == "foreign"
        assert len(many.changes()) == len(one.changes())


# --- the table's care -----------------------------------------------------------------------------------------

TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
OLD = dt.datetime(2020, 1, 1)


@pytest.fixture
def visits(lake):
    return lake.create_table("visits", TIMED, key=["id"], vnodes=2, time="at", retention="90d", compact_ratio=1e9)


def sent(place):
    return sorted(change["id"] for change in place.changes())


def test_rows_that_arrive_late_are_sent_before_they_expire(lake, visits, near):
    """[21]"""
    near.expect(TIMED, "id")
    lake.sink("out", "visits", to=near.sink())
    visits.upsert([{"id": 1}])
    lake.tick()
    near.down()
    visits.upsert([{"id": 2, "at": OLD}])
    report = lake.tick()
    assert (type(report.sinks[0].error), report.expired) == (sl.Unavailable, ())
    assert sorted(rows_by_id(visits)) == [1, 2], "it is not hidden before it is sent"
    with refused(sl.Conflict, consumer="out"):
        visits.expire(dt.datetime(2021, 1, 1))
    near.up()
    report = lake.tick()
    assert (report.sinks[0].error, report.expired) == (None, ("visits",))
    assert (sent(near), sorted(rows_by_id(visits))) == ([1, 2], [1])
    # One that arrives behind the horizon is hidden from the first, and sent all the same.
    visits.upsert([{"id": 3, "at": OLD}])
    lake.tick()
    assert (sent(near), sorted(rows_by_id(visits))) == ([1, 2, 3], [1])


def test_folded_rows_do_not_expire_before_a_registered_sink_has_them(lake, visits, place_of):
    """[21]"""
    place = place_of("iceberg")
    visits.upsert([{"id": 1}, {"id": 2, "at": OLD}])
    visits.compact(full=True)
    visits.vacuum(keep=0, grace=0)
    lake.sink("out", "visits", to=place.sink())
    place.down()
    assert type(lake.tick().sinks[0].error) is sl.Unavailable
    place.up()
    lake.tick()
    assert sent(place) == [1, 2]


def test_the_log_is_trimmed_only_behind_the_slowest_sink_and_a_retired_one_holds_nothing(lake, items, place_of):
    slow, quick = (place_of("parquet") for _ in range(2))
    lake.sink("slow", "items", to=slow.sink())
    lake.sink("quick", "items", to=quick.sink())
    items.upsert(some(1))
    lake.tick()
    slow.down()
    for number in range(2, 5):
        items.upsert(some(number))
        lake.tick()
        items.compact(full=True)
        report = items.vacuum(keep=0, grace=0)
        assert (report.held_by.seq, report.held_by.who) == (1, "sink slow")
        assert items.log.refresh().trimmed_to <= 1
    slow.up()
    lake.tick()
    assert slow.current() == quick.current() == rows_by_id(items)
    assert len(slow.changes()) == 4
    slow.down()
    items.upsert(some(5))
    lake.tick()
    items.compact(full=True)
    assert items.vacuum(keep=0, grace=0).held_by.who == "sink slow"
    lake.state.registry.retire("slow")
    assert items.vacuum(keep=0, grace=0).trimmed_to == min(marks(lake, "quick").values()) > 4
    assert lake.tick().sinks == ()
    assert [sink.is_retired for sink in lake.plan().sinks] == [False, True]


def test_a_purged_row_leaves_the_destination_and_waits_for_what_is_under_way(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1, 2, 3))
    lake.tick()
    items.purge([2])
    lake.tick()
    assert near.current() == rows_by_id(items)
    near.down()
    items.upsert(some(4, 5))
    lake.tick()
    if lake.state.marks.intents(lake.state.registry.get("out")):
        with refused(sl.Conflict, consumer="out"):
            items.purge([1])
    near.up()
    lake.tick()
    items.purge([1])
    lake.tick()
    assert near.current() == rows_by_id(items)


# --- any path ---------------------------------------------------------------------------------------------------

ids = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)
steps = st.one_of(
    st.tuples(st.just("upsert"), ids),
    st.tuples(st.just("delete"), ids),
    st.tuples(st.sampled_from(["compact", "vacuum", "evolve", "tick", "reopen"]), st.none()),
    st.tuples(st.just("restore"), st.integers(1, 5)),
    # A tick that ends at so many crash points from its beginning.
    st.tuples(st.just("tick"), st.integers(1, 60)),
    st.tuples(st.just("fault"), st.sampled_from([{"lost": True}, {"cut": True}, {"status": 503}])),
)


class Life:
    """A table, a sink and what became of them, by a random program."""

    def __init__(self, folder, place, start):
        self.root, self.place, self.start = folder / "lake", place, start
        self.changes = []
        self.names = map(str, itertools.count())
        self.columns = 0
        self.open()
        self.lake.create_table("items", ITEMS, key=["id"], vnodes=4)
        self.open()

    def open(self):
        self.lake = sl.Lake(self.root)
        if self.lake.tables():
            self.items = self.lake.table("items")
            self.lake.sink("out", "items", to=self.sink, start=self.start)

    @property
    def sink(self):
        if isinstance(self.place, ForeignPlace):
            return HttpSink(self.place.endpoint.url, receiver="any", patience="0s", chunk_rows=2, lanes=3)
        return self.place.sink()

    def run(self, step, argument):
        if step == "upsert":
            self.wrote(self.items.upsert(some(*argument, name=next(self.names))))
        elif step == "delete":
            self.wrote(self.items.delete(argument))
        elif step == "restore":
            self.wrote(self.items.restore(max(self.items.oldest, self.items.head - argument)))
        elif step == "compact":
            self.items.compact(full=True)
        elif step == "vacuum":
            self.items.vacuum(keep=0, grace=0)
        elif step == "evolve" and self.columns < 3:
            self.columns += 1
            self.items.evolve(pa.schema([(f"more{self.columns}", pa.string())]))
        elif step == "reopen":
            self.open()
        elif step == "fault" and isinstance(self.place, ForeignPlace):
            self.place.endpoint.control(script=[argument])
        elif step == "tick":
            self.tick(argument)

    def wrote(self, commit):
        if commit.rows:
            rows = self.items.changes(after=commit.seq - 1, upto=commit.seq).to_pylist()
            self.changes += [(row["_op"], row["_seq"], row["id"], row["name"]) for row in rows]

    def tick(self, passes):
        left = itertools.count(1)

        def here(name):
            if next(left) == passes:
                raise Interrupted

        with at_crash_points(here):
            try:
                reports = self.lake.tick().sinks
            except Interrupted:
                self.bury()
                return
        for report in reports:
            assert report.error is None or type(report.error) is sl.Unavailable, report.error

    def bury(self):
        """The leases of a process that has ended count no more; this one, which lives on, says so for it."""
        with self.lake.state.database.transaction() as connection:
            connection.execute(update(leases).values(owner=None, expires_s=0.0))

    def check(self):
        """At the end everything is there, and nothing twice."""
        if isinstance(self.place, ForeignPlace):
            self.place.endpoint.control(script=[])
        self.tick(None)
        assert self.lake.tick().sinks == ()
        found = [(change["_op"], change["_seq"], change["id"], change["name"]) for change in self.place.changes()]
        assert {id_: row["name"] for id_, row in self.place.current().items()} == {
            id_: row["name"] for id_, row in rows_by_id(self.items).items()
        }
        keys = [(id_, seq) for _, seq, id_, _ in found]
        assert len(keys) == len(set(keys))
        if self.start == 0:
            assert sorted(found, key=repr) == sorted(self.changes, key=repr)
            return
        # Each vnode begins with the table as it was when its first batch was begun.
        for vnode in {vnode_of_id(id_) for _, _, id_, _ in found}:
            here = {change for change in found if vnode_of_id(change[2]) == vnode}
            first = min(seq for _, seq, _, _ in here)
            assert {change for change in here if change[1] > first} == {
                change for change in self.changes if change[1] > first and vnode_of_id(change[2]) == vnode
            }


@pytest.mark.parametrize("kind", ["parquet", "foreign"])
@settings(max_examples=15)
@given(program=st.lists(steps, min_size=4, max_size=14), start=st.sampled_from(["backfill", 0]))
def test_whatever_happens_the_destination_has_the_table_and_every_change_once(
    servers, tmp_path_factory, kind, program, start
):
    folder = tmp_path_factory.mktemp("life")
    life = Life(folder, NEAR[kind](servers, folder), start)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranges, "LANE_ROWS", 1)
        life.tick(None)
        for step, argument in program:
            life.run(step, argument)
        life.check()
