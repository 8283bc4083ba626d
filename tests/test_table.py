"""A table at the front: reads at seqs and times, columns, evolution, damage."""

import datetime as dt

import pyarrow as pa

import strandline as sl
from support import ITEMS, by_id, nothing_written, refused, rows_of


def test_added_columns_are_null_in_rows_from_before(items):
    items.upsert([{"id": 1, "name": "a", "qty": 1}])
    items.compact(full=True)
    items.upsert([{"id": 2, "name": "b", "qty": 2}])
    schema = items.evolve(pa.schema([("colour", pa.string()), ("tags", pa.list_(pa.string()))]))
    assert schema.names == ["id", "name", "qty", "colour", "tags"]
    items.upsert([{"id": 3, "colour": "red", "tags": ["x"]}, {"id": 1, "colour": "blue"}], missing="null")
    for table in (items, sl.Lake(items.log.storage.uri).table("items")):
        for _ in range(2):
            colours = {row["id"]: row["colour"] for row in table.to_arrow().to_pylist()}
            assert colours == {1: "blue", 2: None, 3: "red"}
            assert table.to_arrow(where="colour IS NULL", columns=["id"])["id"].to_pylist() == [2]
            assert table.changes()["colour"].to_pylist()[:2] == [None, None]
            table.compact(full=True)
    assert by_id(items, at=1) == {1: "a"}


def test_widened_numbers_keep_their_values(make_table):
    schema = pa.schema([("id", pa.int64()), ("n", pa.int8()), ("f", pa.float32())])
    table = make_table(schema, key=["id"], vnodes=1)
    table.upsert([{"id": 1, "n": -128, "f": 0.5}])
    table.compact(full=True)
    table.upsert([{"id": 2, "n": 127, "f": 1.5}])
    table.evolve(pa.schema([("n", pa.int32())]))
    table.evolve(pa.schema([("n", pa.int64()), ("f", pa.float64())]))
    table.upsert([{"id": 3, "n": 2**40, "f": 1e300}])
    expected = [(1, -128, "0.5"), (2, 127, "1.5"), (3, 2**40, "1e+300")]
    for _ in range(2):
        assert rows_of(table.to_arrow()) == expected
        assert table.to_arrow().schema.types == [pa.int64(), pa.int64(), pa.float64()]
        assert table.to_arrow(where="n > 1000", columns=["id"])["id"].to_pylist() == [3]
        table.compact(full=True)


def test_an_evolution_that_is_refused_changes_nothing(items):
    items.upsert([{"id": 1}])
    schema = items.schema
    for wanted in (
        pa.schema([("name", pa.int64())]),
        pa.schema([("qty", pa.int16())]),
        pa.schema([pa.field("need", pa.string(), nullable=False)]),
        pa.schema([("id", pa.int32())]),
        pa.schema([("fine", pa.string()), ("wrong", pa.time64("us"))]),
        pa.schema([("_hash", pa.string())]),
        pa.schema([("QTY", pa.string())]),
    ):
        with nothing_written(items), refused(sl.Invalid):
            items.evolve(wanted)
    assert items.schema.equals(schema)


def test_a_key_column_keeps_its_type(make_table):
    table = make_table(pa.schema([("id", pa.int32())]), key=["id"])
    with refused(sl.Invalid, column="id"):
        table.evolve(pa.schema([("id", pa.int64())]))


def test_an_evolution_that_changes_nothing_makes_no_commit(items):
    assert items.evolve(ITEMS).equals(items.schema)
    assert items.head == 0


def test_a_writer_that_missed_an_evolution_still_writes_whole_rows(items):
    """Its files say under which schema they were written."""
    other = sl.Lake(items.log.storage.uri).table("items")
    other.upsert([{"id": 1, "name": "a"}])
    commit = other.log.commit

    def evolve_then_commit(*args, **options):
        items.evolve(pa.schema([("qty", pa.int64()), ("colour", pa.string())]))
        return commit(*args, **options)

    other.log.commit = evolve_then_commit
    other.upsert([{"id": 2, "name": "b", "qty": 5}])
    del other.log.commit
    assert rows_of(items.to_arrow()) == [(1, "a", None, None), (2, "b", 5, None)]
    items.compact(full=True)
    assert rows_of(other.to_arrow()) == [(1, "a", None, None), (2, "b", 5, None)]


def test_a_reader_that_missed_an_evolution_finds_it(items):
    other = sl.Lake(items.log.storage.uri).table("items")
    assert other.schema.names == ITEMS.names
    items.evolve(pa.schema([("colour", pa.string())]))
    items.upsert([{"id": 1, "colour": "red"}])
    assert other.to_arrow(columns=["colour"])["colour"].to_pylist() == ["red"]


def test_a_plan_of_a_restore_counts_the_keys_that_changed_since(items):
    items.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    items.upsert([{"id": 1, "name": "c"}])
    items.upsert([{"id": 1, "name": "d"}])
    items.delete([2])
    assert items.plan_restore(1).to_dict() == {"table": "items", "at": 1, "changed": 2}
    assert items.plan_restore(4).changed == 0
    assert items.head == 4


def test_a_pin_ends_by_its_name(items):
    items.pin(name="mine")
    assert items.unpin("mine").seq == 0
    assert items.pins.all() == []
    with refused(sl.NotFound, table="items", pin="mine"):
        items.unpin("mine")


def test_rows_are_hidden_before_the_moment_of_the_last_expiry(lake):
    table = lake.create_table("events", "id:int64, at:timestamp", key=["id"], time="at")
    assert table.hidden_before is None
    table.upsert([{"id": 1, "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}])
    table.expire(dt.datetime(2024, 2, 1, tzinfo=dt.UTC))
    assert table.hidden_before == dt.datetime(2024, 2, 1, tzinfo=dt.UTC)


def test_a_table_describes_itself(lake):
    table = lake.create_table("events", "id:int64!, at:timestamp", key=["id"], time="at", keep="7d")
    found = table.describe()
    assert (found["key"], found["time"], found["settings"]["keep"]) == (("id",), "at", 7 * 86400)
    assert [each["type"] for each in found["columns"]] == ["int64", "timestamp"]
