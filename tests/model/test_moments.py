"""Texts that say moments: no digit of them is cut."""

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model import moments
from support import nothing_written, refused


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [("12:00", 0), ("12:00:00.5", 500_000), ("12:00:00.123456", 123_456), ("12:00:00.123456000", 123_456)],
)
def test_a_moment_with_zeros_beyond_microseconds_is_whole(text, microsecond):
    assert moments.parse_moment(f"2026-01-02T{text}").microsecond == microsecond
    assert moments.parse_moment(f"2026-01-02 {text}+01:00").utcoffset() == dt.timedelta(hours=1)


@pytest.mark.parametrize(
    "text", ["12:00:00.1234567", "12:00:00.123456001", "12:00:00,1234567", "12:00:00.1234567Z", "x"]
)
def test_a_moment_with_digits_beyond_microseconds_is_refused(text):
    with pytest.raises(ValueError):
        moments.parse_moment(f"2026-01-02T{text}")


def test_a_condition_does_not_cut_its_times(make_table):
    table = make_table(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]), key=["id"])
    table.upsert([{"id": 1, "at": dt.datetime(2026, 1, 2, 0, 0, 0, 123_456)}])
    assert table.to_arrow(where="at = '2026-01-02 00:00:00.123456000'").num_rows == 1
    with nothing_written(table), refused(sl.Invalid):
        table.to_arrow(where="at = '2026-01-02 00:00:00.123456789'")
