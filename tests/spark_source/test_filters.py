"""A filter is taken when the table's own expression says exactly the same; the others are left to Spark."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from strandline.spark_source.filters import take_filters

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("share", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ('odd "name"', pa.int32()),
    ]
)
TAKEN = [
    ds.EqualTo(("id",), 3),
    ds.EqualNullSafe(("id",), 3),
    ds.In(("id",), [1, 2]),
    ds.IsNull(("raw",)),
    ds.Not(ds.IsNotNull(("text",))),
    ds.GreaterThan(("share",), -0.5),
    ds.LessThanOrEqual(("price",), Decimal("1E+3")),
    ds.GreaterThanOrEqual(("day",), dt.date(2024, 2, 29)),
    ds.LessThan(("at",), dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC)),
    ds.EqualTo(("text",), "it's"),
    ds.StringStartsWith(("text",), "a"),
    ds.EqualTo(('odd "name"',), 1),
]
LEFT = [
    ds.EqualTo(("raw",), b"x"),
    ds.EqualTo(("share",), math.nan),
    ds.LessThan(("share",), math.inf),
    ds.EqualTo(("share",), 1e300),
    ds.EqualTo(("text",), "a\0b"),
    ds.EqualTo(("nope",), 1),
    ds.EqualTo(("doc", "field"), 1),
    ds.In(("id",), [1, None]),
    ds.In(("id",), []),
    ds.StringContains(("text",), "50%"),
    ds.StringEndsWith(("text",), "a_b"),
    ds.Not(ds.EqualTo(("raw",), b"x")),
]


@pytest.mark.parametrize("each", TAKEN, ids=str)
def test_a_filter_that_can_be_said_is_taken(each):
    predicate, left = take_filters([each], SCHEMA)
    assert predicate is not None and left == []


@pytest.mark.parametrize("each", LEFT, ids=str)
def test_a_filter_that_cannot_be_said_exactly_is_left_to_spark(each):
    assert take_filters([each], SCHEMA) == (None, [each])


def test_filters_are_taken_one_by_one():
    predicate, left = take_filters([TAKEN[0], LEFT[0], TAKEN[1], LEFT[1]], SCHEMA)
    assert predicate is not None and left == LEFT[:2]
    assert take_filters([], SCHEMA) == (None, [])


def test_filters_that_are_too_large_together_are_all_left_to_spark():
    many = [ds.In(("id",), list(range(at, at + 500))) for at in range(0, 50_000, 500)]
    predicate, left = take_filters(many, SCHEMA)
    assert (predicate is None) == bool(left)
    assert left in ([], many)
