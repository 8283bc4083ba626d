"""The core on an object store: a real S3 server, and one whose answers get lost on the way."""

import contextlib
import datetime as dt
import io
import json
import os
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.consumers import compaction
from strandline.engines.choice import DriverLimit
from strandline.jobs.doctor import examine
from strandline.model.change import UPSERT
from strandline.model.rows import check_rows
from strandline.storage import delta
from strandline.storage.parquet import reader
from strandline.tables import writing
from support import (
    BUCKET,
    ITEMS,
    answer_of,
    by_id,
    claimed_files,
    options_for,
    proxied,
    refused,
    rows_of,
    start_python,
)


def test_the_core_works_on_the_driver(s3_lake):
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    history = [{}]

    def step(call, now):
        call()
        history.append(now)

    step(lambda: table.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], token="t"), {1: "a", 2: "b"})
    step(lambda: table.delete([1]), {2: "b"})
    table.compact(full=True)
    step(lambda: table.upsert([{"id": 3, "name": "c"}]), {2: "b", 3: "c"})
    step(lambda: table.evolve(pa.schema([("colour", pa.string())])), {2: "b", 3: "c"})
    step(lambda: table.upsert([{"id": 2, "name": "B", "colour": "red"}]), {2: "B", 3: "c"})
    for handle in (table, s3_lake().table("items")):
        assert [by_id(handle, at=seq) for seq in range(6)] == history
    table.compact(full=True)
    fresh = s3_lake()
    assert [by_id(fresh.table("items"), at=seq) for seq in range(6)] == history
    assert fresh.table("items").upsert([{"id": 9}], token="t") == sl.Commit(1, 2, is_replay=True)
    assert fresh.sql("SELECT name FROM items WHERE colour = 'red'").to_pylist() == [{"name": "B"}]
    assert fresh.table("items").to_arrow(where="id = 3", columns=["name"]).to_pylist() == [{"name": "c"}]
    assert fresh.table("items").changes(3)["_seq"].to_pylist() == [5]
    with refused(sl.Invalid):
        fresh.sql("SELECT * FROM read_text('/etc/passwd')")


def test_a_large_file_is_read_whole_by_many_threads(s3_lake):
    """They share a file object, and each has to read where it wanted to."""
    columns = pa.schema([("id", pa.int64()), ("blob", pa.binary())])
    table = s3_lake().create_table("blobs", columns, key=["id"], vnodes=1)
    rows = {n: os.urandom(1 << 20) for n in range(20)}
    table.upsert([{"id": n, "blob": blob} for n, blob in rows.items()])
    for _ in range(2):
        found = table.to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["blob"].to_pylist(), strict=True)) == rows
        table.compact(full=True)


