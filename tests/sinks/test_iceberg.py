"""Iceberg as a destination, in a SQLite catalog with local files and in a real REST catalog with S3."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

import icebergs
from icebergs import (
    Opened,
    batch_of,
    deliver,
    gone,
    held,
    rest_catalog,
    snapshots,
    table_of,
    up,
    withheld,
    written,
)
from strandline.errors import Conflict, Invalid
from strandline.sinks.contract import Producer
from strandline.sinks.iceberg import IcebergDelivery, IcebergSink
from support import ICEBERG, proxied, python, refused

catalog, local, opened = icebergs.catalog, icebergs.local, icebergs.opened


# --- changes ---------------------------------------------------------------------------------------------------


def test_updates_and_deletes_arrive_as_changes_one_snapshot_a_batch(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    assert ice.position(2) == {}
    assert deliver(ice, batch_of(0, 3), up(1, 1, name="a", qty=1), up(3, 2, name="b"), withheld(2, 9))
    assert ice.position(2) == {0: 3, 1: 3}
    assert deliver(ice, batch_of(3, 5), up(4, 1, name="A"), gone(5, 2))
    assert ice.position(2) == {0: 5, 1: 5}
    expected = [
        ("delete", 5, 2, None, None),
        ("upsert", 1, 1, "a", 1),
        ("upsert", 3, 2, "b", None),
        ("upsert", 4, 1, "A", None),
    ]
    assert held(ice) == expected
    assert [snapshot.summary["added-records"] for snapshot in table_of(ice).snapshots()] == ["2", "2"]


def test_a_batch_that_is_repeated_adds_nothing(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    batch, rows = batch_of(0, 3), [up(1, id, name=str(id)) for id in range(20)]
    results = written(ice, batch, *rows)
    ice.finish(batch, results)
    before = table_of(ice).metadata_location
    ice.finish(batch, results)
    assert not deliver(opened(catalog), batch, *rows)
    later = opened(catalog)
    later.finish(batch, written(later, batch, *rows))
    assert table_of(ice).metadata_location == before
    assert snapshots(ice) == 1
    assert [row[0] for row in held(ice, "id")] == sorted(range(20), key=lambda id: repr((id,)))


def test_withheld_rows_move_the_mark_without_a_snapshot(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    assert deliver(ice, batch_of(0, 3), withheld(1, 1))
    assert ice.position(2) == {0: 3, 1: 3}
    assert deliver(ice, batch_of(3, 4), up(4, 1, name="a"))
    assert deliver(ice, batch_of(4, 8), withheld(8, 1))
    assert ice.position(2) == {0: 8, 1: 8}
    assert snapshots(ice) == 1
    assert [name for name in table_of(ice).properties if "strandline.mark" in name] == ["strandline.mark.sink-life.8"]


def test_a_batch_without_any_row_needs_no_lane(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice.finish(batch_of(0, 3), [])
    assert ice.position(1) == {0: 3}


# --- crashes, lost answers, races ------------------------------------------------------------------------------

DELIVER = """
import json, sys
import pyarrow as pa
from icebergs import PRODUCER, batch_of, deliver, up
from strandline.sinks.iceberg import IcebergSink
facts = json.loads(sys.argv[1])
ice = IcebergSink(facts["catalog"], facts["table"], mode=facts["mode"]).open(PRODUCER)
deliver(ice, batch_of(0, 4), *(up(4, id, name="x") for id in range(50)))
"""


@pytest.mark.parametrize("point", ["sink.files_written", "sink.committed"])
@pytest.mark.parametrize("mode", ["changes", "mirror"])
def test_a_killed_process_is_replayed_once(catalog: dict[str, str], opened: Opened, point: str, mode: str) -> None:
    ice = opened(catalog, mode=mode)
    facts = {"catalog": catalog, "table": ice._sink.table, "mode": mode}
    killed = python(DELIVER, json.dumps(facts), crash=point)
    assert killed.returncode == -9, killed.stderr
    assert ice.position(1) == ({} if point == "sink.files_written" else {0: 4})
    is_sent = deliver(ice, batch_of(0, 4, is_replay=True), *(up(4, id, name="x") for id in range(50)))
    assert is_sent == (point == "sink.files_written")
    assert len(held(ice, "id")) == len(set(held(ice, "id"))) == 50
    assert snapshots(ice) == 1
    assert ice.position(1) == {0: 4}


def test_a_commit_whose_answer_is_lost_counts_once(seaweed: str, opened: Opened) -> None:
    with proxied(ICEBERG[seaweed]) as proxy:
        ice = opened(rest_catalog(seaweed, proxy.endpoint))
        deliver(ice, batch_of(0, 1), up(1, 1, name="a"))
        proxy.is_aimed = lambda command, path: command == "POST" and "/tables/" in path
        proxy.faults += ["unsent", "busy", "lost"]
        deliver(ice, batch_of(1, 2), up(2, 2, name="b"), up(2, 3, name="c"))
        assert proxy.seen == ["unsent", "busy", "lost"]
    direct = opened(rest_catalog(seaweed))
    assert snapshots(direct) == 2
    assert held(direct, "id") == [(1,), (2,), (3,)]


def test_a_conflict_that_hides_a_landed_commit_deletes_nothing(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    commit = ice._catalog.commit_table

    def landed(*request: Any) -> Any:
        # As a client that repeats a request by itself, and is told that the first one was quicker.
        commit(*request)
        raise CommitFailedException("branch main has changed")

    ice._catalog.commit_table = landed
    batch = batch_of(0, 1)
    ice.finish(batch, written(ice, batch, up(1, 1, name="a")))
    assert snapshots(ice) == 1
    assert held(ice, "id") == [(1,)]


@pytest.mark.parametrize("mode", ["changes", "mirror"])
def test_two_that_saw_the_batch_missing_add_it_once(catalog: dict[str, str], opened: Opened, mode: str) -> None:
    first, second = opened(catalog, mode=mode), opened(catalog, mode=mode)
    fresh = second._load_table
    for batch, rows in ((batch_of(0, 1), [up(1, 1, name="a")]), (batch_of(1, 2), [up(2, 2), up(2, 1, name="A")])):
        assert not first.is_delivered(batch) and not second.is_delivered(batch)
        ours, theirs = written(first, batch, *rows), written(second, batch, *rows)
        stale = [table_of(second)]
        first.finish(batch, ours)
        second._load_table = lambda stale=stale: stale.pop() if stale else fresh()  # type: ignore[method-assign]
        second.finish(batch, theirs)
        assert not stale
        assert snapshots(first) == batch.upto
    assert len(held(first, "id")) == (3 if mode == "changes" else 2)


def test_many_that_finish_at_once_add_a_batch_once(catalog: dict[str, str], opened: Opened) -> None:
    deliveries = [opened(catalog) for _ in range(4)]
    deliver(deliveries[0], batch_of(0, 1), up(1, 100))
    batch = batch_of(1, 2)
    start = threading.Barrier(len(deliveries))

    def run(delivery: IcebergDelivery) -> None:
        start.wait()
        deliver(delivery, batch, *(up(2, id, name="x") for id in range(10)))

    with ThreadPoolExecutor(len(deliveries)) as pool:
        list(pool.map(run, deliveries))
    assert snapshots(deliveries[0]) == 2
    assert len(held(deliveries[0], "id")) == 11


def test_a_late_batch_of_withheld_rows_does_not_set_the_mark_back(catalog: dict[str, str], opened: Opened) -> None:
    slow, quick = opened(catalog), opened(catalog)
    deliver(quick, batch_of(0, 1), up(1, 1))
    batch = batch_of(1, 4)
    results, stale, fresh = written(slow, batch, withheld(2, 1)), [table_of(slow)], slow._load_table
    deliver(quick, batch, withheld(2, 1))
    deliver(quick, batch_of(4, 9), withheld(9, 1))
    slow._load_table = lambda: stale.pop() if stale else fresh()  # type: ignore[method-assign]
    slow.finish(batch, results)
    assert not stale
    assert quick.position(1) == {0: 9}
    assert deliver(quick, batch_of(9, 10), up(10, 2))


def test_two_producers_keep_marks_of_their_own(local: dict[str, str], opened: Opened) -> None:
    one, other = opened(local), opened(local, Producer("lake-1", "other", "items", "table-life", "other-life", 1))
    deliver(one, batch_of(0, 5), up(5, 1, name="a"))
    assert other.position(1) == {}
    assert deliver(other, batch_of(0, 2), up(2, 7, name="b"))
    assert (one.position(1), other.position(1)) == ({0: 5}, {0: 2})
    assert held(one, "id") == [(1,), (7,)]


def test_a_table_that_was_dropped_is_a_conflict(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    deliver(ice, batch_of(0, 3), up(1, 1, name="a"))
    batch = batch_of(3, 4)
    results = written(ice, batch, up(4, 2, name="b"))
    ice._catalog.drop_table(ice._sink.identifier)
    with refused(Conflict, consumer="ice", expected=3):
        ice.is_delivered(batch)
    with refused(Conflict, consumer="ice"):
        ice.finish(batch, results)
    anew = batch_of(0, 4)
    with refused(Conflict, consumer="ice"):
        ice.finish(anew, results)
    ice._catalog.create_table(ice._sink.identifier, pa.schema([("id", pa.int64())]))
    with refused(Conflict, consumer="ice", expected=3):
        ice.is_delivered(batch)
    with refused(Conflict, consumer="ice"):
        ice.finish(batch, results)
    assert table_of(ice).scan().count() == 0


# --- tables that someone else made -----------------------------------------------------------------------------


def test_a_partitioned_table_is_refused(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "name"))
    schema = Schema(NestedField(1, "name", StringType(), required=False))
    ice._catalog.create_table(ice._sink.identifier, schema, partition_spec=spec)
    with refused(Invalid, consumer="ice"):
        ice.lane(batch_of(0, 1))


# --- the sink as a value ---------------------------------------------------------------------------------------


def test_a_sink_is_a_value(local: dict[str, str]) -> None:
    sink = IcebergSink(local, "ns.t")
    assert sink == IcebergSink(dict(reversed(local.items())), "ns.t") == IcebergSink.from_dict(sink.to_dict())
    assert hash(sink) == hash(IcebergSink(local, "ns.t"))
    others = [IcebergSink(local, "ns.u"), IcebergSink(local, "ns.t", mode="upsert")]
    others += [
        IcebergSink({**local, "warehouse": "file:///other"}, "ns.t"),
        IcebergSink({**local, "name": "b"}, "ns.t"),
    ]
    assert len({sink.destination, *(other.destination for other in others)}) == 5
    local["uri"] = "changed"
    assert sink.catalog["uri"] != "changed"
    with pytest.raises(AttributeError):
        sink.table = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "messages"},
        {"table": ""},
        {"table": "ns."},
        {"mode": "append"},
        {"catalog": "x"},
        {"catalog": {"a": []}},
    ],
)
def test_a_sink_that_names_nothing_is_refused(wrong: dict[str, Any]) -> None:
    facts = {"catalog": {"type": "sql"}, "table": "ns.t", **wrong}
    with refused(Invalid):
        IcebergSink(facts.pop("catalog"), facts.pop("table"), **facts)


def test_the_module_does_not_load_pyiceberg() -> None:
    code = (
        "import sys, strandline.sinks.iceberg; print([m for m in sys.modules if 'pyiceberg' in m or 'sqlalchemy' in m])"
    )
    assert python(code).stdout.strip() == "[]"
