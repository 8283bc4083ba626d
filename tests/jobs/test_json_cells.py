"""Texts of JSON values become a column; the others get a reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.jobs.ingest.json_cells import read_column
from strandline.model.types import JSON


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (pa.int64(), ["1", "-0", "01", "1.0", "1e3", '"1"', "9223372036854775808", None, "+1", "0x1"],
         [1, 0, None, None, None, None, None, None, None, None]),
        (pa.int8(), ["127", "128"], [127, None]),
        (pa.float64(), ["1", "1.5e3", "NaN", "1e999", "-Infinity", "nan", "tru", '"1"'],
         [1.0, 1500.0, "nan", None, float("-inf"), None, None, None]),
        (pa.float32(), ["1e39", "0.5"], [None, 0.5]),
        (pa.bool_(), ["true", "false", "True", "1"], [True, False, None, None]),
        (pa.decimal128(5, 2), ["1.5", '"2.25"', "1.005", "12345"], ["1.50", "2.25", None, None]),
        (pa.string(), ['"a\\n"', "5", "1.10", "true", "[1]", '"\\ud800"', "tru", None],
         ["a\n", "5", "1.10", "true", None, None, None, None]),
        (pa.date32(), ['"2024-02-29"', '"2024-02-30"', "5"], ["2024-02-29", None, None]),
        (pa.binary(), ['"ab"', "5"], [b"ab", None]),
        (pa.list_(pa.int64()), ["[1, null]", '["x"]', "5", "[]"], [[1, None], None, None, []]),
        (pa.struct([("a", pa.int64())]), ['{"a": 1}', "{}", '{"b": 1}', "[1]"], [{"a": 1}, {"a": None}, None, None]),
        (pa.map_(pa.string(), pa.int64()), ['{"a": 1}', '{"a": "x"}', "5"], [[("a", 1)], None, None]),
        (JSON, ['{"b": 1.10}', '"5"', "NaN", "tru", '"\\ud800"', "[1, 2"],
         ['{"b": 1.10}', '"5"', None, None, None, None]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)  # fmt: skip
def test_a_value_is_read_or_has_a_reason(kind, texts, values):
    array, reasons = read_column([None if text is None else text.encode() for text in texts], pa.field("v", kind))
    assert list(map(str, array.to_pylist())) == list(map(str, values))
    wanted = {
        at for at, (text, value) in enumerate(zip(texts, values, strict=True)) if text is not None and value is None
    }
    assert reasons.keys() == wanted and all(reasons.values())


def test_many_bad_values_are_found_all():
    texts = [b'"x"' if number % 8 == 0 else b"%d" % number for number in range(10_000)]
    array, reasons = read_column(list(texts), pa.field("v", pa.int64()))
    assert list(reasons) == list(range(0, 10_000, 8))
    assert array.null_count == 1250
