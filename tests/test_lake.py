"""A lake's tables: create, open, drop, rename; a lake describes itself wherever it is."""

import json
import shutil
import threading

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model.definition import FORMAT
from support import ITEMS, by_id, files_below, refused, rewrite_commits


def test_opening_writes_nothing(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    assert not lake.exists
    assert lake.tables() == []
    assert files_below(tmp_path) == set()


def test_a_table_is_found_by_its_name_from_elsewhere(lake, items):
    other = sl.Lake(lake.storage.uri)
    assert other.exists
    assert other.tables() == ["items"]
    assert other.table("items").schema.equals(items.schema)
    with refused(sl.NotFound, table="nope"):
        other.table("nope")


def test_a_name_is_taken_once_whatever_its_case(lake, items):
    for name in ("items", "ITEMS", "Items"):
        with refused(sl.Invalid, table=name):
            lake.create_table(name, ITEMS)
    assert lake.tables() == ["items"]


def test_of_many_creators_of_one_name_one_wins(tmp_path):
    lakes = [sl.Lake(tmp_path) for _ in range(6)]
    outcomes = []

    def create(lake):
        try:
            outcomes.append(lake.create_table("same", ITEMS).entry.generation)
        except sl.Invalid:
            outcomes.append(None)

    threads = [threading.Thread(target=create, args=[lake]) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [generation for generation in outcomes if generation]
    assert {lake.table("same").entry.generation for lake in lakes} == {winner}


def test_many_tables_created_at_once_all_survive(tmp_path):
    lakes = [sl.Lake(tmp_path) for _ in range(4)]

    def create(number):
        for at in range(4):
            lakes[number].create_table(f"t{number}x{at}", ITEMS)

    threads = [threading.Thread(target=create, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sl.Lake(tmp_path).tables()) == 16


def test_a_recreated_table_is_a_new_generation_and_starts_empty(lake, items):
    items.upsert([{"id": 1, "name": "old"}], token="t")
    stale = sl.Lake(lake.storage.uri)
    stale_table = stale.table("items")
    lake.drop("items")
    assert lake.tables() == []
    with refused(sl.NotFound, table="items"):
        lake.table("items")
    fresh = lake.create_table("items", ITEMS, key=["id"])
    assert fresh.entry.generation != items.entry.generation
    assert fresh.entry.folder != items.entry.folder
    assert (fresh.head, by_id(fresh)) == (0, {})
    assert not fresh.upsert([{"id": 1, "name": "new"}], token="t").is_replay
    for handle in (items, stale_table):
        with refused(sl.NotFound):
            handle.upsert([{"id": 2}])
    assert by_id(stale.table("items")) == {1: "new"}
    assert stale.sql("SELECT name FROM items").to_pylist() == [{"name": "new"}]


def test_a_table_dropped_twice_is_not_found(lake, items):
    other = sl.Lake(lake.storage.uri)
    other.tables()
    lake.drop("items")
    with refused(sl.NotFound, table="items"):
        other.drop("items")


def test_a_drop_that_ended_half_way_can_be_repeated(lake, items):
    items.log.mark_dropped()
    assert lake.tables() == ["items"]
    lake.drop("items")
    assert lake.tables() == []
    lake.create_table("items", ITEMS)


def test_a_renamed_table_keeps_rows_seqs_and_writers(lake, items):
    items.upsert([{"id": 1, "name": "a"}])
    renamed = lake.rename("items", "goods")
    assert (renamed.name, renamed.head, by_id(renamed)) == ("goods", 1, {1: "a"})
    assert lake.tables() == ["goods"]
    items.upsert([{"id": 2, "name": "b"}])
    assert by_id(lake.table("goods")) == {1: "a", 2: "b"}
    assert lake.sql("SELECT count(*) AS n FROM goods").to_pylist() == [{"n": 2}]
    with refused(sl.NotFound, table="items"):
        lake.table("items")
    lake.create_table("items", ITEMS)
    assert sl.Lake(lake.storage.uri).tables() == ["goods", "items"]


def test_a_rename_to_a_name_that_is_taken_or_from_one_that_is_not_is_refused(lake, items):
    lake.create_table("other", ITEMS)
    with refused(sl.Invalid, table="other"):
        lake.rename("items", "other")
    with refused(sl.NotFound, table="nope"):
        lake.rename("nope", "new")
    assert lake.tables() == ["items", "other"]


def test_a_lake_that_was_moved_still_describes_itself(tmp_path, lake, items):
    items.upsert([{"id": 1, "name": "a"}])
    items.compact(full=True)
    items.upsert([{"id": 2, "name": "b"}])
    shutil.move(lake.storage.uri, tmp_path / "moved")
    moved = sl.Lake(tmp_path / "moved")
    assert by_id(moved.table("items")) == {1: "a", 2: "b"}
    moved.table("items").upsert([{"id": 3, "name": "c"}])
    assert by_id(moved.table("items"), at=3) == {1: "a", 2: "b", 3: "c"}


@pytest.mark.parametrize("folder", ["my lake", "it's", "ümlaut", "a#b", "a:b", "50%25", "a+b", "a&b=c", "$HOME"])
def test_a_lake_lives_in_a_folder_of_any_name(tmp_path, folder):
    lake = sl.Lake(tmp_path / folder)
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": 1, "name": "a"}])
    table.compact(full=True)
    table.upsert([{"id": 2, "name": "b"}])
    assert by_id(table) == {1: "a", 2: "b"}
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("folder", ["lake[1]", "l*ke", "l?ke", "{a,b}"])
def test_a_folder_whose_name_readers_take_for_a_pattern_is_refused_before_anything_is_written(tmp_path, folder):
    with refused(sl.Invalid):
        sl.Lake(tmp_path / folder)
    assert files_below(tmp_path) == set()


def test_spark_reads_a_lake_in_a_folder_of_any_name(spark, tmp_path):
    table = sl.Lake(tmp_path / "my lake #1, 50%25 of it's ü").create_table("t", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": 1, "name": "a"}])
    table.compact(full=True)
    table.upsert([{"id": 2, "name": "b"}])
    assert sorted(row["id"] for row in table.to_spark().collect()) == [1, 2]


def test_a_lake_of_a_newer_format_is_refused(tmp_path, lake, items):
    def rise(action):
        if "lake" in action:
            action["format"] += 1

    rewrite_commits(tmp_path / "lake" / "catalog", rise, root=tmp_path / "lake")
    with refused(sl.Invalid, format=FORMAT + 1):
        sl.Lake(lake.storage.uri)


def test_a_lake_from_before_digests_is_refused_by_its_format(tmp_path):
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / f"{0:020d}.json").write_text(json.dumps({"lake": "a" * 32, "format": 1, "commitId": "b"}))
    with refused(sl.Invalid, format=1):
        sl.Lake(tmp_path)


def test_a_table_of_a_newer_format_is_refused(tmp_path, lake, items):
    def rise(action):
        if "metaData" in action:
            assert action["metaData"]["configuration"]["strandline.format"] == str(FORMAT)
            action["metaData"]["configuration"]["strandline.format"] = str(FORMAT + 1)

    rewrite_commits(tmp_path / "lake" / items.log.folder / "_delta_log", rise)
    with refused(sl.Invalid, format=FORMAT + 1):
        sl.Lake(lake.storage.uri).table("items")


@pytest.mark.parametrize("text", ["{torn", '{"drop":"nope","commitId":"x"}', '{"unknown":1}', "[]", ""])
def test_a_catalog_entry_that_makes_no_sense_is_corrupt(tmp_path, lake, items, text):
    (tmp_path / "lake" / "catalog" / f"{2:020d}.json").write_text(text)
    with refused(sl.Corrupt):
        sl.Lake(lake.storage.uri)


def test_tables_do_not_share_anything(lake):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    one, two = (lake.create_table(name, schema, key=["id"]) for name in ("one", "two"))
    one.upsert([{"id": 1, "name": "one"}])
    two.upsert([{"id": 1, "name": "two"}])
    one.compact(full=True)
    two.delete([1])
    assert (by_id(one), by_id(two)) == ({1: "one"}, {})
