"""Keys compare as their encodings do."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.model.key_order import decode_key, encode_key, is_at_most
from strandline.model.types import KEY_TYPES

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text("\x00\x01\xffa", max_size=6)
VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): INT64 | st.integers(-3, 3),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=6) | st.text("\x00\x01", max_size=6).map(str.encode),
    pa.date32(): st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2),
    pa.timestamp("us"): INT64 | st.integers(-2, 2),
    pa.timestamp("us", "UTC"): INT64 | st.integers(-2, 2),
}


@st.composite
def two_keys(draw):
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    one = [tuple(draw(VALUES[kind]) for kind in kinds) for _ in range(2)]
    shared = draw(st.integers(0, len(kinds)))
    return kinds, one[0], one[0][:shared] + one[1][shared:]


def as_python(key):
    """What Python sorts: texts by their bytes, as Parquet, DuckDB and Spark do."""
    return tuple(value.encode() if isinstance(value, str) else value for value in key)


def test_every_type_of_a_key_is_tried():
    assert set(VALUES) == set(KEY_TYPES)


@given(two_keys())
@example(([pa.string()], ("a",), ("a\x00",)))
@example(([pa.string(), pa.string()], ("a", "b"), ("a\x00", "")))
@example(([pa.binary(), pa.int64()], (b"\x00", 1), (b"\x00\x01", 0)))
@example(([pa.string()], ("\uffff",), ("\U00010000",)))
def test_encodings_sort_as_keys_do(drawn):
    kinds, one, other = drawn
    left, right = encode_key(one, kinds), encode_key(other, kinds)
    assert (left < right) == (as_python(one) < as_python(other))
    assert (left == right) == (one == other)


@given(two_keys())
def test_a_key_is_read_back_from_its_encoding(drawn):
    kinds, key, _ = drawn
    for count in range(len(key) + 1):
        assert decode_key(encode_key(key[:count], kinds), kinds) == key[:count]


@given(two_keys(), st.integers(1, 3))
def test_a_short_position_stands_behind_all_keys_that_begin_with_it(drawn, count):
    kinds, one, other = drawn
    position = encode_key(other[:count], kinds)
    assert is_at_most(encode_key(one, kinds), position) == (as_python(one)[:count] <= as_python(other)[:count])


def test_the_empty_position_lies_before_all_keys():
    assert is_at_most(b"", b"") and is_at_most(b"", b"\x00") and not is_at_most(b"\x00", b"")


def test_dates_and_times_are_taken_as_python_has_them():
    day, moment = dt.date(1969, 12, 31), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    kinds = [pa.date32(), pa.timestamp("us", "UTC")]
    assert decode_key(encode_key((day, moment), kinds), kinds) == (-1, 1_000_000)


def test_a_value_that_no_key_holds_is_refused():
    with pytest.raises(Invalid, match="a key holds no float"):
        encode_key((1.5,), [pa.int64()])
