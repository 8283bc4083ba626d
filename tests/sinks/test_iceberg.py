"""Iceberg as a destination, in a SQLite catalog with local files and in a real REST catalog with S3."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import strandline as sl
from strandline.errors import Conflict, Invalid, Unavailable
from strandline.model.scrub import plain
from strandline.model.types import JSON
from strandline.sinks import iceberg_rows
from strandline.sinks.contract import WITHHELD, Batch, Producer, Result
from strandline.sinks.iceberg import IcebergDelivery, IcebergSink
from strandline.sinks.iceberg_catalog import CatalogSettings, open_catalog
from support import ICEBERG, KEY, SECRET, TABLE_BUCKET, free_ports, proxied, python, refused, rows_of

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("qty", pa.int32())])
PRODUCER = Producer("lake-1", "ice", "items", "table-life", "sink-life", 1)
Row = Mapping[str, Any]


def local_catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/ware house"}


def rest_catalog(s3: str, uri: str | None = None) -> dict[str, str]:
    uri = uri or ICEBERG[s3]
    return {
        "type": "rest",
        "uri": uri,
        "warehouse": f"s3://{TABLE_BUCKET}",
        "credential": f"{KEY}:{SECRET}",
        "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        "s3.endpoint": s3,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }


@pytest.fixture(params=["sqlite", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings of a real catalog; the test runs for each kind."""
    if request.param == "sqlite":
        return local_catalog(tmp_path)
    return rest_catalog(request.getfixturevalue("seaweed"))


@pytest.fixture
def local(tmp_path: Path) -> dict[str, str]:
    return local_catalog(tmp_path)


@pytest.fixture
def opened() -> Iterator[Callable[..., IcebergDelivery]]:
    """Opens deliveries to one table of this test's own, and closes them."""
    table = f"n{uuid.uuid4().hex[:8]}.items"
    made: list[IcebergDelivery] = []

    def open_delivery(catalog: Mapping[str, str], producer: Producer = PRODUCER, **options: Any) -> IcebergDelivery:
        made.append(IcebergSink(catalog, options.pop("table", table), **options).open(producer))
        return made[-1]

    yield open_delivery
    for delivery in made:
        delivery.close()


def batch_of(after: int, upto: int, columns: pa.Schema = COLUMNS, **facts: Any) -> Batch:
    facts = {"key": ("id",), "is_first": after == 0, **facts}
    return Batch(f"batch-{upto}", (0, 1), after, upto, columns, **facts)


def up(seq: int, id: int, **values: Any) -> Row:
    return {"_op": "upsert", "_vnode": id % 2, "_seq": seq, "id": id, **values}


def gone(seq: int, id: int) -> Row:
    return {"_op": "delete", "_vnode": id % 2, "_seq": seq, "id": id}


def withheld(seq: int, id: int) -> Row:
    return {**gone(seq, id), "_op": WITHHELD}


def written(delivery: IcebergDelivery, batch: Batch, *rows: Row) -> list[Result]:
    """What two lanes make of the rows."""
    lane = delivery.lane(batch)
    parts = [part for part in (rows[::2], rows[1::2]) if part]
    results = [r for part in parts for r in lane(iter([pa.RecordBatch.from_pylist(part, schema=batch.incoming)]))]
    assert [result.error for result in results if result.error] == []
    return results


def deliver(delivery: IcebergDelivery, batch: Batch, *rows: Row) -> bool:
    """The way a cursor goes; False when the destination has the batch."""
    if delivery.is_delivered(batch):
        return False
    delivery.finish(batch, written(delivery, batch, *rows))
    return True


def table_of(delivery: IcebergDelivery) -> Any:
    table = delivery._load()
    assert table is not None
    return table


def held(delivery: IcebergDelivery, *columns: str) -> list[tuple[Any, ...]]:
    return rows_of(table_of(delivery).scan().to_arrow().select(columns or ["_op", "_seq", "id", "name", "qty"]))


def snapshots(delivery: IcebergDelivery) -> int:
    return len(table_of(delivery).snapshots())


