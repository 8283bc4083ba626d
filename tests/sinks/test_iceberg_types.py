"""Columns of a batch in an Iceberg table: every value arrives, the table grows, what does not fit is named."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import icebergs
from icebergs import (
    COLUMNS,
    Opened,
    batch_of,
    deliver,
    gone,
    held,
    snapshots,
    table_of,
    up,
)
from strandline.errors import Invalid
from strandline.model.types import JSON
from strandline.sinks.iceberg_types import stored_schema, stored_type, widens
from support import refused

catalog, local, opened = icebergs.catalog, icebergs.local, icebergs.opened


def test_a_new_column_and_wider_numbers_evolve_the_table(catalog: dict[str, str], opened: Opened) -> None:
    ice = opened(catalog)
    narrow = pa.schema([*COLUMNS, ("score", pa.float32())])
    deliver(ice, batch_of(0, 1, narrow), up(1, 1, name="a", qty=1, score=0.5))
    wide = pa.schema(
        [*COLUMNS.set(2, pa.field("qty", pa.int64())), ("score", pa.float64()), ("tags", pa.list_(JSON.storage_type))]
    )
    deliver(ice, batch_of(1, 2, wide), up(2, 2, name="b", qty=1 << 40, score=0.1, tags=["x", None]))
    deliver(ice, batch_of(2, 3, narrow), up(3, 3, name="c", qty=3, score=2.0))
    assert held(ice, "id", "name", "qty", "score", "tags") == [
        (1, "a", 1, "0.5", None),
        (2, "b", 1 << 40, "0.1", ["x", None]),
        (3, "c", 3, "2.0", None),
    ]
    assert snapshots(ice) == 3


def test_a_column_that_does_not_fit_is_refused_by_name(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1, name="a"))
    other = COLUMNS.set(1, pa.field("name", pa.int32()))
    with refused(Invalid, column="name"):
        ice.lane(batch_of(1, 2, other))
    assert ice.position(1) == {0: 1}


def test_every_type_reads_back_equal(local: dict[str, str], opened: Opened) -> None:
    utc = dt.UTC
    kinds: dict[str, tuple[pa.DataType, Any, str]] = {
        "i8": (pa.int8(), -3, "int"),
        "i16": (pa.int16(), 300, "int"),
        "i32": (pa.int32(), 1 << 20, "int"),
        "i64": (pa.int64(), 1 << 40, "long"),
        "yes": (pa.bool_(), True, "boolean"),
        "f32": (pa.float32(), 1.5, "float"),
        "f64": (pa.float64(), 0.1, "double"),
        "text": (pa.string(), "é" * 40, "string"),
        "raw": (pa.binary(), b"\x00\xff", "binary"),
        "day": (pa.date32(), dt.date(1969, 1, 2), "date"),
        "at": (pa.timestamp("us"), dt.datetime(2024, 1, 2, 3, 4, 5, 6), "timestamp"),
        "utc": (pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 2, 3, 4, 5, 6, utc), "timestamptz"),
        "dec5": (pa.decimal128(5, 2), Decimal("-1.25"), "decimal(5, 2)"),
        "dec15": (pa.decimal128(15, 3), Decimal("1234567.125"), "decimal(15, 3)"),
        "dec30": (pa.decimal128(30, 9), Decimal("123456789012345678901.000000001"), "decimal(30, 9)"),
        "json": (JSON, '{"a":  1}', "string"),
        "list": (pa.list_(pa.int16()), [1, None], "list<int>"),
        "map": (pa.map_(pa.string(), pa.int8()), [("k", 1), ("z", None)], "map<string, int>"),
        "deep": (
            pa.list_(pa.struct([("x", pa.timestamp("us", "UTC")), ("y", pa.list_(pa.string()))])),
            [{"x": dt.datetime(1970, 1, 1, tzinfo=utc), "y": ["p", None]}, None],
            "list<struct",
        ),
    }  # fmt: skip
    columns = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in kinds.items())])
    values = {name: value for name, (_, value, _) in kinds.items()}
    ice = opened(local)
    deliver(ice, batch_of(0, 1, columns), up(1, 1, **values), gone(1, 2), up(1, 3, f64=math.nan))
    table = table_of(ice)
    for name, (_, _, theirs) in kinds.items():
        assert str(table.schema().find_field(name).field_type).startswith(theirs), name
    assert all(column.optional for column in table.schema().columns)
    found = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert {name: found[1][name] for name in kinds} == values
    # To pyiceberg's reader a list of structs that is null is an empty one; in the file it is null, see below.
    assert [name for name in kinds if found[2][name] is not None] in ([], ["deep"])
    assert math.isnan(found[3]["f64"])
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    assert len(files) == 2
    read = duckdb.read_parquet(files).order("id").to_arrow_table().to_pylist()
    assert {name: read[0][name] for name in kinds} == values
    assert [name for name in kinds if read[1][name] is not None] == []


def test_a_table_that_is_there_is_used_if_the_columns_fit(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    theirs = ice._catalog.create_table(
        ice._sink.identifier,
        Schema(
            NestedField(1, "note", StringType(), required=False),
            NestedField(2, "qty", LongType(), required=False),
            NestedField(3, "id", LongType(), required=True),
        ),
    )
    theirs.append(pa.table({"note": ["theirs"], "qty": pa.array([9]), "id": [0]}, theirs.schema().as_arrow()))
    deliver(ice, batch_of(0, 1), up(1, 1, name="a", qty=1), gone(1, 2))
    assert held(ice, "id", "note", "qty", "name", "_op") == [
        (0, "theirs", 9, None, None),
        (1, None, 1, "a", "upsert"),
        (2, None, None, None, "delete"),
    ]
    with table_of(ice).update_schema() as update:
        update.rename_column("name", "title")
    with refused(Invalid, column="name"):
        ice.lane(batch_of(1, 2))


def test_a_table_that_requires_what_a_delete_lacks_takes_no_delete(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    ice._catalog.create_namespace(ice._sink.identifier[:-1])
    required = [NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType(), required=True)]
    ice._catalog.create_table(ice._sink.identifier, Schema(*required))
    batch = batch_of(0, 1)
    [result] = ice.lane(batch)(iter([pa.RecordBatch.from_pylist([gone(1, 1)], schema=batch.lane_schema)]))
    assert isinstance(result.error, Invalid) and result.error.fields["column"] == "name"
    with refused(Invalid, column="name"):
        ice.finish(batch, [result])
    with refused(Invalid, column="name"):
        ice.lane(batch_of(0, 1, pa.schema([("id", pa.int64())])))


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.int8(), pa.int32()),
        (pa.int16(), pa.int32()),
        (pa.int64(), pa.int64()),
        (JSON, pa.string()),
        (pa.large_string(), pa.string()),
        (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.large_binary(), pa.binary()),
        (pa.list_(pa.int8()), pa.list_(pa.int32())),
        (pa.struct([("a", pa.int16())]), pa.struct([("a", pa.int32())])),
        (pa.map_(pa.string(), JSON), pa.map_(pa.string(), pa.string())),
        (pa.bool_(), pa.bool_()),
    ],
)
def test_a_type_is_stored_as_one_that_iceberg_has(kind, stored):
    assert stored_type(kind) == stored
    assert stored_type(stored) == stored


def test_a_new_table_takes_nulls_everywhere():
    columns = stored_schema(pa.schema([pa.field("id", pa.int8(), nullable=False), ("s", pa.string())]))
    assert columns == pa.schema([("id", pa.int32()), ("s", pa.string())])


def test_numbers_widen_and_nothing_else_does():
    assert widens(pa.int32(), pa.int64()) and widens(pa.float32(), pa.float64())
    assert widens(pa.decimal128(5, 2), pa.decimal128(9, 2))
    for narrow, wide in [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(5, 2)),
        (pa.decimal128(5, 2), pa.decimal128(9, 3)),
        (pa.int32(), pa.int32()),
    ]:
        assert not widens(narrow, wide)


@pytest.mark.parametrize("mode", ["mirror", "changes"])
def test_data_files_have_ids_for_every_part_of_nested_columns(local: dict[str, str], opened: Opened, mode: str) -> None:
    part = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), False),
            ("parts", pa.list_(part)),
            ("one", part),
            ("named", pa.map_(pa.string(), part)),
        ]
    )
    value = {"x": 1, "y": ["a", None]}
    ice = opened(local, mode=mode)
    deliver(ice, batch_of(0, 1, columns), up(1, 1, parts=[value], one=value, named={"k": value}))
    deliver(ice, batch_of(1, 2, columns), up(2, 2, parts=[value], one=value, named={"k": value}))
    table = table_of(ice)
    leaves = {}
    for task in table.scan().plan_files():
        schema = pq.read_metadata(task.file.file_path.removeprefix("file://")).schema.to_arrow_schema()
        leaves |= dict(_ids_of(pa.struct(list(schema))))
    expected = dict(_ids_of(pa.struct(list(schema_to_pyarrow(table.schema())))))
    assert leaves == expected and None not in leaves.values()
    with table.update_schema() as update:
        update.rename_column(("parts", "element", "x"), "xx")
        update.rename_column(("one", "y"), "yy")
        update.rename_column(("named", "value", "x"), "xx")
    row = table_of(ice).scan().to_arrow().sort_by("id").to_pylist()[0]
    assert row["parts"] == [{"xx": 1, "y": ["a", None]}]
    assert row["one"] == {"x": 1, "yy": ["a", None]}
    assert dict(row["named"]) == {"k": {"xx": 1, "y": ["a", None]}}


def _ids_of(kind, path=""):
    """Every part of a type, with its field id."""
    if pa.types.is_struct(kind):
        parts = list(kind)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [kind.value_field]
    elif pa.types.is_map(kind):
        parts = [kind.key_field, kind.item_field]
    else:
        return
    for part in parts:
        yield f"{path}.{part.name}", (part.metadata or {}).get(b"PARQUET:field_id")
        yield from _ids_of(part.type, f"{path}.{part.name}")
