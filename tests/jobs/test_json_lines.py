"""Lines that Arrow reads at once are read as if each had been looked at."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.jobs.ingest.json_rows import JsonRows
from strandline.jobs.ingest.json_stream import Lines, split_lines

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("f", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("inner", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float32()))])),
    ]
)
GOOD = [
    '{"id": 1}',
    '{"id": 2, "f": 1.5, "text": "}"}',
    '{"id": 3, "inner": {"x": 2, "y": [1, 2]}}',
    '{"id":4}{"id":5}',
]
ODD = [
    "",
    " ",
    "{}",
    '{"id": 6',
    '"f": 2}',
    '{"id": 7, "inner": {"x": 1',
    "}}",
    "{",
    "}",
    '{"id": 8, "text": "open}',
    '{"id": 9, "f": NaN}',
    '{"id": 9, "f": -Infinity}',
    '{"id": 9, "text": "NaN"}',
    '{"id": 10, "inner": {"y": [NaN]}}',
    '{"id": 10, "inner": {"x": 9007199254740993}}',
    '{"id": 11, "f": 9007199254740993}',
    '{"id": 12} {"id": 13}',
    '{"id": 14},{"id": 15}',
    '{"id": 16}\r',
    '{"id": 17, "other": 1}',
    '{"id": 18, "id": 19}',
    '{"id": "x"}',
    "[1]",
    '{"id": 20, "text": ' + "[" * 5_000 + "]" * 5_000 + "}",
]


def read(make, schema=SCHEMA, rows=None):
    good, bad = (rows or JsonRows(schema)).convert(make)
    return good.table.to_pylist(), [(each.line, each.column, each.reason) for each in bad]


def assert_same(data):
    # A NaN is not equal to itself.
    assert repr(read(Lines(data, 5))) == repr(read(lambda: split_lines(data, 5)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(GOOD + ODD), max_size=6), st.booleans())
def test_lines_are_read_as_if_looked_at(lines, ends):
    assert_same("\n".join(lines).encode() + b"\n" * ends)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_line_between_good_ones(odd):
    assert_same("\n".join([GOOD[0], odd, GOOD[1]]).encode())


def test_good_lines_are_not_looked_at():
    class Unseen(Lines):
        def __call__(self):
            raise AssertionError("the lines were looked at")

    lines = GOOD[:3] * 100
    rows, bad = read(Unseen("\n".join(lines).encode(), 1))
    assert [row["id"] for row in rows] == [1, 2, 3] * 100 and not bad


def test_one_broken_line_does_not_slow_the_next_block():
    rows = JsonRows(SCHEMA)
    assert read(Lines(f'{GOOD[0]}\n{{"id": "open}}\n'.encode(), 1), rows=rows)[1]
    found = read(Lines(f"{GOOD[0]}\n".encode(), 3), rows=rows)
    assert found == ([{"id": 1, "f": None, "text": None, "inner": None}], [])
    assert rows._is_plain


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", None),
        (b"{}", 1),
        (b"{}\n", 1),
        (b"{}\n{}", 2),
        (b"{}\n\n{}", None),
        (b"\n{}", None),
        (b"{}\r\n{}", None),
        (b"[]\n{}", None),
        (b"{}\n{} ", None),
    ],
)
def test_only_lines_that_begin_and_end_as_objects_are_counted(data, count):
    assert Lines(data, 1).count_objects() == count
