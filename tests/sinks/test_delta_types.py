"""What a Delta table must be to take a batch, and what of it is refused by name."""

import datetime as dt
import json
import os
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from deliveries import (
    FIRST,
    PRODUCER,
    ROWS,
    changes,
    deliver,
    new_batch,
    run_lanes,
)
from deltas import table_at
from strandline.sinks.delta import DeltaSink
from strandline.sinks.delta_types import holds
from support import files_below, refused


@pytest.fixture
def place(tmp_path):
    return tmp_path / "parts"


@pytest.fixture
def delivery(place):
    return DeltaSink(place).open(PRODUCER)


def held(place, **options):
    return table_at(place, **options).to_pyarrow_table().to_pylist()


ALL = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("real", pa.float32()),
        ("exact", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("is_on", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int8()))])),
        ("pairs", pa.map_(pa.string(), pa.int64())),
    ]
)
EVERY = {
    "id": 1,
    "tiny": -3,
    "real": 0.5,
    "exact": Decimal("12.50"),
    "day": dt.date(2026, 1, 2),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
    "raw": b"\x00\xff",
    "is_on": True,
    "tags": ["a", None],
    "deep": {"a": 1, "b": [1, None]},
    "pairs": [("x", 1), ("y", None)],
}


def row_of(seq, **values):
    return {"_op": "upsert", "_vnode": 0, "_seq": seq, **values}


def batch_of(after, upto, columns, **facts):
    return new_batch(after, upto, columns=columns, key=("id",), cluster_by=(), **facts)


def test_every_type_of_a_table_arrives_in_a_new_table_and_in_one_that_grows(delivery, place, tmp_path):
    deliver(delivery, batch_of(0, 5, ALL), [row_of(5, **EVERY)])
    assert held(place) == [{"_op": "upsert", "_seq": 5, **EVERY}]
    grown = DeltaSink(tmp_path / "grown").open(PRODUCER)
    deliver(grown, batch_of(0, 4, ALL.empty_table().select(["id"]).schema), [row_of(4, id=7)])
    deliver(grown, batch_of(4, 5, ALL), [row_of(5, **EVERY)])
    assert sorted(held(tmp_path / "grown"), key=lambda row: row["_seq"])[1] == held(place)[0]


@pytest.mark.parametrize(
    ("there", "column"),
    [
        (pa.schema([("part", pa.int16())]), "part"),
        (pa.schema([("part", pa.string())]), "part"),
        (pa.schema([("Session", pa.string())]), "session"),
        (pa.schema([("_seq", pa.int32())]), "_seq"),
        (pa.schema([pa.field("owner", pa.string(), False)]), "owner"),
    ],
)
def test_a_table_whose_columns_do_not_fit_is_refused_by_the_columns_name(delivery, place, there, column):
    DeltaTable.create(str(place), there)
    with refused(column=column):
        deliver(delivery, FIRST, ROWS)
    assert table_at(place).version() == 0
    assert all("_delta_log" in path for path in files_below(place))


def test_a_column_that_became_wider_is_refused_by_name(delivery, place):
    narrow, wide = (pa.schema([("id", pa.int64()), ("n", kind)]) for kind in (pa.int32(), pa.int64()))
    deliver(delivery, batch_of(0, 5, narrow), [row_of(5, id=1, n=1)])
    with refused(column="n"):
        deliver(delivery, batch_of(5, 6, wide), [row_of(6, id=1, n=1 << 40)])
    assert delivery.position(1) == {0: 5}


def test_a_required_column_refuses_the_row_that_lacks_it(delivery, place):
    there = pa.schema([pa.field("id", pa.int64(), False), pa.field("n", pa.int64(), False)])
    DeltaTable.create(str(place), there)
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    deliver(delivery, batch_of(0, 5, columns), [row_of(5, id=1, n=1)])
    (result,) = run_lanes(delivery, batch_of(5, 6, columns), [[{**row_of(6, id=1), "_op": "delete"}]])
    assert isinstance(result.error, sl.Invalid)
    assert result.error.fields == {"column": "n"}
    assert not any(".tmp" in path for path in files_below(place))


def write_table(place, *, features=(), configuration=None, metadata=None, partition_by=()):
    """A table as other writers make them, by its commit file."""
    column = {"name": "owner", "type": "string", "nullable": True, "metadata": metadata or {}}
    reading = [name for name in features if name in ("columnMapping", "typeWidening")]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reading, "writerFeatures": [*features]}
    facts = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [column]}),
        "partitionColumns": list(partition_by),
        "configuration": configuration or {},
        "createdTime": 0,
    }
    os.makedirs(place / "_delta_log")
    text = "\n".join(json.dumps(action) for action in ({"protocol": protocol}, {"metaData": facts}))
    (place / "_delta_log" / f"{0:020d}.json").write_text(text)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"features": ["rowTracking", "domainMetadata"]}, ["domainMetadata", "rowTracking"]),
        ({"features": ["inCommitTimestamp"]}, ["inCommitTimestamp"]),
        ({"features": ["typeWidening"]}, ["typeWidening"]),
        (
            {"features": ["checkConstraints"], "configuration": {"delta.constraints.some": "owner > 'a'"}},
            ["delta.constraints.some"],
        ),
        (
            {
                "features": ["columnMapping"],
                "configuration": {"delta.columnMapping.mode": "name"},
                "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
            },
            ["delta.columnMapping.mode"],
        ),
        (
            {"features": ["generatedColumns"], "metadata": {"delta.generationExpression": "'x'"}},
            ["delta.generationExpression"],
        ),
        (
            {"features": ["invariants"], "metadata": {"delta.invariants": '{"expression": {"expression": "true"}}'}},
            ["delta.invariants"],
        ),
    ],
)
def test_a_table_that_asks_more_of_its_writers_is_refused_by_what_it_asks(delivery, place, table, named):
    """The library itself would add files to some of these and break what they promise."""
    write_table(place, **table)
    with refused(features=named):
        deliver(delivery, FIRST, ROWS)
    assert table_at(place).version() == 0


def test_a_table_with_partitions_is_refused_by_their_columns(delivery, place):
    write_table(place, partition_by=["owner"])
    with refused(columns=["owner"]):
        deliver(delivery, FIRST, ROWS)


def test_features_that_ask_nothing_of_who_adds_files_are_no_hindrance(delivery, place):
    write_table(
        place, features=["appendOnly", "changeDataFeed", "invariants"], configuration={"delta.appendOnly": "true"}
    )
    deliver(delivery, FIRST, ROWS)
    assert changes(held(place)) == changes(ROWS)


@pytest.mark.parametrize(
    ("there", "brought", "expected"),
    [
        (pa.int64(), pa.int8(), True),
        (pa.int8(), pa.int64(), False),
        (pa.float64(), pa.int32(), True),
        (pa.float64(), pa.int64(), False),
        (pa.float32(), pa.int32(), False),
        (pa.float64(), pa.float32(), True),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(12, 3), pa.decimal128(10, 2), True),
        (pa.decimal128(12, 4), pa.decimal128(12, 2), False),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), False),
        (pa.string(), pa.binary(), False),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), True),
        (pa.list_(pa.field("element", pa.int64(), False)), pa.list_(pa.int64()), False),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8())]), True),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]), False),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int16()), True),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), False),
    ],
)
def test_a_type_holds_another_when_it_holds_each_of_its_values(there, brought, expected):
    assert holds(there, brought) is expected
    if expected:
        assert pa.nulls(1, brought).cast(there).type == there