Opened = Callable[..., IcebergDelivery]


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


def test_a_new_column_and_wider_numbers_evolve_the_table(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    narrow = pa.schema([*COLUMNS, ("score", pa.float32())])
    deliver(ice, batch_of(0, 1, narrow), up(1, 1, name="a", qty=1, score=0.5))
    wide = pa.schema(
        [*COLUMNS.set(2, pa.field("qty", pa.int64())), ("score", pa.float64()), ("tags", pa.list_(JSON.storage_type))]
    )
    deliver(ice, batch_of(1, 2, wide), up(2, 2, name="b", qty=1 << 40, score=0.1, tags=["x", None]))
    deliver(ice, batch_of(2, 3, narrow), up(3, 3, name="c", qty=3, score=2.0))
    assert held(ice, "id", "name", "qty", "score", "tags") == [
        (1, "a", 1, "0.5", None),
        (2, "b", 1 << 40, "0.1", ["x", None]),
        (3, "c", 3, "2.0", None),
    ]
    assert snapshots(ice) == 3


def test_a_column_that_does_not_fit_is_refused_by_name(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"))
    other = COLUMNS.set(1, pa.field("name", pa.int32()))
    with refused(Invalid, column="name"):
        ice.lane(batch_of(1, 2, other))
    assert ice.position(1) == {0: 1}


def test_every_type_reads_back_equal(local: dict[str, str], opened: Opened) -> None:
    utc = dt.UTC
    kinds: dict[str, tuple[pa.DataType, Any, str]] = {
        "i8": (pa.int8(), -3, "int"),
        "i16": (pa.int16(), 300, "int"),
        "i32": (pa.int32(), 1 << 20, "int"),
        "i64": (pa.int64(), 1 << 40, "long"),
        "yes": (pa.bool_(), True, "boolean"),
        "f32": (pa.float32(), 1.5, "float"),
        "f64": (pa.float64(), 0.1, "double"),
        "text": (pa.string(), "é" * 40, "string"),
        "raw": (pa.binary(), b"\x00\xff", "binary"),
        "day": (pa.date32(), dt.date(1969, 1, 2), "date"),
        "at": (pa.timestamp("us"), dt.datetime(2024, 1, 2, 3, 4, 5, 6), "timestamp"),
        "utc": (pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 2, 3, 4, 5, 6, utc), "timestamptz"),
        "dec5": (pa.decimal128(5, 2), Decimal("-1.25"), "decimal(5, 2)"),
        "dec15": (pa.decimal128(15, 3), Decimal("1234567.125"), "decimal(15, 3)"),
        "dec30": (pa.decimal128(30, 9), Decimal("123456789012345678901.000000001"), "decimal(30, 9)"),
        "json": (JSON, '{"a":  1}', "string"),
        "list": (pa.list_(pa.int16()), [1, None], "list<int>"),
        "map": (pa.map_(pa.string(), pa.int8()), [("k", 1), ("z", None)], "map<string, int>"),
        "deep": (
            pa.list_(pa.struct([("x", pa.timestamp("us", "UTC")), ("y", pa.list_(pa.string()))])),
            [{"x": dt.datetime(1970, 1, 1, tzinfo=utc), "y": ["p", None]}, None],
            "list<struct",
        ),
    }  # fmt: skip
    columns = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in kinds.items())])
    values = {name: value for name, (_, value, _) in kinds.items()}
    ice = opened(local)
    deliver(ice, batch_of(0, 1, columns), up(1, 1, **values), gone(1, 2), up(1, 3, f64=math.nan))
    table = table_of(ice)
    for name, (_, _, theirs) in kinds.items():
        assert str(table.schema().find_field(name).field_type).startswith(theirs), name
    assert all(column.optional for column in table.schema().columns)
    found = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert {name: found[1][name] for name in kinds} == values
    # To pyiceberg's reader a list of structs that is null is an empty one; in the file it is null, see below.
    assert [name for name in kinds if found[2][name] is not None] in ([], ["deep"])
    assert math.isnan(found[3]["f64"])
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    assert len(files) == 2
    read = duckdb.read_parquet(files).order("id").to_arrow_table().to_pylist()
    assert {name: read[0][name] for name in kinds} == values
    assert [name for name in kinds if read[1][name] is not None] == []


