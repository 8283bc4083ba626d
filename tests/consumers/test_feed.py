"""The rows of a range: a function of the log alone, the same on both engines."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import strandline as sl
from folding import fold_vnodes, keys_in, put
from strandline.consumers.feed import Feed, KeySpan, files_of, log_with_schema, size_of
from strandline.model.key_order import encode_key
from strandline.sinks.outgoing import Outgoing
from strandline.tables.key_cuts import key_types
from strandline.tables.packing import Bundle, pack_files
from support import refused


def feed(
    table: sl.Table, after: int = 0, vnodes=range(4), *, is_snapshot: bool = False, upto: int | None = None
) -> Feed:
    log = table.log.refresh()
    upto = log.head if upto is None else upto
    return Feed(table, Outgoing.of(log.definition), log, after, upto, vnodes, is_snapshot=is_snapshot, is_ordered=True)


def rows(made: Feed) -> list[dict[str, object]]:
    with made.hold_files(), made.batches() as batches:
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def filled(items: sl.Table) -> sl.Table:
    put(items, range(30))
    items.compact(full=True)
    put(items, range(5), "later")
    items.delete([7])
    return items


@pytest.mark.parametrize("is_snapshot", [True, False])
@pytest.mark.parametrize("vnodes", [(0, 1, 2, 3), (1, 3)], ids=["all", "some"])
def test_driver_and_spark_give_the_same_rows(spark, filled, is_snapshot, vnodes):
    filled.spark = spark
    made = feed(filled, 0 if is_snapshot else 1, vnodes, is_snapshot=is_snapshot)
    on_spark = [row.asDict() for row in made.frame(spark).collect()]

    def order(row):
        return row["_vnode"], row["_seq"], row["id"]

    assert rows(made) == sorted(on_spark, key=order)
    assert {row["_vnode"] for row in rows(made)} <= set(vnodes)


def in_tasks(made: Feed, groups: list[list[int]], *, is_sorted: bool = True) -> list[dict[str, object]]:
    """The rows as tasks read them by themselves, each some vnodes."""
    parts = [pickle.loads(pickle.dumps(part)) for part in made.parts(groups, is_sorted=is_sorted)]
    return [row for part in parts for batch in part.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("care", ["log", "folded", "later", "partly", "packed", "empty"])
@pytest.mark.parametrize("kind", ["keyed", "versioned", "keyless"])
def test_tasks_that_read_by_themselves_give_the_same_rows(lake, kind, care):
    more = {"version": "at"} if kind == "versioned" else {}
    columns = "id:int64, at:int64, name:string, value:double"
    table = lake.create_table("t", columns, key=[] if kind == "keyless" else ["id"], vnodes=4, **more)

    def add(ids, at):
        made = [{"id": id, "at": at, "name": f"n{id % 3}", "value": id / 7} for id in ids]
        (table.append if kind == "keyless" else table.upsert)(made)

    if care != "empty":
        add(range(60), 1)
        if care in ("folded", "later", "partly"):
            table.compact(full=True)
        if care in ("later", "partly", "packed"):
            for number in range(4):
                add(range(number, 60, 7), 5 - number)
                if kind != "keyless":
                    table.delete([number + 20])
        if care == "partly":
            fold_vnodes(table, [1, 2])
            add(range(40, 45), 9)
        if care == "packed":
            log = table.log.refresh()
            pack_files(table.log, [Bundle(tuple(log.files(1, log.head)), 1)])
    for is_where in (False, True):
        outgoing = Outgoing.of(
            table.definition,
            where="name <> 'n1'" if is_where and kind != "versioned" else None,
            mask={"value": "null", "name": "hash"},
            salt="s",
        )
        log = table.log.refresh()
        made = Feed(table, outgoing, log, 0, log.head, range(4), is_snapshot=True, is_ordered=True)
        assert in_tasks(made, [[0], [1, 2], [3]]) == in_tasks(made, [[0, 1, 2, 3]]) == rows(made)
        unsorted = in_tasks(made, [[0, 1], [2, 3]], is_sorted=False)
        assert sorted(map(str, unsorted)) == sorted(map(str, rows(made)))


@pytest.mark.parametrize("change", ["drop", "rename", "add"])
def test_tasks_read_by_the_schema_of_the_intent(filled, change):
    log = filled.log.refresh()
    planned, names = log.definition.schema_id, log.definition.schema.names
    expected = rows(feed(filled, is_snapshot=True))
    {
        "drop": lambda: filled.drop_column("name"),
        "rename": lambda: filled.rename_column("name", "title"),
        "add": lambda: filled.add_column("more", "int64"),
    }[change]()
    earlier = log_with_schema(filled.log.refresh(), planned)
    outgoing = Outgoing.of(earlier.definition)
    made = Feed(filled, outgoing, earlier, 0, log.head, range(4), is_snapshot=True, is_ordered=True)
    assert set(names) <= set(made.schema.names)
    assert in_tasks(made, [[0, 1], [2, 3]]) == rows(made) == expected


def test_tasks_read_the_rows_of_a_span(filled):
    kinds = key_types(filled.definition)
    span = KeySpan(encode_key([4], kinds), encode_key([20], kinds))
    log = filled.log.refresh()
    made = Feed(
        filled, Outgoing.of(log.definition), log, 0, log.head, (0, 1, 3), is_snapshot=True, is_ordered=True, span=span
    )
    found = in_tasks(made, [[0], [1, 3]])
    assert found == rows(made) and {row["id"] for row in found} <= set(range(5, 21)) - {7} and found


def test_a_snapshot_is_the_table_at_its_seq_as_upserts_of_that_seq(filled):
    found = rows(feed(filled, is_snapshot=True))
    assert {row["id"] for row in found} == set(range(30)) - {7}
    assert {(row["_op"], row["_seq"]) for row in found} == {("upsert", filled.head)}
    before = rows(feed(filled, is_snapshot=True, upto=1))
    assert {row["id"] for row in before} == set(range(30)) and {row["_seq"] for row in before} == {1}


def test_changes_are_those_of_the_range(filled):
    found = rows(feed(filled, 1))
    assert sorted((row["_op"], row["id"]) for row in found) == [("delete", 7), *(("upsert", n) for n in range(5))]


def test_only_files_that_may_have_changes_of_a_vnode_count(lake):
    table = lake.create_table("wide", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"], vnodes=4)
    put(table, keys_in(0, 5))
    put(table, keys_in(3, 7))
    log = table.log.refresh()
    assert size_of(files_of(log, 0, 2, [0], 4)).rows == 5
    assert size_of(files_of(log, 0, 2, [0, 3], 4)).commits == 2
    assert files_of(log, 0, 2, [1], 4) == []


def test_a_column_that_came_meanwhile_changes_nothing(items):
    put(items, [1])
    planned = items.log.refresh().definition.schema_id
    items.evolve(pa.schema([*items.schema, pa.field("extra", pa.int64())]))
    now = items.log.refresh()
    assert "extra" in now.definition.schema.names
    assert "extra" not in log_with_schema(now, planned).definition.schema.names
    assert log_with_schema(now, now.definition.schema_id) is now


def test_rows_of_some_keys_are_found(filled):
    keys = pa.table({"id": pa.array([3, 7, 12], pa.int64())})
    made = feed(filled, is_snapshot=True)
    found = made.find_rows(keys)
    assert sorted(found.column("id").to_pylist()) == [3, 12]


def test_a_damaged_file_is_named(filled, lake):
    made = feed(filled, 1)
    path = next(iter(made.files))
    damaged = filled.log.storage.url(path)
    with open(damaged, "r+b") as file:
        file.truncate(10)
    with refused(sl.Corrupt):
        rows(feed(filled, 1))
