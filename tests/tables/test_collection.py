"""The tables of a lake: opened by name, created once, dropped, renamed, and apart from each other."""

import threading

import pyarrow as pa

import strandline as sl
from strandline.model.definition import TableDef
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore
from support import ITEMS, by_id, refused


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
    with refused(sl.Invalid, table="items") as caught:
        lake.rename("items", "items")
    assert caught.value.hint is None
    with refused(sl.NotFound, table="nope"):
        lake.rename("nope", "new")
    assert lake.tables() == ["items", "other"]


def test_tables_do_not_share_anything(lake):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    one, two = (lake.create_table(name, schema, key=["id"]) for name in ("one", "two"))
    one.upsert([{"id": 1, "name": "one"}])
    two.upsert([{"id": 1, "name": "two"}])
    one.compact(full=True)
    two.delete([1])
    assert (by_id(one), by_id(two)) == ({1: "one"}, {})


def test_every_caller_gets_the_same_table_and_another_class_is_opened_as_itself(tmp_path):
    class Named(TableStore):
        pass

    class NamedTables(Tables):
        table_type = Named

    tables = NamedTables(tmp_path)
    created = tables.create("t", TableDef.declare(ITEMS, key=["id"]))
    assert type(created) is Named
    assert tables.table("t") is created
    assert type(Tables(tmp_path).table("t")) is TableStore
    assert tables.rename("t", "u") is not created and tables.tables() == ["u"]


def test_a_table_that_is_not_there_is_named_with_those_that_are(lake, items):
    with refused(sl.NotFound, table="nope") as caught:
        lake.table("nope")
    assert "items" in f"{caught.value} {caught.value.hint}"
    for name in ("", "a b", "../x"):
        with refused(sl.Invalid):
            lake.table(name)


def test_a_place_without_a_lake_is_told_when_a_table_is_asked_for(tmp_path):
    with refused(sl.NotFound, table="nope") as caught:
        sl.Lake(tmp_path / "misspelt").table("nope")
    assert "no lake yet" in caught.value.hint