# --- crashes, lost answers, races ------------------------------------------------------------------------------

DELIVER = """
import json, sys
import pyarrow as pa
from test_iceberg import PRODUCER, batch_of, deliver, up
from strandline.sinks.iceberg import IcebergSink
facts = json.loads(sys.argv[1])
ice = IcebergSink(facts["catalog"], facts["table"], mode=facts["mode"]).open(PRODUCER)
deliver(ice, batch_of(0, 4), *(up(4, id, name="x") for id in range(50)))
"""


@pytest.mark.parametrize("point", ["sink.files_written", "sink.committed"])
@pytest.mark.parametrize("mode", ["changes", "upsert"])
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


@pytest.mark.parametrize("mode", ["changes", "upsert"])
def test_two_that_saw_the_batch_missing_add_it_once(catalog: dict[str, str], opened: Opened, mode: str) -> None:
    first, second = opened(catalog, mode=mode), opened(catalog, mode=mode)
    fresh = second._load
    for batch, rows in ((batch_of(0, 1), [up(1, 1, name="a")]), (batch_of(1, 2), [up(2, 2), up(2, 1, name="A")])):
        assert not first.is_delivered(batch) and not second.is_delivered(batch)
        ours, theirs = written(first, batch, *rows), written(second, batch, *rows)
        stale = [table_of(second)]
        first.finish(batch, ours)
        second._load = lambda stale=stale: stale.pop() if stale else fresh()  # type: ignore[method-assign]
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
    results, stale, fresh = written(slow, batch, withheld(2, 1)), [table_of(slow)], slow._load
    deliver(quick, batch, withheld(2, 1))
    deliver(quick, batch_of(4, 9), withheld(9, 1))
    slow._load = lambda: stale.pop() if stale else fresh()  # type: ignore[method-assign]
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


def test_a_table_that_is_there_is_used_if_the_columns_fit(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    theirs = ice._catalog.create_table(
        ice._sink.identifier,
        Schema(
            NestedField(1, "note", StringType(), required=False),
            NestedField(2, "qty", LongType(), required=False),
            NestedField(3, "id", LongType(), required=True),
        ),
    )
    theirs.append(pa.table({"note": ["theirs"], "qty": pa.array([9]), "id": [0]}, theirs.schema().as_arrow()))
    deliver(ice, batch_of(0, 1), up(1, 1, name="a", qty=1), gone(1, 2))
    assert held(ice, "id", "note", "qty", "name", "_op") == [
        (0, "theirs", 9, None, None),
        (1, None, 1, "a", "upsert"),
        (2, None, None, None, "delete"),
    ]
    with table_of(ice).update_schema() as update:
        update.rename_column("name", "title")
    with refused(Invalid, column="name"):
        ice.lane(batch_of(1, 2))


def test_a_table_that_requires_what_a_delete_lacks_takes_no_delete(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    required = [NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType(), required=True)]
    ice._catalog.create_table(ice._sink.identifier, Schema(*required))
    batch = batch_of(0, 1)
    [result] = ice.lane(batch)(iter([pa.RecordBatch.from_pylist([gone(1, 1)], schema=batch.incoming)]))
    assert isinstance(result.error, Invalid) and result.error.fields["column"] == "name"
    with refused(Invalid, column="name"):
        ice.finish(batch, [result])
    with refused(Invalid, column="name"):
        ice.lane(batch_of(0, 1, pa.schema([("id", pa.int64())])))


def test_a_partitioned_table_is_refused(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "name"))
    schema = Schema(NestedField(1, "name", StringType(), required=False))
    ice._catalog.create_table(ice._sink.identifier, schema, partition_spec=spec)
    with refused(Invalid, consumer="ice"):
        ice.lane(batch_of(0, 1))


