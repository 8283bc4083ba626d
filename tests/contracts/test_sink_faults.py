"""What every sink promises when processes die, stall, meet or lose their memory. Numbers in brackets are those of the
faults that a test looks for."""

import datetime as dt
import json
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from destinations import NEAR
from forks import KILLED, Armed, Serving, Ticking, at_crash_points, wait_for_port
from strandline.consumers import loop
from strandline.consumers import sink as sink_consumer
from strandline.sinks.http import HttpSink
from support import ITEMS, free_ports, refused, rows_of

SINK_POINTS = ("sink.", "loop.", "marks.")
STATE_POINTS = ("state.", "epoch.")


def some(*ids):
    return [{"id": id_, "name": "a", "qty": 1} for id_ in ids]


def check_equal(place, table, changes):
    """The destination has the table's rows, each of so many changes once: count = distinct = expected."""
    assert place.current() == {row["id"]: row for row in table.to_arrow().to_pylist()}
    found = [json.dumps(change, default=str, sort_keys=True) for change in place.changes()]
    assert len(found) == len(set(found)) == changes


def tick(lake, name="out"):
    reports = lake.tick(only=[name]).sinks
    assert [report.error for report in reports] == [None] * len(reports)
    return reports


class Doomed:
    """One lake whose ticks are killed, in a process of their own, and finished by this one after more rows came."""

    def __init__(self, lake, items, forks, folder, state=None):
        self.lake, self.items, self.forks, self.folder, self.state = lake, items, forks, folder, state
        self.rows = 0

    def write(self):
        self.items.upsert(some(self.rows, self.rows + 1))
        self.rows += 2

    def ticking(self, name, sink, **more):
        return Ticking(self.lake.storage.uri, {name: {"table": "items", "to": sink}}, self.state, **more)

    def passes(self, name, sink):
        """How often a tick that lives passes each point."""
        told = self.folder / "passes.json"
        assert self.forks.run(Armed(self.ticking(name, sink), passes=str(told))) != KILLED
        return json.loads(told.read_text())

    def kill(self, name, sink, point, ordinal=1):
        self.write()
        assert self.forks.run(Armed(self.ticking(name, sink), point, ordinal)) == KILLED, point
        self.write()

    def finish(self, name, sink, place):
        """A new process ticks: this one."""
        lake = sl.Lake(self.lake.storage.uri, state=self.state)
        lake.sink(name, "items", to=sink)
        tick(lake, name)
        check_equal(place, lake.table("items"), self.rows)
        assert lake.tick(only=[name]).sinks == ()


@pytest.fixture
def doomed(lake, items, servers, tmp_path):
    return Doomed(lake, items, servers.forks, tmp_path)


def walked(passes, *prefixes):
    return sorted(point for point in passes if point.startswith(prefixes))


def test_a_process_killed_at_any_point_of_a_delivery_loses_and_doubles_nothing(doomed, anywhere):
    """[2, 3] What is new, then the table as it is; after each death more rows come before the next process. Of places
    on S3 only the points of the sink itself: the others are the same."""
    sink = anywhere.sink(is_gated=False)
    doomed.write()
    passes = doomed.passes("out", sink)
    own, shared = walked(passes, "sink."), walked(passes, "loop.", "marks.")
    assert own and {"marks.intent_saved", "loop.lanes_done", "loop.finished", "marks.advanced"} <= set(shared)
    check_equal(anywhere, doomed.items, doomed.rows)
    is_near = type(anywhere) in NEAR.values()
    for point in [*own, *(shared if is_near else [])]:
        doomed.kill("out", sink, point)
        doomed.finish("out", sink, anywhere)
    for number, point in enumerate(own if is_near else own[-1:]):
        place = anywhere.another()
        fresh = place.sink(is_gated=False)
        doomed.kill(f"fresh{number}", fresh, point)
        doomed.finish(f"fresh{number}", fresh, place)


def walk_state(doomed, place):
    """Kill a tick before each commit of the state, and behind the first and the last."""
    sink = place.sink()
    doomed.write()
    doomed.passes("out", sink)
    doomed.write()
    passes = doomed.passes("out", sink)
    points = walked(passes, *STATE_POINTS)
    assert {"epoch.pending", "epoch.recorded", "state.before_commit", "state.committed"} <= set(points)
    for point in points:
        last = passes[point]
        for ordinal in range(1, last + 1) if point == "state.before_commit" else sorted({1, last}):
            doomed.kill("out", sink, point, ordinal)
            doomed.finish("out", sink, place)


