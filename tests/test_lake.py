"""A lake's tables: create, open, drop, rename; a lake describes itself wherever it is."""

import json
import shutil

import pytest

import strandline as sl
from strandline.model.definition import FORMAT, PACKED_FORMAT
from support import ITEMS, by_id, files_below, refused, rewrite_commits


def test_opening_writes_nothing(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    assert not lake.exists
    assert lake.tables() == []
    assert files_below(tmp_path) == set()


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
            action["metaData"]["configuration"]["strandline.format"] = str(PACKED_FORMAT + 1)

    rewrite_commits(tmp_path / "lake" / items.log.folder / "_delta_log", rise)
    with refused(sl.Invalid, format=PACKED_FORMAT + 1):
        sl.Lake(lake.storage.uri).table("items")


@pytest.mark.parametrize("text", ["{torn", '{"drop":"nope","commitId":"x"}', '{"unknown":1}', "[]", ""])
def test_a_catalog_entry_that_makes_no_sense_is_corrupt(tmp_path, lake, items, text):
    (tmp_path / "lake" / "catalog" / f"{2:020d}.json").write_text(text)
    with refused(sl.Corrupt):
        sl.Lake(lake.storage.uri)


def test_an_argument_of_another_kind_is_named(lake, tmp_path):
    """Where a caller's slip would end in a trace or be taken for something else."""
    (tmp_path / "a.csv").write_text("id,n\n1,a\n")
    file = tmp_path / "a.csv"
    table = lake.create_table("t", "id:int64", key=["id"])
    for call, part in (
        (lambda: lake.ingest("x", None, key=["id"]), "files is None"),
        (lambda: lake.ingest("x", [None], key=["id"]), "None names no place"),
        (lambda: lake.ingest("x", file, key="id"), "key is 'id'"),
        (lambda: lake.ingest("x", file, key=5), "key is 5"),
        (lambda: lake.ingest("x", file, key=["id"], skip="n"), "skip is 'n'"),
        (lambda: lake.ingest("x", file, key=["id"], null=5), "null is 5"),
        (lambda: lake.ingest("x", file, keyy=["id"]), "no option 'keyy'"),
        (lambda: lake.create_table("x", "id:int64", key="id"), "key is 'id'"),
        (lambda: lake.create_table("x", {"id": "int64"}, key=["id"]), "schema is a dict"),
        (lambda: lake.import_table("x", None), "None names no place"),
        (lambda: table.to_arrow(columns="id"), "columns is 'id'"),
        (lambda: table.evolve({"n": "string"}), "schema is a dict"),
        (lambda: sl.Lake(tmp_path / "lake", state=5), "state is not the URL"),
    ):
        with pytest.raises(sl.Invalid) as caught:
            call()
        assert part in caught.value.message
    assert lake.tables() == ["t"]


def test_a_table_gets_columns_from_a_text(lake):
    table = lake.create_table("t", "id:int64", key=["id"])
    assert table.evolve("colour:string").names == ["id", "colour"]