# --- upsert ----------------------------------------------------------------------------------------------------


def test_upsert_keeps_the_current_rows(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog, mode="upsert")
    deliver(ice, batch_of(0, 2), up(1, 1, name="a"), up(1, 2, name="b"), up(2, 1, name="A", qty=2), up(1, 3, name="c"))
    assert held(ice, "id", "name", "qty") == [(1, "A", 2), (2, "b", None), (3, "c", None)]
    deliver(ice, batch_of(2, 6), gone(3, 1), up(4, 4, name="d"), gone(5, 4), up(6, 2, name="B"), gone(6, 99))
    assert held(ice, "id", "name", "qty") == [(2, "B", None), (3, "c", None)]
    assert snapshots(ice) == 2
    deliver(ice, batch_of(6, 7), gone(7, 77), withheld(7, 2))
    assert snapshots(ice) == 2
    assert ice.position(2) == {0: 7, 1: 7}
    wide = pa.schema([*COLUMNS.set(2, pa.field("qty", pa.int64())), ("more", pa.string())])
    deliver(ice, batch_of(7, 8, wide), up(8, 3, name="c", qty=1 << 40, more="m"))
    assert held(ice, "id", "name", "qty", "more") == [(2, "B", None, None), (3, "c", 1 << 40, "m")]
    deliver(ice, batch_of(8, 9), gone(9, 2), gone(9, 3))
    assert held(ice, "id") == []
    storage, folder, _ = ice._place(table_of(ice))
    assert list(storage.list(f"{folder}/changes")) == []


def test_upsert_equals_a_dict_whatever_the_batches(
    local: dict[str, str], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_rows, "_MANY", 4)
    random_ = random.Random(seed := random.randrange(1 << 30))
    columns = pa.schema(
        [("day", pa.date32()), ("code", pa.binary()), ("name", pa.string()), ("tags", pa.list_(pa.int8()))]
    )
    ice = opened(local, mode="upsert")
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    upto = 0
    for _ in range(12):
        rows, after, upto = [], upto, upto + random_.randint(1, 4)
        for seq in range(after + 1, upto + 1):
            for code in random_.sample(range(30), random_.randint(0, 12)):
                key = (dt.date(2024, 1, 1 + code % 3), bytes([code]))
                row = {"_vnode": 0, "_seq": seq, "day": key[0], "code": key[1]}
                if random_.random() < 0.3:
                    expected.pop(key, None)
                    rows.append({**row, "_op": "delete"})
                else:
                    expected[key] = (*key, f"{code}@{seq}", [code, None])
                    rows.append({**row, "_op": "upsert", "name": f"{code}@{seq}", "tags": [code, None]})
        random_.shuffle(rows)
        deliver(ice, batch_of(after, upto, columns, key=("day", "code")), *rows)
        assert held(ice, *columns.names) == sorted(expected.values(), key=repr), f"seed {seed}"
    assert len(list(table_of(ice).scan().plan_files())) <= 8


def test_upsert_leaves_files_alone_that_hold_no_changed_key(local: dict[str, str], opened: Opened) -> None:
    def files() -> set[str]:
        return {task.file.file_path for task in table_of(ice).scan().plan_files()}

    ice = opened(local, mode="upsert")
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"), up(1, 2, name="b"))
    first = files()
    deliver(ice, batch_of(1, 2), up(2, 5, name="e"), up(2, 6, name="f"))
    deliver(ice, batch_of(2, 3), up(3, 6, name="F"))
    assert first < files()
    assert held(ice, "id", "name") == [(1, "a"), (2, "b"), (5, "e"), (6, "F")]


def test_upsert_keeps_nested_values_as_they_are(local: dict[str, str], opened: Opened) -> None:
    columns = pa.schema([("id", pa.int64()), ("parts", pa.list_(pa.struct([("x", pa.int8())])))])
    ice = opened(local, mode="upsert")
    deliver(ice, batch_of(0, 1, columns), up(1, 1), up(1, 3, parts=[]), up(1, 5, parts=[{"x": 1}, None]), up(1, 7))
    deliver(ice, batch_of(1, 2, columns), up(2, 7, parts=None), up(2, 8))
    files = [task.file.file_path.removeprefix("file://") for task in table_of(ice).scan().plan_files()]
    found = rows_of(duckdb.read_parquet(files).to_arrow_table())
    assert found == [(1, None), (3, []), (5, [{"x": 1}, None]), (7, None), (8, None)]