def test_a_process_killed_at_any_write_to_the_state_loses_and_doubles_nothing(doomed, place_of):
    walk_state(doomed, place_of("parquet"))


def test_the_same_holds_with_the_state_in_postgresql(postgres_url, servers, place_of, tmp_path):
    lake = sl.Lake(tmp_path / "lake", state=postgres_url)
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=2, compact_ratio=1e9)
    doomed = Doomed(lake, items, servers.forks, tmp_path, postgres_url)
    place = place_of("foreign")
    sink = place.sink()
    doomed.write()
    points = walked(doomed.passes("out", sink), *SINK_POINTS, *STATE_POINTS)
    for point in points:
        doomed.kill("out", sink, point)
        doomed.finish("out", sink, place)


@pytest.mark.parametrize(
    ("point", "ordinal"), [("receiver.queued", 2), ("receiver.grown", 1), ("receiver.committed", 2)]
)
def test_a_receiver_killed_at_a_point_gets_every_row_once_when_it_is_back(
    lake, items, servers, tmp_path, point, ordinal
):
    """Its table lacks a column of the sender's, and gets it."""
    received = sl.Lake(tmp_path / "received")
    table = received.create_table("items", ITEMS.remove(2), key=["id"], vnodes=2)
    port = free_ports(1)[0]
    sink = HttpSink(f"http://127.0.0.1:{port}/ingest/items", patience="0.1s", chunk_rows=2)
    lake.sink("out", "items", to=sink)
    items.upsert(some(*range(5)))
    pid = servers.forks.start(Armed(Serving(str(tmp_path / "received"), port), point, ordinal))
    wait_for_port(port)
    report = lake.tick().sinks[0]
    assert type(report.error) is sl.Unavailable
    servers.forks.kill(pid)
    assert "qty" in table.schema.names or point == "receiver.queued"
    items.upsert(some(5, 6))
    items.delete([0])
    pid = servers.forks.start(Armed(Serving(str(tmp_path / "received"), port)))
    wait_for_port(port)
    tick(lake)
    servers.forks.kill(pid)
    assert rows_of(table.to_arrow()) == rows_of(items.to_arrow())
    assert table.changes().num_rows == 8


@pytest.mark.parametrize("kind", ["receiver", "foreign"])
def test_a_process_killed_when_its_dead_letters_are_saved_keeps_each_once(doomed, place_of, kind):
    """[12] The row that is refused is on record, the others arrive, and the mark passes them all."""
    place = place_of(kind)
    required = pa.field("qty", pa.int64(), nullable=False)
    place.expect(pa.schema([("id", pa.int64()), ("name", pa.string()), required]), "id")
    bad = None
    if kind == "foreign":
        bad = 1000
        place.endpoint.control(refuse={"column": "qty", "value": bad, "status": 422, "names_row": True})
    sink = place.sink()
    doomed.write()
    doomed.items.upsert([{"id": -1, "qty": bad}])
    armed = Armed(doomed.ticking("out", sink), "loop.letters_saved")
    assert doomed.forks.run(armed) == KILLED
    doomed.write()
    doomed.lake.sink("out", "items", to=sink)
    tick(doomed.lake)
    assert sorted(place.current()) == list(range(doomed.rows))
    assert len(place.changes()) == doomed.rows
    consumer = doomed.lake.state.registry.get("out")
    assert sum(doomed.lake.state.letters.counts().values()) == 1
    assert set(doomed.lake.state.marks.load(consumer).values()) == {doomed.items.head}
    assert doomed.lake.tick(only=["out"]).sinks == ()


# --- two at once ------------------------------------------------------------------------------------------------


