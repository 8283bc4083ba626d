"""Whether a column's type holds a Python value exactly; Arrow itself would take more and change it."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from strandline.model.values import first_unfit, fits

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 1, 12)
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())

HELD = [
    (pa.int8(), 5),
    (pa.int64(), np.int32(5)),
    (pa.float64(), 5),
    (pa.float64(), math.nan),
    (pa.float32(), math.inf),
    (pa.float32(), 3.4e38),
    (pa.string(), "x"),
    (pa.binary(), bytearray(b"x")),
    (pa.binary(), memoryview(b"x")),
    (pa.bool_(), True),
    (pa.bool_(), np.True_),
    (pa.date32(), NOON.date()),
    (pa.timestamp("us"), NOON),
    (pa.timestamp("us", tz="UTC"), NOON.replace(tzinfo=UTC)),
    (pa.decimal128(9, 2), Decimal("1.5")),
    (pa.decimal128(9, 2), 3),
    (pa.list_(pa.int64()), [1, None, 3]),
    (pa.list_(pa.int64()), (1, 2)),
    (STRUCT, {"a": 1}),
    (MAP, {"k": 1}),
    (MAP, [("k", 1), ("l", None)]),
]

UNFIT = [
    (pa.int64(), True),
    (pa.int64(), 1.0),
    (pa.int64(), "1"),
    (pa.float64(), True),
    (pa.float64(), "1"),
    (pa.float32(), 3.5e38),
    (pa.string(), b"x"),
    (pa.binary(), "x"),
    (pa.bool_(), 1),
    (pa.date32(), NOON),
    (pa.timestamp("us"), NOON.date()),
    (pa.timestamp("us"), NOON.replace(tzinfo=UTC)),
    (pa.timestamp("us", tz="UTC"), NOON),
    (pa.decimal128(9, 2), True),
    (pa.decimal128(9, 2), 1.5),
    (pa.list_(pa.int64()), "12"),
    (pa.list_(pa.int64()), [1, "2"]),
    (STRUCT, {"a": 1, "c": 2}),
    (STRUCT, {"a": "1"}),
    (STRUCT, [1, "x"]),
    (MAP, {"k": "1"}),
    (MAP, [("k", 1, 2)]),
    (MAP, "k1"),
    (pa.null(), 1),
]


@pytest.mark.parametrize(
    ("kind", "value"), HELD, ids=lambda value: type(value).__name__ if isinstance(value, memoryview) else repr(value)
)
def test_a_value_that_the_type_holds_exactly_fits(kind, value):
    assert fits(value, kind)
    assert fits(None, kind)
    assert first_unfit([value, None, value], kind) is None


@pytest.mark.parametrize(
    ("kind", "value"), UNFIT, ids=lambda value: type(value).__name__ if isinstance(value, memoryview) else repr(value)
)
def test_a_value_that_arrow_would_change_does_not_fit(kind, value):
    assert not fits(value, kind)
    assert first_unfit([None, value], kind) == 1


def test_the_first_value_that_does_not_fit_is_named_by_its_place():
    assert first_unfit([1, None, 2, "3", "4"], pa.int64()) == 3
    assert first_unfit([], pa.int64()) is None
