"""Senders and receivers are killed at random while someone writes: in the end nothing is lost and nothing is double."""

import os
import random
import secrets
from collections.abc import Iterator

import pytest

import strandline as sl
from chaos import Command, Forked, Running, Writer, check_same, storm
from destinations import DeltaPlace, ForeignPlace, IcebergPlace, ParquetPlace, ParquetS3Place, Servers
from forks import Serving
from support import ITEMS, free_ports, rows_of

CHAOS = [pytest.mark.chaos, pytest.mark.timeout(1800)]
TABLES = ("items", "events")
PLACES = {
    "foreign": ForeignPlace,
    "parquet": ParquetPlace,
    "parquet-s3": ParquetS3Place,
    "delta": DeltaPlace,
    "iceberg": IcebergPlace,
}


def kills(few: int, many: int = 100):
    """A few in every run, many in `make chaos`."""
    return pytest.mark.parametrize("kills", [few, pytest.param(many, marks=CHAOS)])


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


def make_tables(lake: sl.Lake) -> sl.Lake:
    # Few files make a pack: marks fall inside of packs, and kills into the packing.
    lake.create_table("items", ITEMS, key=["id"], vnodes=4, compact_files=3)
    lake.create_table("events", ITEMS, vnodes=4, compact_files=3)
    return lake


def check_received(source: sl.Lake, received: sl.Lake, writer: Writer) -> None:
    expected = [tuple(row.values()) for row in writer.model.copy()]
    for whose, lake in (("source", source), ("receiver", received)):
        check_same(f"items of the {whose}", expected, rows_of(lake.table("items").to_arrow()))
        ids = lake.table("events").to_arrow(columns=["id"])["id"].to_pylist()
        check_same(f"events of the {whose}", range(writer.appended), ids)
    check_same("events", rows_of(source.table("events").to_arrow()), rows_of(received.table("events").to_arrow()))


def sinks_to(port: int) -> dict:
    """Small chunks: a batch is many of them, and a kill falls between two."""
    address = f"http://127.0.0.1:{port}/ingest"
    return {
        f"{name}-central": {
            "table": name,
            "to": sl.HttpSink(f"{address}/{name}", chunk_rows=50, lanes=2, patience="2s", timeout="10s"),
        }
        for name in TABLES
    }


@kills(8)
def test_a_receiver_ends_with_the_senders_tables_whoever_is_killed(tmp_path, servers, rng, kills):
    source, received = make_tables(sl.Lake(tmp_path / "source")), make_tables(sl.Lake(tmp_path / "received"))
    port = free_ports(1)[0]
    writer = Writer(source, rng)
    for _ in range(5):
        writer.write(300)
    parts = [
        Forked(servers.forks, Running(source.storage.uri, sinks_to(port))),
        Forked(servers.forks, Serving(received.storage.uri, port)),
    ]
    within = storm(source, parts, writer, rng, kills, pause_s=0.4)
    check_received(source, received, writer)
    assert within or kills < 50, "no kill fell into a batch"


@kills(6)
def test_two_senders_and_a_state_in_postgresql(tmp_path, servers, postgres_url, rng, kills):
    source = make_tables(sl.Lake(tmp_path / "source", state=postgres_url))
    received = make_tables(sl.Lake(tmp_path / "received"))
    port = free_ports(1)[0]
    writer = Writer(source, rng)
    writer.write(300)
    sender = Running(source.storage.uri, sinks_to(port), state=postgres_url)
    parts = [
        Forked(servers.forks, sender),
        Forked(servers.forks, sender),
        Forked(servers.forks, Serving(received.storage.uri, port)),
    ]
    storm(source, parts, writer, rng, kills, pause_s=0.4)
    check_received(source, received, writer)


def kinds():
    """Those that are quick in every run, all of them in `make chaos`."""
    few = [pytest.param(kind, 4, id=kind) for kind in ("foreign", "parquet")]
    return few + [pytest.param(kind, 100, id=f"{kind}-100", marks=CHAOS) for kind in PLACES]


@pytest.mark.parametrize(("kind", "kills"), kinds())
def test_every_change_is_at_a_destination_once(tmp_path, servers, rng, kind, kills):
    source = make_tables(sl.Lake(tmp_path / "source"))
    places = {name: PLACES[kind](servers, tmp_path) for name in TABLES}
    options = {"is_gated": False} | ({"chunk_rows": 50, "lanes": 2, "patience": "2s"} if kind == "foreign" else {})
    sinks = {name: {"table": name, "to": place.sink(**options), "start": 0} for name, place in places.items()}
    writer = Writer(source, rng)
    sender = Forked(servers.forks, Running(source.storage.uri, sinks))
    storm(source, [sender], writer, rng, kills, pause_s=0.5)
    for name, place in places.items():
        names = ["_op", "_seq", *ITEMS.names]
        expected = source.table(name).changes().to_pylist()
        found = place.changes()
        check_same(name, *([tuple(row.get(n) for n in names) for row in rows] for rows in (expected, found)))
    check_same("events", range(writer.appended), [row["id"] for row in found])
    assert {id: row["name"] for id, row in places["items"].current().items()} == {
        row["id"]: row["name"] for row in writer.model.copy()
    }


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_the_commands_run_and_serve_may_be_killed(tmp_path, rng):
    """As users run them; they take seconds to start, so there are fewer kills."""
    source, received = make_tables(sl.Lake(tmp_path / "source")), make_tables(sl.Lake(tmp_path / "received"))
    port = free_ports(1)[0]
    (tmp_path / "pipeline.py").write_text(
        f"import strandline as sl\nlake = sl.Lake({source.storage.uri!r})\n"
        + "".join(
            f"lake.sink('{name}-central', '{name}', to=sl.HttpSink('http://127.0.0.1:{port}/ingest/{name}',"
            " chunk_rows=50, lanes=2, patience='2s'))\n"
            for name in TABLES
        )
    )
    writer = Writer(source, rng)
    for _ in range(20):
        writer.write(600)
    parts = [
        Command(["run", "--every", "0.1s", "--app", "pipeline:lake"], tmp_path / "run.log"),
        Command(["serve", "--lake", received.storage.uri, "--port", str(port)], tmp_path / "serve.log"),
    ]
    storm(source, parts, writer, rng, 20, pause_s=3)
    check_received(source, received, writer)
