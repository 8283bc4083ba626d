"""Runners are killed while they deliver history: at every named place, and at random while someone writes. Each row of
the history arrives once, and every change of a delivered row."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Iterator

import pytest

import strandline as sl
from chaos import Forked, Running, Writer, check_same, storm
from destinations import DeltaMirrorPlace, DeltaPlace, ForeignPlace, IcebergMirrorPlace, ParquetPlace, Servers
from forks import KILLED, Armed, Serving, Ticking
from strandline.consumers import ranges, rounds
from strandline.engines.choice import DriverLimit
from support import ITEMS, free_ports, rows_of

ROWS, ROUND_ROWS = 60, 13
CHAOS = [pytest.mark.chaos, pytest.mark.timeout(1800)]
PLACES = {
    "parquet": ParquetPlace,
    "delta": DeltaPlace,
    "delta-mirror": DeltaMirrorPlace,
    "iceberg-mirror": IcebergMirrorPlace,
    "foreign": ForeignPlace,
}


@pytest.fixture
def rng() -> random.Random:
    """Set STRANDLINE_SEED to repeat a storm's choices."""
    seed = int(os.environ.get("STRANDLINE_SEED") or secrets.randbits(32))
    print(f"STRANDLINE_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def servers(request, tmp_path_factory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("servers"), lambda: request.getfixturevalue("seaweed"))
    yield started
    started.close()


@pytest.fixture
def in_rounds(monkeypatch):
    """Ticks of this process deliver the same small rounds as those of the others."""
    monkeypatch.setattr(ranges, "SMALL", DriverLimit(ROUND_ROWS, 1 << 40))
    for name in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(rounds, name, ROUND_ROWS)


def fill(lake):
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=2, compact_ratio=1e9)
    items.upsert([{"id": at, "name": "first", "qty": at} for at in range(ROWS)])
    return items


def change(items, number):
    """Changes on both sides of wherever the history stands, a delete among them."""
    items.upsert([{"id": at, "name": f"change {number}", "qty": number} for at in (0, number % ROWS, ROWS + number)])
    items.delete([(number * 7) % ROWS])


def check_equal(place, items):
    assert place.current() == {row["id"]: row for row in items.to_arrow().to_pylist()}
    found = [json.dumps(change, default=str, sort_keys=True) for change in place.changes()]
    assert len(found) == len(set(found))


def slow_down(lake, sinks, rows_per_s):
    """Give sinks a rate, so that their history lasts; returns what lifts it."""
    for name in sinks:
        lake.state.rates.set_rate(name, rows_per_s, None)
    return lambda: [lake.state.rates.set_rate(name, None, None) for name in sinks]


def ordinals(passes):
    return sorted({1, (passes + 1) // 2, passes})


@pytest.mark.parametrize("kind", PLACES)
def test_a_runner_killed_at_any_point_of_a_backfill_loses_and_doubles_nothing(lake, servers, tmp_path, in_rounds, kind):
    items = fill(lake)
    place = PLACES[kind](servers, tmp_path)
    uri, told = lake.storage.uri, tmp_path / "passes.json"

    def ticking(name, sink):
        return Ticking(uri, {name: {"table": "items", "to": sink}}, round_rows=ROUND_ROWS)

    first = place.sink(is_gated=False)
    assert servers.forks.run(Armed(ticking("alive", first), passes=str(told))) != KILLED
    check_equal(place, items)
    passes = {
        point: count
        for point, count in json.loads(told.read_text()).items()
        if point.startswith(("sink.", "loop.", "marks.") if kind in ("parquet", "foreign") else "sink.")
    }
    assert passes and max(passes.values()) >= ROWS // ROUND_ROWS
    number = 0
    for point, count in sorted(passes.items()):
        for ordinal in ordinals(count):
            number += 1
            place = place.another()
            sink = place.sink(is_gated=False)
            assert servers.forks.run(Armed(ticking(f"out{number}", sink), point, ordinal)) == KILLED, point
            change(items, number)
            again = sl.Lake(uri)
            again.sink(f"out{number}", "items", to=sink)
            (report,) = again.tick(only=[f"out{number}"]).sinks
            assert report.error is None
            check_equal(place, items)
            assert again.tick(only=[f"out{number}"]).sinks == ()
            again.retire_sink(f"out{number}")


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=CHAOS)])
@pytest.mark.parametrize("kind", ["parquet", "foreign"])
def test_history_arrives_once_whatever_is_killed(tmp_path, servers, rng, kind, kills):
    """Two runners take the sink from each other. A rate makes the history last."""
    source = sl.Lake(tmp_path / "source")
    source.create_table("items", ITEMS, key=["id"], vnodes=4, compact_files=3)
    source.create_table("events", ITEMS, vnodes=4, compact_files=3)
    writer = Writer(source, rng, most_rows=20)
    for _ in range(4):
        writer.write(500)
    places = {name: PLACES[kind](servers, tmp_path / name) for name in ("items", "events")}
    options = {"is_gated": False} | ({"chunk_rows": 50, "lanes": 2, "patience": "2s"} if kind == "foreign" else {})
    sinks = {name: {"table": name, "to": place.sink(**options)} for name, place in places.items()}
    calm = slow_down(source, sinks, 400 if kills < 50 else 60)
    running = Running(source.storage.uri, sinks, round_rows=40 if kills < 50 else 200)
    storm(source, [Forked(servers.forks, running), Forked(servers.forks, running)], writer, rng, kills, 0.5, calm)
    assert {id: row["name"] for id, row in places["items"].current().items()} == {
        row["id"]: row["name"] for row in writer.model.copy()
    }
    check_same("events", range(writer.appended), [row["id"] for row in places["events"].changes()])
    found = [(row["id"], row["_seq"], row["_op"]) for row in places["items"].changes()]
    check_same("changes of items", set(found), found)


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=CHAOS)])
def test_history_reaches_a_receiver_that_is_killed_too_with_the_state_in_postgresql(
    tmp_path, servers, postgres_url, rng, kills
):
    source = sl.Lake(tmp_path / "source", state=postgres_url)
    received = sl.Lake(tmp_path / "received")
    for each in (source, received):
        each.create_table("items", ITEMS, key=["id"], vnodes=4, compact_files=3)
        each.create_table("events", ITEMS, vnodes=4, compact_files=3)
    port = free_ports(1)[0]
    writer = Writer(source, rng, most_rows=20)
    for _ in range(4):
        writer.write(500)
    address = f"http://127.0.0.1:{port}/ingest"
    sinks = {
        name: {
            "table": name,
            "to": sl.HttpSink(f"{address}/{name}", chunk_rows=25, lanes=2, patience="2s", timeout="10s"),
        }
        for name in ("items", "events")
    }
    calm = slow_down(source, sinks, 400 if kills < 50 else 60)
    running = Running(source.storage.uri, sinks, state=postgres_url, round_rows=40 if kills < 50 else 200)
    parts = [
        Forked(servers.forks, running),
        Forked(servers.forks, running),
        Forked(servers.forks, Serving(received.storage.uri, port)),
    ]
    storm(source, parts, writer, rng, kills, 0.5, calm)
    expected = [tuple(row.values()) for row in writer.model.copy()]
    check_same("items of the receiver", expected, rows_of(received.table("items").to_arrow()))
    ids = received.table("events").to_arrow(columns=["id"])["id"].to_pylist()
    check_same("events of the receiver", range(writer.appended), ids)
