"""A renamed column: every read and every job shows the new name, and no file is written again."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.consumers import compaction
from strandline.consumers.feed import log_with_schema
from strandline.engines.choice import DriverLimit
from strandline.engines.lanes import ReadLane
from strandline.jobs.doctor.examine import examine
from strandline.jobs.export import export as exports
from support import ITEMS, data_files, refused, rows_of


def fill(table: sl.Table, name: str = "name", first: int = 0) -> None:
    table.upsert([{"id": n, name: f"{name}-{n}", "qty": n} for n in range(first, first + 20)])


@pytest.fixture
def renamed(items: sl.Table) -> sl.Table:
    """A table with rows in its baseline and its log from before a rename, and rows from after it."""
    fill(items)
    items.compact(full=True)
    fill(items, first=10)
    items.rename_column("name", "title")
    fill(items, "title", first=25)
    return items


def titles(table: sl.Table, **read: object) -> dict[int, str | None]:
    return {row["id"]: row["title"] for row in table.to_arrow(**read).to_pylist()}


EXPECTED = {n: f"name-{n}" for n in range(25)} | {n: f"title-{n}" for n in range(25, 45)}


def test_a_name_that_is_taken_is_answered_with_the_columns(items):
    for change in (lambda: items.add_column("qty", "int64"), lambda: items.rename_column("name", "qty")):
        with refused(sl.Invalid, column="qty") as error:
            change()
        assert error.value.hint == "Columns: id, name, qty"


def test_a_rename_writes_one_commit_and_no_data_file(items):
    fill(items)
    items.compact(full=True)
    before, head = data_files(items), items.head
    assert items.rename_column("name", "title").names == ["id", "title", "qty"]
    assert data_files(items) == before and items.head == head + 1
    assert items.history()[-1].operation == "RENAME COLUMN"


def test_reads_at_every_seq_show_the_new_name(renamed, tmp_path):
    assert titles(renamed) == EXPECTED
    assert titles(renamed, at=1) == {n: f"name-{n}" for n in range(20)}
    assert titles(sl.Lake(tmp_path / "lake").table("items")) == EXPECTED
    with refused(column="name"):
        renamed.to_arrow(columns=["name"])
    found = renamed.changes(0).to_pylist()
    assert {row["title"] for row in found} >= set(EXPECTED.values()) and "name" not in found[0]
    batches = pa.Table.from_batches(renamed.to_batches(columns=["title"]))
    assert sorted(batches.column("title").to_pylist()) == sorted(EXPECTED.values())


def test_conditions_on_the_new_name_use_the_statistics_of_older_files(renamed, lake):
    assert titles(renamed, where="title = 'name-3'") == {3: "name-3"}
    assert renamed.count("title >= 'title'") == 20
    merge, _, predicate = renamed.plan_read(where="title = 'title-30'")
    files = merge.candidates(predicate)
    assert not files.baseline and {seq for seq, _ in files.log} == {renamed.head}
    assert lake.sql("SELECT title FROM items WHERE id IN (3, 30) ORDER BY id").to_pylist() == [
        {"title": "name-3"},
        {"title": "title-30"},
    ]


def test_compaction_restore_purge_and_vacuum_keep_the_values(renamed):
    then = renamed.head
    renamed.compact(full=True)
    assert titles(renamed) == EXPECTED
    renamed.purge([3, 30])
    renamed.delete([4])
    fill(renamed, "title")
    renamed.restore(then)
    left = {n: value for n, value in EXPECTED.items() if n not in (3, 30)}
    assert titles(renamed) == left
    renamed.compact(full=True)
    renamed.vacuum(keep=0, grace=0)
    assert titles(renamed) == left
    assert examine(renamed.log.storage, deep=True).is_sound
    for part in (renamed.log, renamed.baseline):
        found = DeltaTable(renamed.log.storage.url(part.folder)).to_pyarrow_table()
        assert "name" in found.column_names and "title" not in found.column_names, "other engines see stored names"


def test_rows_without_the_column_are_refused_or_keep_its_values(renamed):
    with refused():
        renamed.upsert([{"id": 3, "qty": 99}])
    renamed.upsert([{"id": 3, "qty": 99}], missing="keep")
    assert titles(renamed) == EXPECTED
    with refused(column="name"):
        renamed.upsert([{"id": 3, "name": "x", "qty": 1}])


def test_a_column_is_widened_renamed_again_and_dropped(renamed):
    renamed.rename_column("qty", "count")
    renamed.evolve(pa.schema([("count", pa.int64())]))
    renamed.upsert([{"id": 99, "title": "t", "count": 1 << 40}])
    renamed.rename_column("title", "name")
    found = {row["id"]: (row["name"], row["count"]) for row in renamed.to_arrow().to_pylist()}
    assert found == {n: (value, n) for n, value in EXPECTED.items()} | {99: ("t", 1 << 40)}
    renamed.drop_column("name")
    renamed.compact(full=True)
    assert renamed.schema.names == ["id", "count"]
    urls = [f"{renamed.log.storage.url(renamed.baseline.folder)}/{f.path}" for f in renamed.baseline.refresh().files()]
    assert {tuple(pq.read_schema(url).names) for url in urls} == {("id", "qty")}
    assert examine(renamed.log.storage, deep=True).is_sound


def test_a_table_without_a_key_and_json_and_nested_columns_are_renamed(lake):
    columns = pa.schema([("n", pa.int64()), ("doc", pa.json_()), ("tags", pa.list_(pa.string())), ("f", pa.string())])
    flat = lake.create_table("flat", columns)
    flat.append([{"n": 1, "doc": {"a": 1}, "tags": ["x"], "f": "f"}])
    flat.compact(full=True)
    flat.append([{"n": 2, "doc": {"a": 2}, "tags": ["y"], "f": "g"}])
    flat.append([{"n": 3, "doc": None, "tags": None, "f": None}])
    for old, new in (("doc", "body"), ("tags", "labels"), ("f", "file_index")):
        flat.rename_column(old, new)
    rows = sorted(flat.to_arrow().to_pylist(), key=lambda row: row["n"])
    assert [(row["body"] and json.loads(row["body"]), row["labels"], row["file_index"]) for row in rows] == [
        ({"a": 1}, ["x"], "f"),
        ({"a": 2}, ["y"], "g"),
        (None, None, None),
    ]
    assert [row["_seq"] for row in flat.changes(0).to_pylist()] == [1, 2, 3]


def test_rows_expire_in_a_table_with_a_renamed_column(lake):
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("note", pa.string())])
    visits = lake.create_table("visits", columns, key=["id"], time="at")
    visits.upsert([{"id": n, "at": dt.datetime(2020, 1, 1 + n), "note": f"n{n}"} for n in range(9)])
    visits.rename_column("note", "remark")
    visits.expire(dt.datetime(2020, 1, 5))
    visits.compact(full=True)
    assert sorted(row["remark"] for row in visits.to_arrow().to_pylist()) == ["n4", "n5", "n6", "n7", "n8"]


def test_an_export_has_the_new_name(renamed, tmp_path):
    renamed.compact(full=True)
    assert renamed.export(tmp_path / "all", columns=["title"]).rows == 45
    assert sorted(pq.read_table(tmp_path / "all").column("title").to_pylist()) == sorted(EXPECTED.values())
    renamed.export(tmp_path / "changes", changes=(0, None))
    found = pq.read_table(tmp_path / "changes")
    assert found.column_names == ["_op", "_seq", "id", "title", "qty"] and None not in found.column("title").to_pylist()


def test_files_that_are_read_as_they_are_get_the_new_name(renamed):
    merge = renamed.merge()
    scans = merge.log.scans(merge.log_files())
    lane = ReadLane(merge.log.storage, tuple(merge.definition.log_schemas), ("id", "title"), "_seq")
    named = [{"path": s.path, "schema_id": s.schema_id, "number": s.number} for s in scans]
    rows = pa.RecordBatch.from_pylist([each | dict.fromkeys(("inside", "after", "upto")) for each in named])
    for read in (lane, lane.read_coded):
        found = [value for batch in read(iter([rows])) for value in batch.column("title").to_pylist()]
        assert sorted(found) == sorted([f"name-{n}" for n in range(10, 30)] + [f"title-{n}" for n in range(25, 45)])


def test_a_backup_keeps_renames(renamed, lake, tmp_path):
    lake.backup(tmp_path / "copy")
    sl.Lake.restore_backup(tmp_path / "copy", tmp_path / "back")
    assert titles(sl.Lake(tmp_path / "back").table("items")) == EXPECTED


def test_files_that_were_loaded_under_the_old_name_still_load(lake, tmp_path):
    (tmp_path / "a.csv").write_text("id,Full Name,qty\n1,Ann,1\n")
    lake.ingest("t", [str(tmp_path / "a.csv")], key=["id"])
    table = lake.table("t")
    table.rename_column("full_name", "person")
    table.rename_column("qty", "count")
    (tmp_path / "b.csv").write_text("id,Full Name,qty\n2,Bob,2\n")
    lake.ingest("t", [str(tmp_path / "b.csv")])
    (tmp_path / "c.csv").write_text("id,person,count\n3,Cid,3\n")
    lake.ingest("t", [str(tmp_path / "c.csv")])
    rows = sorted((row["id"], row["person"], row["count"]) for row in table.to_arrow().to_pylist())
    assert rows == [(1, "Ann", 1), (2, "Bob", 2), (3, "Cid", 3)]


def test_a_range_that_was_planned_before_a_rename_keeps_its_names(renamed):
    log = log_with_schema(renamed.log.refresh(), 0)
    assert log.definition.schema.names == ["id", "name", "qty"] and log.definition.stored == {}
    assert renamed.log.refresh().definition.stored == {"title": "name"}


def test_a_program_that_opens_the_table_with_its_old_columns_is_told_the_new_name(renamed, lake):
    with refused(column="name") as told:
        renamed.evolve(ITEMS)
    assert "'title'" in told.value.message


def test_a_file_sink_sends_the_new_name_and_a_sink_that_names_the_old_one_stops_alone(lake, items, tmp_path):
    lake.add_sink(lake.sink("all", "items", to=sl.ParquetSink(tmp_path / "all")))
    lake.add_sink(lake.sink("some", "items", to=sl.ParquetSink(tmp_path / "some"), where="name <> 'x'"))
    lake.add_sink(lake.sink("masked", "items", to=sl.ParquetSink(tmp_path / "masked"), mask={"name": "redact"}))
    fill(items)
    lake.tick()
    assert lake.sinks_needing("items", "name") == ["some"]
    assert sorted(lake.sinks_needing("items", "name", in_any_setting=True)) == ["masked", "some"]
    items.rename_column("name", "title")
    fill(items, "title", first=20)
    lake.declared.clear()
    reports = {report.name: report for report in lake.tick().sinks}
    assert reports["all"].error is None
    assert all(isinstance(reports[name].error, sl.Invalid) for name in ("some", "masked"))
    lake.status()
    lake.plan()
    sent = [row for path in Path(tmp_path / "all").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert {row.get("title") or row.get("name") for row in sent} == {f"name-{n}" for n in range(20)} | {
        f"title-{n}" for n in range(20, 40)
    }
    assert not any("title-20" in str(pq.read_table(path)) for path in Path(tmp_path / "masked").rglob("*.parquet"))
    lake.add_sink(lake.sink("some", "items", to=sl.ParquetSink(tmp_path / "some"), where="title <> 'x'"))
    assert {report.name: report.error for report in lake.tick().sinks}["some"] is None
    assert lake.sinks_needing("items", "title") == ["some"]


def test_spark_reads_folds_writes_and_exports_a_renamed_column(spark, tmp_path, monkeypatch):
    tables = {}
    for name in ("driver", "spark"):
        table = sl.Lake(tmp_path / name, spark=spark).create_table("items", ITEMS, key=["id"], vnodes=4)
        fill(table)
        table.compact(full=True)
        assert table.to_spark().columns == ["id", "name", "qty"]
        fill(table, first=10)
        table.rename_column("name", "title")
        tables[name] = table
    one, two = tables.values()
    rows = [{"id": n, "title": f"title-{n}", "qty": n} for n in range(25, 45)]
    one.upsert(rows)
    two.upsert(spark.createDataFrame(rows, "id long, title string, qty int"))
    for at in (None, 1):
        assert rows_of(two.to_spark(at=at).toArrow()) == rows_of(one.to_arrow(at=at))
    assert [row.title for row in two.to_spark(columns=["title"], where="title = 'name-12'").collect()] == ["name-12"]
    assert compaction.compact(two, full=True, driver_rows=0).engine == "spark"
    assert titles(two) == EXPECTED
    assert {row.id: row.title for row in two.to_spark().collect()} == EXPECTED
    monkeypatch.setattr(exports, "BULK", DriverLimit(rows=0, raw_bytes=0))
    two.export(tmp_path / "out")
    assert {row["id"]: row["title"] for row in pq.read_table(tmp_path / "out").to_pylist()} == EXPECTED
    assert examine(two.log.storage, deep=True).is_sound