def test_other_engines_read_it(s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": n, "name": str(n)} for n in range(10)])
    table.compact(full=True)
    storage = table.log.storage
    for folder in (table.baseline.folder, table.log.folder):
        opened = DeltaTable(storage.url(folder), storage_options=dict(storage.delta_options))
        assert opened.to_pyarrow_table().num_rows == 10


def test_many_commits_are_checkpointed_and_read_on(s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=1)
    for n in range(55):
        table.upsert([{"id": n % 5, "name": str(n)}])
    table.log.delta.await_checkpoint()
    assert any(info.path.endswith(".checkpoint.parquet") for info in table.log.storage.list(table.log.folder))
    fresh = s3_lake().table("items")
    assert by_id(fresh) == {n % 5: str(n) for n in range(50, 55)}
    assert by_id(fresh, at=7) == {0: "5", 1: "6", 2: "2", 3: "3", 4: "4"}


def test_spark_writes_reads_and_folds(spark, s3_lake):
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert(spark.range(40).selectExpr("id", "'spark' AS name"))
    table.compact(full=True)
    table.upsert([{"id": n, "name": "driver"} for n in range(30, 50)])
    table.delete([0])
    expected = {n: "spark" if n < 30 else "driver" for n in range(1, 50)}
    assert by_id(table) == expected
    assert {row["id"]: row["name"] for row in table.to_spark().collect()} == expected
    assert {row["id"] for row in table.to_spark(at=1, where="id < 5").collect()} == set(range(5))
    compaction.compact(table, full=True, driver_rows=0)
    assert by_id(s3_lake().table("items")) == expected
    rows = check_rows([{"id": n % 50, "name": f"spool {n}"} for n in range(100)], table.schema)
    definition = table.definition
    commit = writing.write(table.log, rows, definition, UPSERT, tokens=(), spark=None, limit=DriverLimit(0, 1))
    assert commit.rows == 50
    assert by_id(table) == {n: f"spool {n + 50}" for n in range(50)}
    assert not [info for info in table.log.storage.list(table.log.folder) if "spool" in info.path]


def test_spark_reads_and_folds_a_renamed_table(spark, s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": n, "name": f"old {n}"} for n in range(20)])
    table.compact(full=True)
    table.upsert([{"id": n, "name": f"log {n}"} for n in range(5)])
    table.rename_column("name", "title")
    table.upsert([{"id": 0, "title": "new", "qty": 1}])
    expected = {0: "new", **{n: f"{'log' if n < 5 else 'old'} {n}" for n in range(1, 20)}}

    def read(**options):
        return {row["id"]: row["title"] for row in s3_lake().table("items").to_spark(**options).collect()}

    assert read() == expected
    assert read(where="title = 'new'") == {0: "new"}
    assert read(at=1) == {n: f"old {n}" for n in range(20)}
    compaction.compact(table, full=True, driver_rows=0)
    assert read() == expected


def test_two_lakes_write_one_table_without_losing_a_commit(s3_lake):
    s3_lake().create_table("events", ITEMS, vnodes=2)
    seqs = []

    def write(number):
        table = s3_lake().table("events")
        for n in range(10):
            seqs.append(table.append([{"id": number * 100 + n}]).seq)

    threads = [threading.Thread(target=write, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 31))
    assert rows_of(s3_lake().table("events").to_arrow(columns=["id"])) == sorted(
        ((number * 100 + n,) for number in range(3) for n in range(10)), key=repr
    )


def test_wrong_credentials_are_not_an_empty_lake(seaweed):
    with pytest.raises(sl.StrandlineError):
        sl.Lake(f"s3://{BUCKET}/x", storage_options={**options_for(seaweed), "secret_access_key": "wrong"})


# --- care ------------------------------------------------------------------------------------------------------


def objects(table):
    """Every object below a table's folder, and what it holds."""
    storage = table.log.storage
    return {info.path: storage.read(info.path) for info in storage.list(table.entry.folder)}


def data_objects(table):
    start = f"{table.entry.folder}/"
    return {path.removeprefix(start) for path in objects(table) if "/_delta_log/" not in path and ".parquet" in path}


def test_a_table_is_compacted_and_cleaned(s3_lake, monkeypatch):
    monkeypatch.setattr(delta, "RESTED_S", 0.0)
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    orphan = f"{table.log.folder}/0000-{'0' * 32}.parquet"
    with table.log.storage.output(orphan) as stream:
        stream.write(b"never claimed")
    for n in range(25):
        table.upsert([{"id": n % 6, "name": str(n)}])
        if n % 8 == 7:
            table.compact(full=True)
    expected = by_id(table)
    dry = table.vacuum(grace=0, keep=0, dry_run=True)
    assert orphan in objects(table) and dry.deleted_files >= 1
    table.compact(full=True)
    reports = [table.vacuum(grace=0, keep=0) for _ in range(2)]
    assert reports[0].deleted_files > 20 and reports[1].deleted_files == 0
    assert data_objects(table) == claimed_files(table)
    assert len([path for path in objects(table) if path.endswith(".json")]) < 20
    for handle in (table, s3_lake().table("items")):
        assert by_id(handle) == expected
        with refused(sl.NotRetained):
            handle.to_arrow(at=3)
    assert examine(lake.storage, deep=True).is_sound
    assert not [info for info in lake.storage.list("_check")], "looking at the store's clock leaves nothing behind"
    table.upsert([{"id": 100, "name": "after"}])
    assert by_id(s3_lake().table("items")) == expected | {100: "after"}


def test_a_write_whose_file_a_vacuum_took_for_a_leftover_is_refused(s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": 1, "name": "a"}])
    other = s3_lake().table("items")
    commit = table.log.commit

    def slow(files, **options):
        other.vacuum(grace=0, keep=0)
        return commit(files, **options)

    table.log.commit = slow
    with refused(sl.Conflict):
        table.upsert([{"id": 2, "name": "b"}])
    del table.log.commit
    table.upsert([{"id": 3, "name": "c"}])
    assert by_id(s3_lake().table("items")) == {1: "a", 3: "c"}


def test_a_pin_holds_until_it_expires_by_the_clock_of_the_store(s3_lake, monkeypatch):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    for n in range(4):
        table.upsert([{"id": 1, "name": str(n)}])
        table.compact(full=True)
    pin = s3_lake().table("items").pin(2, length="4s")
    # Whoever cleans may have a clock of its own that is far ahead.
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 10_000)
    report = table.vacuum(grace=0, keep=0)
    assert report.held_by.seq == 2
    assert pin.pin.name in report.held_by.who
    assert by_id(s3_lake().table("items"), at=2) == {1: "1"}
    with refused(sl.NotRetained):
        table.to_arrow(at=1)
    pin.renew()
    deadline_s = time.monotonic() + 30
    while table.vacuum(grace=0, keep=0).held_by.seq == 2:
        assert time.monotonic() < deadline_s, "the pin never expires"
        time.sleep(0.5)
    with refused(sl.NotRetained):
        s3_lake().table("items").to_arrow(at=2)
    assert by_id(s3_lake().table("items")) == {1: "3"}


def test_the_grace_time_is_kept_by_the_clock_of_the_store(s3_lake, monkeypatch):
    """This machine's clock is hours behind, so commits say that they are old when they are not."""
    monkeypatch.setattr(time, "time", lambda real=time.time: real() - 10_000)
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=1)
    table.upsert([{"id": 1, "name": "a"}])
    table.compact(full=True)
    time.sleep(6)
    reading = table.merge()
    table.upsert([{"id": 1, "name": "b"}])
    table.compact(full=True)
    for _ in range(2):
        table.vacuum(grace=5, keep=0)
    storage = table.log.storage
    assert all(storage.exists(f"{reading.baseline.folder}/{file.path}") for file in reading.baseline.files())


def test_rows_are_erased_from_every_object(s3_lake, monkeypatch):
    monkeypatch.setattr(delta, "RESTED_S", 0.0)
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    for n in range(3):
        table.upsert([{"id": key, "name": f"secret-{key}-{n}"} for key in range(4)])
        if n == 1:
            table.compact(full=True)
    table.purge([2])
    for handle in (table, s3_lake().table("items")):
        assert by_id(handle) == {key: f"secret-{key}-2" for key in (0, 1, 3)}
    for _ in range(2):
        table.vacuum(grace=0, keep=0)
    found = [path for path, data in objects(table).items() if b"secret-2" in data]
    assert not found
    for path, data in objects(table).items():
        if path.endswith(".parquet") and "_delta_log" not in path:
            assert 2 not in pq.read_table(io.BytesIO(data), columns=["id"])["id"].to_pylist()
    assert by_id(s3_lake().table("items")) == {key: f"secret-{key}-2" for key in (0, 1, 3)}


def test_rows_expire_and_tables_are_restored(s3_lake):
    schema = pa.schema([*ITEMS, ("day", pa.date32())])
    table = s3_lake().create_table("items", schema, key=["id"], vnodes=2, time="day")
    table.upsert([{"id": n, "name": "old", "day": dt.date(2026, 1, n + 1)} for n in range(10)])
    table.compact(full=True)
    assert table.expire(dt.date(2026, 1, 6)) == 2
    for handle in (table, s3_lake().table("items")):
        assert set(by_id(handle)) == set(range(5, 10))
        assert set(by_id(handle, at=1)) == set(range(10))
    table.compact()
    assert sum(file.rows for file in table.baseline.refresh().files()) == 5
    table.upsert([{"id": 5, "name": "new", "day": dt.date(2026, 1, 30)}])
    table.delete([6, 7])
    s3_lake().table("items").restore(2)
    assert by_id(table) == dict.fromkeys(range(5, 10), "old")
    table.drop_column("qty")
    table.compact(full=True)
    assert by_id(s3_lake().table("items")) == dict.fromkeys(range(5, 10), "old")


CARETAKER = """
import json, sys, time
import strandline as sl
table = sl.Lake(sys.argv[1], storage_options=json.loads(sys.argv[2])).table("items")
deleted, end_s = 0, time.monotonic() + 7
while time.monotonic() < end_s or (not deleted and time.monotonic() < end_s + 60):
    table.compact(full=True)
    deleted += table.vacuum(grace=3, keep=1).deleted_files
print(json.dumps(deleted))
"""


def test_another_process_compacts_and_cleans_while_this_one_writes_and_reads(s3_lake, seaweed):
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": 0, "name": "first"}])
    caretaker = start_python(CARETAKER, lake.storage.uri, json.dumps(options_for(seaweed)))
    expected, n = {0: "first"}, 0
    while caretaker.poll() is None:
        n += 1
        if n % 4:
            table.upsert([{"id": n % 10, "name": str(n)}])
            expected[n % 10] = str(n)
        else:
            table.delete([n % 10])
            expected.pop(n % 10, None)
        assert by_id(table) == expected
        if n % 10 == 0:
            assert by_id(s3_lake().table("items")) == expected
    assert answer_of(caretaker) > 0
    assert n > 5
    assert by_id(s3_lake().table("items")) == expected
    assert examine(lake.storage, deep=True).is_sound


# --- a network that loses answers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy(seaweed):
    with proxied(seaweed) as proxy:
        yield proxy


@pytest.mark.parametrize("faults", [["lost"], ["unsent"], ["lost", "lost"], ["busy", "lost"]], ids="-".join)
def test_a_commit_whose_answer_is_lost_on_the_way_lands_once(s3_lake, proxy, faults):
    honest = s3_lake().create_table("events", ITEMS, vnodes=2)
    table = s3_lake(proxy.endpoint).table("events")
    for number in range(2):
        proxy.faults = list(faults)
        commit = table.append([{"id": number}])
        assert commit == sl.Commit(number + 1, 1)
    assert proxy.faults == []
    assert honest.changes()["_seq"].to_pylist() == [1, 2]
    assert sorted(honest.to_arrow()["id"].to_pylist()) == [0, 1]
    proxy.faults = list(faults)
    assert table.compact(full=True).upto == 2
    assert sorted(s3_lake().table("events").to_arrow()["id"].to_pylist()) == [0, 1]
    assert honest.baseline.refresh().version == 1


def test_when_no_answer_comes_at_all_a_token_makes_the_retry_safe(s3_lake, proxy):
    honest = s3_lake().create_table("events", ITEMS, vnodes=2)
    table = s3_lake(proxy.endpoint).table("events")
    proxy.faults = ["lost"] + ["busy"] * 200
    with contextlib.suppress(sl.Unavailable):
        table.append([{"id": 1}], token="t")
    proxy.faults = []
    commit = table.append([{"id": 1}], token="t")
    assert (commit.seq, honest.to_arrow()["id"].to_pylist(), honest.head) == (1, [1], 1)


def is_data(command, path):
    return command == "GET" and ".parquet" in path and "_delta_log" not in path


def read_by_arrow(table):
    path = next(iter(table.log.refresh().snapshot.files))
    with reader.open_file(table.log.storage, f"{table.log.folder}/{path}") as opened:
        return list(reader.batches(opened))


@pytest.mark.parametrize(
    "read",
    [lambda table: table.to_arrow(), read_by_arrow, lambda table: table.compact(full=True)],
    ids=["duckdb", "arrow", "fold"],
)
def test_a_store_that_goes_away_in_the_middle_of_a_read_is_unavailable_and_no_file_is_blamed(s3_lake, proxy, read):
    s3_lake().create_table("items", ITEMS, key=["id"], vnodes=1).upsert([{"id": 1, "name": "n"}])
    table = s3_lake(proxy.endpoint).table("items")
    assert table.head == 1
    proxy.is_aimed, proxy.faults, proxy.seen = is_data, ["down"], []
    try:
        with refused(sl.Unavailable):
            read(table)
        assert proxy.seen == ["down"]
    finally:
        proxy.is_down, proxy.faults = False, []
    read(table)
    assert by_id(table) == {1: "n"}
