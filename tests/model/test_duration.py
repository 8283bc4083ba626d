"""Lengths of time: read in any form, shown in the shortest."""

import datetime as dt

import pytest

import strandline as sl
from strandline.model import duration
from support import refused


@pytest.mark.parametrize(
    ("value", "length_s"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("1h", 3600),
        ("7d", 604800),
        (" 1.5h ", 5400),
        ("2 d", 172800),
        ("0s", 0),
        (0, 0),
        (12, 12),
        (0.25, 0.25),
        (dt.timedelta(hours=2), 7200),
    ],
)
def test_a_length_of_time_is_read(value, length_s):
    assert duration.seconds(value) == length_s


@pytest.mark.parametrize(
    "value", ["", "7", "d", "-1s", "1w", "1h30m", "1e3s", "inf", "nan", -1, True, None, [], float("nan"), float("inf")]
)
def test_what_is_no_length_of_time_is_refused(value):
    with refused(sl.Invalid):
        duration.seconds(value, "keep")


def test_a_negative_timedelta_is_refused():
    with refused(sl.Invalid):
        duration.seconds(dt.timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("length_s", "text"), [(0, "0s"), (1, "1s"), (90, "90s"), (60, "1m"), (3600, "1h"), (5400, "90m"), (604800, "7d")]
)
def test_a_length_is_shown_in_the_largest_unit_that_says_it_exactly(length_s, text):
    assert duration.to_text(length_s) == text


@pytest.mark.parametrize("length_s", [0.25, 1.5, 59.999, 1234567.25, 86400 * 365 * 1000, 86400.125])
def test_what_is_shown_reads_back_as_the_same_length(length_s):
    assert duration.seconds(duration.to_text(length_s)) == length_s
