"""What a file's footer says of its rows: counts, and bounds that every value lies within."""

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_files import chunks, write
from strandline.storage.open import LocalStorage
from strandline.storage.parquet.writer import Budget

UTC = dt.UTC


def test_statistics_are_spelled_as_delta_keeps_them(storage):
    table = pa.table(
        {
            "s": ["b", "a"],
            "d": [dt.date(2026, 1, 2), dt.date(1969, 5, 5)],
            "z": pa.array([dt.datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC)] * 2),
            "n": [dt.datetime(2026, 1, 1)] * 2,
            "f": [1.5, -2.0],
            "none": pa.array([None, None], pa.int64()),
            "list": [[1], [2]],
            "bytes": [b"a", b"b"],
            "price": [Decimal("1.5"), Decimal("2.5")],
        }
    )
    (file,) = write(storage, table)
    lows, highs = file.stats["minValues"], file.stats["maxValues"]
    assert (lows["s"], highs["s"]) == ("a", "b")
    assert (lows["d"], highs["d"]) == ("1969-05-05", "2026-01-02")
    assert lows["z"] == "2026-01-01T01:02:03.000004Z"
    assert lows["n"] == "2026-01-01T00:00:00.000000"
    assert not {"f", "none", "list", "bytes"} & (lows.keys() | highs.keys())
    assert file.stats["nullCount"]["none"] == 2


def test_a_long_text_has_a_short_lower_bound_and_no_upper(storage):
    (file,) = write(storage, pa.table({"s": ["x" * 500, "y" * 500]}))
    assert file.stats["minValues"]["s"] == "x" * 64
    assert "s" not in file.stats["maxValues"]


def test_floats_have_no_bounds_and_what_lies_beside_them_has(storage):
    floats = pa.array([{"v": 1.0, "n": 1}] * 3, pa.struct([("v", pa.float64()), ("n", pa.int64())]))
    lists = pa.array([[(1, 0.5)]] * 3, pa.map_(pa.int64(), pa.float32()))
    table = pa.table(
        {
            "f": [1.0, math.inf, -math.inf],
            "g": [math.nan] * 3,
            "s": floats,
            "m": lists,
            "l": [[1.0]] * 3,
            "id": [1, 2, 3],
        }
    )
    (file,) = write(storage, table)
    stats = json.loads(file.stats_text, parse_constant=pytest.fail)
    assert stats == {"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": 3}, "nullCount": {"id": 0}}
    parts = {path: part.is_stats_set for path, (part,) in chunks(storage, [file]).items()}
    bounded = {"s.n", "m.key_value.key", "id"}
    assert {path for path, is_set in parts.items() if is_set} == bounded
    assert len(parts) == 8


def test_columns_past_the_thirty_second_have_no_statistics(storage):
    (file,) = write(storage, pa.table({f"c{at}": [at] for at in range(40)}))
    assert set(file.stats["minValues"]) == {f"c{at}" for at in range(32)}


@settings(max_examples=60)
@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=80)), min_size=1, max_size=30),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
)
def test_every_value_lies_within_the_statistics(tmp_path_factory, values, numbers):
    storage = LocalStorage(str(tmp_path_factory.mktemp("stats")))
    count = min(len(values), len(numbers))
    table = pa.table({"s": pa.array(values[:count], pa.string()), "n": numbers[:count]})
    (file,) = write(storage, table, Budget(group_rows=4))
    for name in ("s", "n"):
        present = [value for value in table[name].to_pylist() if value is not None]
        low, high = file.stats["minValues"].get(name), file.stats["maxValues"].get(name)
        assert all(low is None or value >= low for value in present)
        assert all(high is None or value <= high for value in present)
        assert file.stats["nullCount"][name] == count - len(present)