def test_upsert_respects_what_others_wrote_and_deleted(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local, mode="upsert")
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"), up(1, 2, name="b"))
    table = table_of(ice)
    table.append(pa.table({"id": [7, 8], "name": ["theirs", "x"], "qty": [1, 1]}, table.schema().as_arrow()))
    table.delete("id = 2")
    deliver(ice, batch_of(1, 2), up(2, 8, name="ours"))
    assert held(ice, "id", "name") == [(1, "a"), (7, "theirs"), (8, "ours")]
    with table_of(ice).update_schema() as update:
        update.rename_column("qty", "amount")
    with refused(Invalid):
        deliver(ice, batch_of(2, 3, pa.schema([("id", pa.int64()), ("name", pa.string())])), up(3, 8, name="again"))
    assert held(ice, "id", "name") == [(1, "a"), (7, "theirs"), (8, "ours")]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_first_batch_of_an_upsert_replaces_what_an_earlier_life_brought(
    catalog: dict[str, str], opened: Opened, is_repeated: bool
) -> None:
    deliver(opened(catalog, mode="upsert"), batch_of(0, 2), *(up(2, id, name="old") for id in range(1, 6)))
    life = replace(PRODUCER, generation="next-life")
    ice = opened(catalog, life, mode="upsert")
    batch, rows = batch_of(0, 3), [up(3, 1, name="new"), up(3, 9, name="new")]
    results = written(ice, batch, *rows)
    if is_repeated:
        again = opened(catalog, life, mode="upsert")
        again.finish(batch, written(again, batch, *rows))
    ice.finish(batch, results)
    assert held(ice, "id", "name") == [(1, "new"), (9, "new")]
    assert snapshots(ice) == 2
    deliver(ice, batch_of(3, 4), up(4, 2, name="later"), gone(4, 9))
    assert held(ice, "id", "name") == [(1, "new"), (2, "later")]


def test_a_first_batch_without_rows_leaves_an_upsert_table_as_it_is(local: dict[str, str], opened: Opened) -> None:
    deliver(opened(local, mode="upsert"), batch_of(0, 2), up(2, 1, name="old"))
    ice = opened(local, replace(PRODUCER, generation="next-life"), mode="upsert")
    deliver(ice, batch_of(0, 3))
    assert held(ice, "id") == [(1,)]


def test_upsert_needs_a_key_and_a_table_of_rows(local: dict[str, str], opened: Opened) -> None:
    with refused(Invalid, consumer="ice"):
        opened(local, mode="upsert").lane(batch_of(0, 1, key=()))
    deliver(opened(local), batch_of(0, 1), up(1, 1))
    with refused(Invalid, consumer="ice"):
        opened(local, mode="upsert").lane(batch_of(0, 1))


# --- the sink as a value ---------------------------------------------------------------------------------------


