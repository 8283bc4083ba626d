"""The one Parquet writer: groups and files stay within their budgets, statistics are true bounds."""

import datetime as dt
import itertools
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline import encode
from strandline.encode import Budget
from strandline.storage import LocalStorage

UTC = dt.UTC


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


def write(storage, table, budget=encode.DEFAULT, batch_rows=None):
    names = (f"{number}.parquet" for number in itertools.count())
    batches = table.to_batches(max_chunksize=batch_rows)
    return list(encode.write_files(storage, "out", lambda: next(names), batches, table.schema, budget=budget))


def groups(storage, file):
    metadata = pq.ParquetFile(storage.url(f"out/{file.path}")).metadata
    return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


def read(storage, files):
    return pa.concat_tables(pq.read_table(storage.url(f"out/{file.path}")) for file in files)


def test_no_rows_make_no_file(storage):
    assert write(storage, pa.table({"x": pa.array([], pa.int64())})) == []
    assert list(storage.list("out")) == []


def test_a_group_closes_at_its_row_budget_across_batches(storage):
    table = pa.table({"x": range(100)})
    for batch_rows in (100, 7, 1):
        (file,) = write(storage, table, Budget(group_rows=30), batch_rows)
        assert all(rows <= 30 for rows in groups(storage, file))
        assert sum(groups(storage, file)) == 100
        assert read(storage, [file]).equals(table)


SIZES = {
    "even": [50] * 200,
    "one giant among small": [10] * 50 + [5000] + [10] * 49,
    "giants first": [900] * 5 + [1] * 50,
    "every row too large": [3000] * 6,
    "growing": list(range(0, 900, 10)),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_a_group_keeps_its_byte_budget_or_is_one_row(storage, sizes, batch_rows):
    texts = [chr(97 + at % 26) * size for at, size in enumerate(sizes)]
    table = pa.table({"text": texts})
    (file,) = write(storage, table, Budget(group_bytes=1000), batch_rows)
    at = 0
    for rows in groups(storage, file):
        held = sum(map(len, texts[at : at + rows]))
        assert rows == 1 or held <= 1000, f"{rows} rows of {held} bytes in one group"
        at += rows
    assert read(storage, [file])["text"].to_pylist() == texts


def test_a_new_file_starts_after_the_file_budget(storage):
    table = pa.table({"x": range(10_000), "y": [str(at) * 5 for at in range(10_000)]})
    files = write(storage, table, Budget(group_rows=500, file_bytes=8_000))
    assert len(files) > 2
    assert all(file.size < 60_000 for file in files)
    assert read(storage, files).equals(table)
    assert sum(file.rows for file in files) == 10_000


def test_what_is_returned_describes_the_file(storage):
    (file,) = write(storage, pa.table({"x": [3, 1, None]}))
    assert file.size == len(storage.read(f"out/{file.path}"))
    assert file.rows == 3
    assert json.loads(file.stats_text) == {
        "numRecords": 3,
        "minValues": {"x": 1},
        "maxValues": {"x": 3},
        "nullCount": {"x": 1},
    }


def test_a_failure_on_the_way_leaves_no_file(storage):
    def batches():
        yield pa.record_batch({"x": [1]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(encode.write_files(storage, "out", lambda: "x.parquet", batches(), pa.schema([("x", pa.int64())])))
    assert list(storage.list("")) == []
    assert list(storage.temporaries("")) == []


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
    assert (lows["f"], highs["f"]) == (-2.0, 1.5)
    assert not {"none", "list", "bytes"} & (lows.keys() | highs.keys())
    assert file.stats["nullCount"]["none"] == 2


def test_a_long_text_has_a_short_lower_bound_and_no_upper(storage):
    (file,) = write(storage, pa.table({"s": ["x" * 500, "y" * 500]}))
    assert file.stats["minValues"]["s"] == "x" * 64
    assert "s" not in file.stats["maxValues"]


def test_infinities_and_nan_are_not_written_as_bounds(storage):
    (file,) = write(storage, pa.table({"f": [1.0, float("inf"), float("-inf")], "g": [float("nan")] * 3}))
    assert json.loads(file.stats_text, parse_constant=pytest.fail)["numRecords"] == 3


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


def test_a_wide_repeated_column_stays_dictionary_encoded(storage):
    """A footer names the dictionary also after a fallback, so the size is the proof."""
    tools = [json.dumps({"tool": "x" * 100_000, "n": number}) for number in range(20)]
    table = pa.table({"tools": [tools[at % 20] for at in range(2000)]})
    (file,) = write(storage, table)
    metadata = pq.ParquetFile(storage.url(f"out/{file.path}")).metadata
    size = sum(metadata.row_group(at).column(0).total_uncompressed_size for at in range(metadata.num_row_groups))
    raw = sum(map(len, table["tools"].to_pylist()))
    assert size < raw / 8
