"""Which types and names a table takes, and how a schema may grow."""

import json

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model import types as schemas
from support import refused

US = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", tz="Europe/Berlin"), US),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.json_(pa.large_string()), schemas.JSON),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.struct([("t", pa.timestamp("ms"))]), pa.struct([("t", pa.timestamp("us"))])),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.decimal128(12, 3), pa.decimal128(12, 3)),
    ],
)
def test_a_type_that_delta_lacks_becomes_one_that_holds_every_value(given, stored):
    assert schemas.canonical_type(given, "c") == stored


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(), pa.null(), pa.time64("us"), pa.duration("s"), pa.decimal256(50, 2), pa.month_day_nano_interval(),
        pa.list_(pa.uint64()), pa.struct([("x", pa.time32("s"))]), pa.binary(4),
    ],
)  # fmt: skip
def test_a_type_that_no_column_can_hold_is_refused_by_name(lake, kind):
    with pytest.raises(sl.Invalid) as caught:
        lake.create_table("t", pa.schema([("id", pa.int64()), ("wrong", kind)]))
    assert caught.value.fields["column"].startswith("wrong")
    assert lake.tables() == []


@pytest.mark.parametrize("kind", [pa.struct([]), pa.decimal128(5, -2), pa.list_(pa.struct([]))])
def test_a_type_that_the_files_cannot_hold_is_refused_when_the_table_is_created(lake, kind):
    with refused(sl.Invalid):
        lake.create_table("t", pa.schema([("id", pa.int64()), ("wrong", kind)]), key=["id"])
    assert lake.tables() == []


def test_columns_that_differ_in_case_only_are_refused(lake):
    with refused(sl.Invalid, column="ID"):
        lake.create_table("t", pa.schema([("id", pa.int64()), ("ID", pa.string())]))


def test_a_table_needs_a_column(lake):
    with refused(sl.Invalid):
        lake.create_table("t", pa.schema([]))


def test_a_schema_survives_being_kept_as_text():
    schema = pa.schema([pa.field("id", pa.int64(), False), ("doc", schemas.JSON), ("l", pa.list_(schemas.JSON))])
    assert schemas.from_text(schemas.to_text(schema)).equals(schema)


def test_delta_sees_json_as_a_string():
    fields = json.loads(schemas.delta_json(pa.schema([("doc", schemas.JSON), ("t", US)])))["fields"]
    assert [field["type"] for field in fields] == ["string", "timestamp"]


def test_local_times_are_known_to_need_a_table_feature():
    assert schemas.needs_ntz(pa.schema([("x", pa.list_(pa.timestamp("us")))]))
    assert not schemas.needs_ntz(pa.schema([("x", US)]))


WIDENED = [
    (pa.int8(), pa.int16()),
    (pa.int8(), pa.int64()),
    (pa.int16(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
]


@pytest.mark.parametrize(("before", "after"), WIDENED)
def test_a_number_may_be_widened(before, after):
    assert schemas.evolve_schema(pa.schema([("x", before)]), pa.schema([("x", after)])).field("x").type == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((wide, narrow) for narrow, wide in WIDENED),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.string(), schemas.JSON),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), US),
        (pa.decimal128(5, 2), pa.decimal128(6, 2)),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
)
def test_any_other_change_of_type_is_refused_by_name(before, after):
    with refused(sl.Invalid, column="x"):
        schemas.evolve_schema(pa.schema([("x", before)]), pa.schema([("x", after)]))


def test_a_new_column_must_be_nullable():
    with refused(sl.Invalid, column="y"):
        schemas.evolve_schema(pa.schema([("x", pa.int64())]), pa.schema([pa.field("y", pa.int64(), nullable=False)]))


def test_a_column_that_exists_cannot_become_required():
    with refused(sl.Invalid, column="x"):
        schemas.evolve_schema(pa.schema([("x", pa.int64())]), pa.schema([pa.field("x", pa.int64(), nullable=False)]))


def test_a_new_column_must_differ_from_those_there_are_in_more_than_case():
    with refused(sl.Invalid, column="X"):
        schemas.evolve_schema(pa.schema([("x", pa.int64())]), pa.schema([("X", pa.int64())]))