def test_of_two_runners_at_once_the_second_says_busy_and_nothing_doubles(lake, items, near):
    """[14]"""
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=near.sink())
    other = sl.Lake(lake.storage.uri)
    other.sink("out", "items", to=near.sink())
    is_there, may_go = threading.Event(), threading.Event()

    def here(name):
        if name == "loop.lanes_done":
            is_there.set()
            assert may_go.wait(30)

    with at_crash_points(here):
        first = threading.Thread(target=tick, args=[lake])
        first.start()
        assert is_there.wait(30)
        report = other.tick().sinks[0]
        may_go.set()
        first.join()
    assert (report.is_busy, report.error, report.rows) == (True, None, 0)
    assert report.why
    check_equal(near, items, 2)
    assert other.tick().sinks == ()


def test_runners_that_race_while_rows_are_written_send_every_change_once(lake, items, near):
    """[14]"""
    others = [sl.Lake(lake.storage.uri) for _ in range(3)]
    is_over, errors = threading.Event(), []

    def race(other):
        while not is_over.is_set():
            errors.extend(report.error for report in other.tick().sinks if report.error is not None)

    for other in others:
        other.sink("out", "items", to=near.sink(is_gated=False))
    threads = [threading.Thread(target=race, args=[other]) for other in others]
    for thread in threads:
        thread.start()
    changes = [items.upsert(some(number % 5, number)).rows for number in range(5, 13)]
    is_over.set()
    for thread in threads:
        thread.join()
    others[0].tick()
    assert errors == []
    assert near.current() == {row["id"]: row for row in items.to_arrow().to_pylist()}
    assert len(near.changes()) <= sum(changes)


def test_a_stalled_owner_is_taken_over_after_its_lease_and_its_late_effect_does_not_double(doomed, anywhere):
    lake, sink, lease_s = doomed.lake, anywhere.sink(is_gated=False), 0.6
    doomed.write()
    asked_s = time.monotonic()
    armed = Armed(doomed.ticking("out", sink, lease_s=lease_s), anywhere.stalls_at, is_stopped=True)
    stalled = doomed.forks.stopped(armed)
    doomed.write()
    lake.sink("out", "items", to=sink)
    while (report := lake.tick().sinks[0]).is_busy:
        time.sleep(0.05)
    assert report.error is None
    assert time.monotonic() - asked_s > lease_s
    check_equal(anywhere, doomed.items, doomed.rows)
    how, said = doomed.forks.resume(stalled)
    assert how == "failed" and ("Conflict" in said or "Unavailable" in said)
    check_equal(anywhere, doomed.items, doomed.rows)
    doomed.write()
    tick(lake)
    check_equal(anywhere, doomed.items, doomed.rows)


# --- lost memory -------------------------------------------------------------------------------------------------


def copy_state(lake, to):
    """The state's files, as a backup of the folder would have them."""
    to.mkdir()
    for path in Path(lake.storage.uri).glob("state.db*"):
        shutil.copy(path, to / path.name)


def put_state(lake, kept):
    for path in Path(lake.storage.uri).glob("state.db*"):
        path.unlink()
    for path in kept.iterdir():
        shutil.copy(path, Path(lake.storage.uri) / path.name)


def check_memory(lake, place, kept, kept_after=None):
    """The state of the lake is lost, or is again what it was after a tick: nothing is sent, trimmed or hidden, and
    everything can be read."""
    schema = ITEMS.append(pa.field("at", pa.timestamp("us")))
    place.expect(schema, "id")
    items = lake.create_table("items", schema, key=["id"], vnodes=2, time="at", retention="90d", compact_ratio=1e9)
    lake.sink("out", "items", to=place.sink())
    for number in range(2):
        items.upsert([{"id": number, "name": "a", "at": dt.datetime(2020, 1, 1)}])
        lake.tick()
        if number == kept_after:
            copy_state(lake, kept)
    items.upsert([{"id": 9, "name": "late", "at": dt.datetime(2020, 1, 1)}, {"id": 10, "name": "b"}])
    items.compact(full=True)
    if kept_after == 1:
        lake.tick()
    put_state(lake, kept)
    again = sl.Lake(lake.storage.uri)
    again.sink("out", "items", to=place.sink())
    table, before = again.table("items"), place.traces()
    for act in (again.tick, lambda: table.vacuum(keep=0, grace=0), lambda: table.expire(dt.datetime(2021, 1, 1))):
        with refused(sl.Conflict):
            act()
    assert place.traces() == before
    assert table.to_arrow(columns=["id"]).to_pylist() == [{"id": 10}]