def test_secrets_are_kept_as_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = {
        "type": "rest",
        "uri": "postgresql+psycopg://me:hid%2Fden@db:5432/cat",
        "token": "hidden-token",
        "credential": "env:ICE_CREDENTIAL",
        "s3.secret-access-key": "hidden-key",
        "s3.access-key-id": "AK",
        "auth": {"type": "basic", "basic": {"username": "me", "password": "hidden-basic"}},
    }
    sink = IcebergSink(catalog, "ns.t", options={"secret_access_key": "hidden-too", "region": "x"})
    kept = sink.to_dict()
    for text in (json.dumps(kept), repr(sink), sink.destination):
        assert "hid" not in text
    assert kept["catalog"]["credential"] == "env:ICE_CREDENTIAL"
    assert kept["catalog"]["uri"] == "postgresql+psycopg://me:given@db:5432/cat"
    assert sink.destination == "Iceberg table ns.t (rest postgresql+psycopg://db:5432/cat)"
    assert IcebergSink.from_dict(kept).destination == sink.destination
    with refused(Invalid):
        IcebergSink.from_dict(kept).open(PRODUCER)
    monkeypatch.setenv("ICE_CREDENTIAL", "from-env")
    assert sink.catalog.resolved() == {**catalog, "credential": "from-env"}
    references = {"uri": "postgresql://me:env:ICE_CREDENTIAL@db/cat", "token": "env:T", "s3.access-key-id": "env:K"}
    by_reference = IcebergSink(references, "ns.t")
    assert IcebergSink.from_dict(by_reference.to_dict()) == by_reference
    assert by_reference.to_dict()["catalog"] == references
    monkeypatch.setenv("T", "t")
    monkeypatch.setenv("K", "k")
    resolved = {"uri": "postgresql://me:from-env@db/cat", "token": "t", "s3.access-key-id": "k"}
    assert by_reference.catalog.resolved() == resolved


@pytest.mark.parametrize(
    "settings",
    [
        {"uri": "postgresql+psycopg://me:HIDDEN/a+b@127.0.0.1:1/db"},
        {"uri": "postgresql+psycopg://me:HID@DEN@127.0.0.1:1/db"},
        {"uri": "postgresql+psycopg://me@127.0.0.1:1/db?sslpassword=HIDDEN"},
        {"uri": "postgresql+psycopg://127.0.0.1:1/db;password=HIDDEN"},
        {"uri": "host=db password=HIDDEN"},
        {"uri": "http://127.0.0.1:1/cat?token=HIDDEN"},
        {"uri": "http://127.0.0.1:1/cat?HIDDEN"},
        {"uri": "http://HIDDEN@127.0.0.1:1/cat"},
        {"uri": "http://me:HIDDEN/x@127.0.0.1:1/cat"},
        {"header.X-Api-Key": "HIDDEN"},
        {"adls.connection-string": "AccountKey=HIDDEN"},
        {"rest.authorization-header": "HIDDEN"},
        {"oauth2-client-secret-key": "HIDDEN"},
        {"oauth2-server-uri": "http://me:HIDDEN@127.0.0.1:1/token"},
        {"s3.endpoint": "http://me:HIDDEN@127.0.0.1:1"},
        {"warehouse": "s3://key:HIDDEN/x@bucket/wh"},
        {"what-nobody-knows": "HIDDEN"},
        {"auth": {"type": "oauth2", "oauth2": {"client_id": "me", "client_secret": "HIDDEN", "expires_in": 7}}},
    ],
)
def test_whatever_may_be_a_secret_is_neither_kept_nor_shown(settings: dict[str, Any]) -> None:
    sink = IcebergSink({"type": "rest", "uri": "http://127.0.0.1:1", **settings}, "ns.t", options={"odd": "HIDDEN"})
    kept = sink.to_dict()
    assert sink.catalog.resolved() == {"type": "rest", "uri": "http://127.0.0.1:1", **settings}
    assert IcebergSink.from_dict(kept).to_dict() == kept
    assert IcebergSink.from_dict(kept).destination == sink.destination
    with refused(Invalid):
        IcebergSink.from_dict(kept).catalog.resolved()
    said = plain(json.dumps(sink.catalog.resolved()), sink.catalog.secrets())
    for text in (json.dumps(kept), repr(sink), sink.destination, said):
        assert "HID" not in text and "DEN" not in text
    kind = "sql" if str(settings.get("uri", "")).startswith("post") else "rest"
    with pytest.raises(sl.StrandlineError) as caught:
        IcebergSink({"uri": "http://127.0.0.1:1", **settings, "type": kind}, "ns.t").open(PRODUCER)
    shown = "".join(traceback.format_exception(caught.value))
    assert "HID" not in str(caught.value) and "DEN" not in str(caught.value)
    assert "HIDDEN" not in shown.replace('"HIDDEN', "")


