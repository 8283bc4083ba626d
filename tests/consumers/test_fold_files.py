"""The files of a fold: what stays, what is written anew, and that driver and Spark write the same."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from folding import AT, TIMED, due, keys_in, rows_by_key
from strandline.consumers import compaction, fold_lane
from strandline.engines.choice import BULK
from strandline.jobs.doctor import examine
from support import ITEMS, Oracle, rows_of

KEYED = {"key": ["id"], "vnodes": 4}


SHAPES = {
    "keyed": (ITEMS, KEYED),
    "one vnode": (ITEMS, {"key": ["id"], "vnodes": 1}),
    "composite": (ITEMS, {"key": ["name", "qty"], "vnodes": 4}),
    "versioned": (ITEMS, {"key": ["id"], "version": "qty", "vnodes": 4}),
    "unkeyed": (ITEMS, {"vnodes": 4}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fold_on_spark_writes_the_same_baseline_as_one_on_the_driver(spark, tmp_path, shape):
    schema, options = SHAPES[shape]
    tables = []
    for name in ("driver", "spark"):
        table = sl.Lake(tmp_path / name).create_table("t", schema, **options)
        for round_ in range(2):
            for at in range(3):
                rows = [{"id": at * 3 + n, "name": f"n{(at + n) % 5}", "qty": (at * n + round_) % 4} for n in range(8)]
                (table.upsert if table.definition.is_keyed else table.append)(rows)
            if table.definition.is_keyed:
                table.delete(pa.table(rows_by_key(table, rows[:2])))
            assert table.head == (4 if table.definition.is_keyed else 3) * (round_ + 1)
            if name == "driver":
                table.compact(full=True)
            else:
                compaction.compact(table, full=True, driver_rows=0)
        tables.append(table)
    one, two = tables
    assert rows_of(one.to_arrow()) == rows_of(two.to_arrow())
    assert one.baseline.refresh().marks == two.baseline.refresh().marks
    per_vnode = [{(f.partition["_vnode"], f.rows) for f in table.baseline.refresh().files()} for table in tables]
    if one.definition.is_keyed:
        assert per_vnode[0] == per_vnode[1]
    for seq in range(one.head + 1):
        assert rows_of(one.to_arrow(at=seq)) == rows_of(two.to_arrow(at=seq))


KEYS = {
    "int": (pa.int64(), lambda n: n * 3 - 600),
    "string": (pa.string(), lambda n: f"k{n:05d}'é\n"),
    "long string": (pa.string(), lambda n: f"k{n:05d}" + "y" * 80),
    "nul": (pa.string(), lambda n: f"k\x00{n:05d}"),
    "date": (pa.date32(), lambda n: dt.date(1969, 6, 1) + dt.timedelta(days=n)),
    "time": (pa.timestamp("us", tz="UTC"), lambda n: AT + dt.timedelta(microseconds=n)),
    "local time": (pa.timestamp("us"), lambda n: dt.datetime(1960, 1, 1) + dt.timedelta(hours=n)),
    "binary": (pa.binary(), lambda n: n.to_bytes(4, "big")),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_composite", [False, True], ids=["one", "composite"])
def test_large_files_that_no_change_falls_into_stay(make_table, monkeypatch, kind, is_composite):
    monkeypatch.setattr(fold_lane, "WHOLE_BYTES", 1)
    type_, make = KEYS[kind]
    schema = pa.schema([("a", type_), ("b", pa.int64()), ("n", pa.int64())])
    table = make_table(schema, key=["a", "b"] if is_composite else ["a"], vnodes=1)
    oracle = Oracle(table.definition.key)

    def change(numbers, n):
        rows = [{"a": make(number), "b": 0, "n": n} for number in numbers]
        table.upsert(rows)
        oracle.upsert(rows)

    def fold():
        before = set(table.baseline.refresh().snapshot.files)
        table.compact(full=True)
        after = set(table.baseline.refresh().snapshot.files)
        assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist(oracle.copy(), schema=schema))
        return len(before - after), len(after - before)

    is_ranged = kind not in ("binary", "long string")
    for at, start in enumerate((0, 200, 400)):
        change(range(start, start + 100), 0)
        assert fold() == ((0, 1) if is_ranged or at == 0 else (1, 1))
    if not is_ranged:
        return
    # The first and the last row of a file, one between files, one behind all of them, the first of all.
    for numbers, expected in (([200], (1, 1)), ([299], (1, 1)), ([350], (0, 1)), ([500], (0, 1)), ([0], (1, 1))):
        change(numbers, 1)
        assert fold() == expected, numbers
    keys = [{name: row[name] for name in oracle.key} for row in oracle.copy()]
    gone = [key for key in keys if make(200) <= key["a"] <= make(299)]
    table.delete(pa.Table.from_pylist(gone, schema=pa.schema([schema.field(name) for name in oracle.key])))
    oracle.delete(gone)
    assert fold() == (1, 0)
    change([0, 499], 2)
    assert fold() == (2, 1)


def test_what_stays_and_what_is_rewritten_never_changes_the_rows(make_table, monkeypatch):
    monkeypatch.setattr(fold_lane, "WHOLE_BYTES", 1)
    rng = random.Random(3)
    table = make_table(key=["id"], vnodes=2)
    oracle, kept = Oracle(["id"]), 0
    for step in range(40):
        start = rng.randrange(20) * 100
        keys = rng.sample(range(start, start + 101), rng.randint(1, 60))
        if rng.random() < 0.3:
            table.delete(keys)
            oracle.delete({"id": key} for key in keys)
        else:
            rows = [{"id": key, "name": f"{step}.{key}", "qty": step} for key in keys]
            table.upsert(rows)
            oracle.upsert(rows)
        before = set(table.baseline.refresh().snapshot.files)
        table.compact(full=True)
        kept += len(before & set(table.baseline.refresh().snapshot.files))
        assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist(oracle.copy(), schema=ITEMS)), step
    assert kept > 40
    assert examine(table.log.storage, deep=True).is_sound


def test_a_table_without_a_key_packs_small_files_and_leaves_large_ones(make_table, monkeypatch):
    table = make_table(vnodes=1)
    for n in range(3):
        table.append([{"id": n}])
        table.compact(full=True)
        assert len(table.baseline.refresh().files()) == 1, "small files are packed"
    monkeypatch.setattr(fold_lane, "WHOLE_BYTES", 1)
    large = set(table.baseline.refresh().snapshot.files)
    table.append([{"id": 3}])
    assert table.compact(full=True).removed_files == 0
    assert large < set(table.baseline.refresh().snapshot.files)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


def test_files_of_expired_rows_alone_are_dropped_without_being_read(make_table, lake):
    table = make_table(TIMED, key=["id"], vnodes=1, time="at")
    table.upsert([{"id": n, "at": AT} for n in range(10)])
    table.compact()
    (old,) = table.baseline.refresh().files()
    table.upsert([{"id": n, "at": AT + dt.timedelta(days=9)} for n in range(20, 22)])
    table.expire(AT + dt.timedelta(days=1))
    (Path(lake.storage.uri) / table.baseline.folder / old.path).unlink()
    assert due(table) == [0]
    report = table.compact()
    assert (report.removed_files, report.rows, report.degraded) == (1, 2, ())
    assert sorted(table.to_arrow()["id"].to_pylist()) == [20, 21]


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_a_rewrite_for_expired_rows_is_not_repeated(request, make_table, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    table = make_table(TIMED, key=["id"], vnodes=2, time="at")
    # By their statistics most rows are expired; in truth one is in each vnode, and those without a time never are.
    ages = {keys_in(vnode, 1, vnodes=2)[0]: AT for vnode in (0, 1)}
    rows = [{"id": n, "at": ages.get(n, AT + dt.timedelta(days=99)) if n % 3 else None} for n in range(60)]
    rows = [{**row, "at": ages.get(row["id"], row["at"])} for row in rows]
    table.upsert(rows)
    table.compact()
    table.expire(AT + dt.timedelta(days=90))
    assert sorted(due(table)) == [0, 1]
    compaction.compact(table, driver_rows=0 if engine == "spark" else BULK.rows)
    version = table.baseline.refresh().version
    for full in (False, True):
        assert table.compact(full=full).vnodes == 0
    assert table.baseline.refresh().version == version
    assert table.to_arrow().num_rows == 58
    assert sum(file.rows for file in table.baseline.refresh().files()) == 58


def shaped(lake, shape):
    """A table with a baseline and a log, of one of several kinds."""
    options = {
        "keyed": {"key": ["id"]},
        "versioned": {"key": ["id"], "version": "qty"},
        "keyless": {},
        "expired": {"key": ["id"], "time": "at"},
        "expired keyless": {"time": "at"},
        "dropped": {"key": ["id"]},
    }[shape]
    schema = pa.schema([*ITEMS, ("at", pa.timestamp("us", tz="UTC"))])
    table = lake.create_table("t", schema, vnodes=4, **options)
    write = table.upsert if table.definition.is_keyed else table.append

    def rows(start, qty):
        ages = [AT + dt.timedelta(days=n) if n % 7 else None for n in range(start, start + 40)]
        return [{"id": start + n, "name": f"{qty}.{n}", "qty": (qty + n) % 5, "at": at} for n, at in enumerate(ages)]

    write(rows(0, 0))
    table.compact(full=True)
    write(rows(20, 1))
    if table.definition.is_keyed:
        table.delete([1, 2, 3, 50])
    if "expired" in shape:
        table.expire(AT + dt.timedelta(days=30, hours=5))
    if shape == "dropped":
        table.drop_column("name")
        table.evolve(pa.schema([("colour", pa.string())]))
        table.upsert([{"id": 5, "colour": "red"}], missing="null")
    return table


@pytest.mark.parametrize("shape", ["keyed", "versioned", "keyless", "expired", "expired keyless", "dropped"])
def test_spark_folds_every_kind_of_table_as_the_driver_does(spark, tmp_path, shape):
    one, two = (shaped(sl.Lake(tmp_path / name), shape) for name in ("driver", "spark"))
    expected = {seq: rows_of(one.to_arrow(at=seq)) for seq in range(one.head + 1)}
    assert one.compact(full=True).engine == "driver"
    assert compaction.compact(two, full=True, driver_rows=0).engine == "spark"
    for table in (one, two, sl.Lake(tmp_path / "spark").table("t")):
        assert {seq: rows_of(table.to_arrow(at=seq)) for seq in expected} == expected
    assert one.baseline.refresh().marks == two.baseline.refresh().marks
    states = [table.baseline.refresh() for table in (one, two)]
    assert sum(f.rows for f in states[0].files()) == sum(f.rows for f in states[1].files()) == one.to_arrow().num_rows
    for table in (one, two):
        version = table.baseline.refresh().version
        assert compaction.compact(table, full=True, driver_rows=0).vnodes == 0, "a second run finds nothing to do"
        assert table.baseline.refresh().version == version
        assert examine(table.log.storage, deep=True).is_sound
        if shape == "dropped":
            files = table.baseline.refresh().files()
            urls = [f"{table.log.storage.url(table.baseline.folder)}/{file.path}" for file in files]
            assert not any("name" in pq.read_schema(url).names for url in urls), "the dropped column is gone"