def test_a_lake_without_its_state_sends_trims_and_expires_nothing(lake, near, tmp_path):
    """[8]"""
    (tmp_path / "kept").mkdir()
    check_memory(lake, near, tmp_path / "kept")


@pytest.mark.parametrize("kept_after", [0, 1])
def test_a_lake_with_an_old_copy_of_its_state_sends_trims_and_expires_nothing(lake, place_of, tmp_path, kept_after):
    """[8] An old copy, and one that lacks no more than the last tick."""
    check_memory(lake, place_of("parquet"), tmp_path / "kept", kept_after)


def copy_within_a_tick(lake, to, monkeypatch, owner, name, then=lambda: None):
    """Tick, and copy the state when the tick comes to a function; in the end the copy is put back, and who
    worked there then is gone."""
    real = getattr(owner, name)

    def copied(*words, **options):
        if not to.exists():
            copy_state(lake, to)
        return real(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, copied)
        tick(lake)
    then()
    put_state(lake, to)
    with closing(sqlite3.connect(Path(lake.storage.uri) / "state.db")) as database, database:
        database.execute("UPDATE strandline_leases SET expires_s = 0")


def test_a_state_from_within_a_tick_repeats_what_it_had_begun_and_nothing_doubles(
    lake, items, near, tmp_path, monkeypatch
):
    """[8] What was begun is on record there, and has the same ids."""
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1))
    tick(lake)
    items.upsert(some(2, 3))
    copy_within_a_tick(lake, tmp_path / "kept", monkeypatch, sink_consumer, "deliver")
    items.upsert(some(4))
    again = sl.Lake(lake.storage.uri)
    again.sink("out", "items", to=near.sink())
    [report] = again.tick(only=["out"]).sinks
    assert (report.error, report.after, report.upto) == (None, items.head - 2, items.head)
    check_equal(near, items, 4)
    assert again.tick().sinks == ()


def test_a_state_from_within_a_tick_that_had_begun_nothing_yet_is_an_old_one(lake, items, near, tmp_path, monkeypatch):
    """[8]"""
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1))
    tick(lake)
    items.upsert(some(2))
    copy_within_a_tick(lake, tmp_path / "kept", monkeypatch, loop._MarkedRun, "_begin_lanes")
    again = sl.Lake(lake.storage.uri)
    again.sink("out", "items", to=near.sink())
    with refused(sl.Conflict):
        again.tick()


def test_a_state_from_within_a_tick_is_an_old_one_after_a_purge(lake, items, near, tmp_path, monkeypatch):
    """[8] It would repeat what it had begun over other rows."""
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1, 2, 3))
    to = tmp_path / "kept"
    copy_within_a_tick(lake, to, monkeypatch, sink_consumer, "deliver", then=lambda: items.purge([1]))
    again = sl.Lake(lake.storage.uri)
    again.sink("out", "items", to=near.sink())
    with refused(sl.Conflict):
        again.tick()


def test_a_state_from_before_a_trim_is_an_old_one(lake, items, place_of, tmp_path):
    """[8] Its marks may be where the log is no more."""
    lake.sink("out", "items", to=place_of("parquet").sink())
    items.upsert(some(1))
    tick(lake)
    items.compact(full=True)
    copy_state(lake, tmp_path / "kept")
    assert items.vacuum(keep=0, grace=0).trimmed_files
    tick(lake)
    put_state(lake, tmp_path / "kept")
    with refused(sl.Conflict):
        sl.Lake(lake.storage.uri).tick()


@pytest.mark.parametrize("kind", NEAR)
def test_a_lake_that_was_restored_with_its_state_does_not_take_what_it_writes_now_for_sent(
    lake, items, place_of, tmp_path, kind
):
    """[8] Lake and state agree, but the destination is ahead of both: what comes now has seqs that it knows."""
    near = place_of(kind)
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1))
    tick(lake)
    shutil.copytree(lake.storage.uri, tmp_path / "copy")
    items.upsert(some(2))
    tick(lake)
    again = sl.Lake(tmp_path / "copy")
    again.sink("out", "items", to=near.sink())
    again.table("items").upsert(some(3))
    for _ in range(3):
        reports = again.tick().sinks
        assert 3 in near.current() or [type(report.error) for report in reports] == [sl.Conflict]