def test_plain_settings_are_kept_as_they_are() -> None:
    settings = {
        "type": "sql",
        "name": "prod",
        "uri": "postgresql+psycopg://me:env:P@db/cat?sslmode=require",
        "warehouse": "s3://tables/team@home",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.path-style-access": "true",
        "s3.connect-timeout": 5,
        "ssl": {"cabundle": "/etc/ca.pem"},
        "odd": True,
    }
    options = {"endpoint": "http://127.0.0.1:9000", "region": "x", "access_key_id": "AK"}
    kept = IcebergSink(settings, "ns.t", options=options).to_dict()
    assert (kept["catalog"], kept["options"]) == (settings, options)


def test_a_rest_catalog_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for more in ({}, {"credential": "a:b", "oauth2-server-uri": f"{uri}/token"}):
            started_s = time.monotonic()
            with refused(Unavailable):
                open_catalog(CatalogSettings({"type": "rest", "uri": uri, **more}, "catalog"), "there", timeout_s=0.3)
            assert time.monotonic() - started_s < 5


def test_an_open_rest_catalog_that_falls_silent_is_given_up(seaweed: str) -> None:
    catalog = open_catalog(CatalogSettings(rest_catalog(seaweed), "catalog"), "there", timeout_s=5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        catalog.uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        catalog._session.request = partial(catalog._session.request, timeout=0.3)
        ice = IcebergDelivery(IcebergSink(rest_catalog(seaweed), "ns.t"), PRODUCER, catalog)
        with refused(Unavailable):
            ice.position(1)
    ice.close()


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


def test_a_catalog_that_is_not_there_or_refuses_is_said(seaweed: str, tmp_path: Path) -> None:
    def error_of(**settings: str) -> sl.StrandlineError:
        with pytest.raises(sl.StrandlineError) as caught:
            IcebergSink(settings, "ns.t").open(PRODUCER)
        assert "ns.t" in caught.value.message and caught.value.hint
        assert "secret" not in str(caught.value)
        return caught.value

    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert type(error_of(type="rest", uri=nobody)) is Unavailable
    assert type(error_of(type="sql", uri=f"sqlite:///{tmp_path}/no/such/folder/c.db")) is Unavailable
    assert type(error_of(type="hive", uri="thrift://127.0.0.1:1")) is Unavailable
    assert type(error_of(type="nonsense", uri="x", token="secret")) is Invalid
    assert type(error_of(type="sql")) is Invalid
    assert type(error_of(type="sql", uri="nonsense://x")) is Invalid
    wrong = {**rest_catalog(seaweed), "credential": "nobody:secret"}
    assert type(error_of(**wrong)) is Invalid
    # A server, but no catalog.
    assert type(error_of(type="rest", uri=seaweed)) in (Invalid, Unavailable)


def test_files_elsewhere_than_local_or_s3_are_refused(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1))
    table_of(ice).transaction().set_properties({"write.data.path": "gs://bucket/x"}).commit_transaction()
    with refused(Invalid, path="gs://bucket/x"):
        ice.lane(batch_of(1, 2))


def test_the_data_folder_of_the_table_is_respected(local: dict[str, str], opened: Opened, tmp_path: Path) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1))
    table_of(ice).transaction().set_properties({"write.data.path": f"{tmp_path}/my data"}).commit_transaction()
    deliver(ice, batch_of(1, 2), up(2, 2))
    assert len(list((tmp_path / "my data").iterdir())) == 1
    assert held(ice, "id") == [(1,), (2,)]


def test_without_pyiceberg_the_sink_says_so(local: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with refused(Unavailable) as caught:
        IcebergSink(local, "ns.t").open(PRODUCER)
    assert "pip install" in str(caught.value.hint)


def test_the_module_does_not_load_pyiceberg() -> None:
    code = (
        "import sys, strandline.sinks.iceberg; print([m for m in sys.modules if 'pyiceberg' in m or 'sqlalchemy' in m])"
    )
    assert python(code).stdout.strip() == "[]"
