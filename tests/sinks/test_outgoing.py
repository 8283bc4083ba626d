"""What leaves of a table's changes, and that DuckDB and Spark agree about it."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.consumers.feed import Feed
from strandline.sinks.outgoing import Outgoing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEOPLE = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("name", pa.string()),
        ("region", pa.string()),
        ("age", pa.int32()),
        ("born", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("facts", pa.json_(pa.string())),
        ("tags", pa.list_(pa.string())),
    ]
)


@pytest.fixture
def people(lake: sl.Lake) -> sl.Table:
    return lake.create_table("people", PEOPLE, key=["id"], vnodes=4)


def person(id: int, **values: Any) -> dict[str, Any]:
    return {
        "id": id,
        "name": f"n{id}",
        "region": "eu",
        "age": id,
        "born": dt.date(2000, 1, 1),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "facts": '{"a": 1}',
        "tags": ["x"],
        **values,
    }


def feed_of(table: sl.Table, after: int = 0, *, is_snapshot: bool = False, **shape: Any) -> Feed:
    log = table.log.refresh()
    made = Outgoing.of(log.definition, **shape)
    vnodes = range(log.definition.vnodes)
    return Feed(table, made, log, after, log.head, vnodes, is_snapshot=is_snapshot, is_ordered=True)


def rows_of(feed: Feed) -> list[dict[str, Any]]:
    with feed.batches() as batches:
        return pa.Table.from_batches(batches, feed.schema).to_pylist()


def by_id(feed: Feed) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in rows_of(feed)}


def test_a_row_that_the_filter_refuses_leaves_as_a_delete_with_its_key_alone(people: sl.Table) -> None:
    people.upsert([person(1), person(2, region="us"), person(3, region=None)])
    rows = by_id(feed_of(people, where="region = 'eu'"))
    assert {id: row["_op"] for id, row in rows.items()} == {1: "upsert", 2: "delete", 3: "delete"}
    assert all(value is None for name, value in rows[2].items() if name not in ("_op", "_vnode", "_seq", "id"))


def test_deletes_pass_the_filter(people: sl.Table) -> None:
    people.upsert([person(1)])
    people.delete([1])
    assert [row["_op"] for row in rows_of(feed_of(people, 1, where="region = 'us'"))] == ["delete"]


def test_without_deletes_refused_rows_and_deletes_are_withheld(people: sl.Table) -> None:
    people.upsert([person(1), person(2, region="us")])
    people.delete([7])
    rows = by_id(feed_of(people, where="region = 'eu'", deletes=False))
    assert {id: row["_op"] for id, row in rows.items()} == {1: "upsert", 2: "withheld", 7: "withheld"}


def test_a_table_without_a_key_withholds_what_the_filter_refuses(lake: sl.Lake) -> None:
    events = lake.create_table("events", pa.schema([("n", pa.int64())]), vnodes=2)
    events.append([{"n": 1}, {"n": 2}])
    assert sorted((row["_op"], row["n"]) for row in rows_of(feed_of(events, where="n > 1"))) == [
        ("upsert", 2),
        ("withheld", None),
    ]


def test_a_filter_column_that_the_table_has_lost_withholds_every_row(people: sl.Table) -> None:
    people.upsert([person(1)])
    people.drop_column("region")
    people.upsert([{name: value for name, value in person(2).items() if name != "region"}])
    rows = rows_of(feed_of(people, where="region = 'eu'", is_new=False))
    assert {row["_op"] for row in rows} == {"withheld"}
    with pytest.raises(sl.Invalid):
        feed_of(people, where="region = 'eu'")


def test_columns_choose_what_leaves_and_the_key_always_does(people: sl.Table) -> None:
    people.upsert([person(1)])
    assert feed_of(people, columns=["name"]).schema.names == ["_op", "_vnode", "_seq", "id", "name"]


def test_masks_hide_values_and_hashed_keys_still_meet(people: sl.Table) -> None:
    people.upsert([person(1), person(2)])
    people.delete([2])
    mask = {"id": "hash", "name": "redact", "age": "null"}
    rows = rows_of(feed_of(people, mask=mask, salt="pepper"))
    seed = hashlib.sha256(b"pepper").hexdigest()
    digest = {n: hashlib.sha256(f"{seed}{n}".encode()).hexdigest() for n in (1, 2)}
    assert sorted((row["_op"], row["id"]) for row in rows) == sorted(
        [("upsert", digest[1]), ("upsert", digest[2]), ("delete", digest[2])]
    )
    assert {(row["name"], row["age"]) for row in rows if row["_op"] == "upsert"} == {("***", None)}


@pytest.mark.parametrize(
    "shape",
    [
        {"mask": {"nobody": "hash"}},
        {"mask": {"name": "rot13"}},
        {"mask": {"at": "hash"}},
        {"mask": {"id": "null"}},
        {"mask": {"age": "redact"}},
        {"where": "nobody = 1"},
        {"columns": ["nobody"]},
    ],
    ids=str,
)
def test_a_shape_that_makes_no_sense_is_refused(people: sl.Table, shape: dict[str, Any]) -> None:
    with pytest.raises(sl.Invalid):
        feed_of(people, **shape)


def test_a_snapshot_is_the_table_as_it_is_with_one_seq(people: sl.Table) -> None:
    people.upsert([person(1), person(2)])
    people.compact(full=True)
    people.upsert([person(2, name="new"), person(3)])
    people.delete([1])
    rows = rows_of(feed_of(people, is_snapshot=True, columns=["name"]))
    assert sorted((row["_op"], row["_seq"], row["id"], row["name"]) for row in rows) == [
        ("upsert", people.head, 2, "new"),
        ("upsert", people.head, 3, "n3"),
    ]


def test_rows_come_in_the_order_of_vnode_seq_and_key(people: sl.Table) -> None:
    for start in (0, 40, 20):
        people.upsert([person(id) for id in range(start, start + 30)])
    rows = [(row["_vnode"], row["_seq"], row["id"]) for row in rows_of(feed_of(people))]
    assert rows == sorted(rows) and len(rows) == 90


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 8),
            "name": st.one_of(st.none(), st.text(max_size=4)),
            "region": st.sampled_from(["eu", "us", None]),
            "age": st.one_of(st.none(), st.integers(-3, 3)),
        }
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda row: row["id"],
)
_SHAPES = st.fixed_dictionaries(
    {
        "where": st.sampled_from([None, "region = 'eu'", "age > 0 OR region IS NULL", "NOT (age = 1)"]),
        "mask": st.sampled_from(
            [{}, {"name": "hash"}, {"id": "hash", "name": "redact"}, {"age": "hash"}, {"born": "null"}]
        ),
        "deletes": st.booleans(),
        "columns": st.sampled_from([None, ["name"], ["age", "tags"]]),
    }
)


@given(batches=st.lists(_ROWS, min_size=1, max_size=3), gone=st.sets(st.integers(0, 8), max_size=3), shape=_SHAPES)
@settings(max_examples=12)
def test_spark_and_duckdb_send_the_same_rows(
    lake: sl.Lake,
    spark: SparkSession,
    batches: list[list[dict[str, Any]]],
    gone: set[int],
    shape: dict[str, Any],
) -> None:
    name = f"t{len(lake.tables())}"
    table = lake.create_table(name, PEOPLE, key=["id"], vnodes=4)
    for rows in batches:
        table.upsert([person(row["id"], **{k: v for k, v in row.items() if k != "id"}) for row in rows])
    if gone:
        table.delete(sorted(gone))
    masked = set(shape["mask"])
    shape["columns"] = None if shape["columns"] and not masked <= {"id", *shape["columns"]} else shape["columns"]
    for is_snapshot in (False, True):
        feed = feed_of(table, is_snapshot=is_snapshot, salt="s", **shape)
        frame = feed.frame(spark).sort(*feed.order).toArrow()
        assert frame.select(feed.schema.names).to_pylist() == rows_of(feed)


def test_a_mirror_needs_a_table_without_versions(lake: sl.Lake) -> None:
    mirror = sl.IcebergSink({"type": "sql", "uri": "sqlite:///x.db", "warehouse": "file:///x"}, "a.b", mode="mirror")
    versioned = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64())])
    lake.create_table("versioned", versioned, key=["id"], version="v")
    with pytest.raises(sl.Invalid):
        lake.sink("current", "versioned", to=mirror)
