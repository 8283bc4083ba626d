"""How columns are read from text, and what is said of a value that does not fit."""

from decimal import Decimal

import pyarrow as pa
import pytest

from strandline.jobs.ingest.columns import cast_columns, misfit_reason, read_type
from strandline.model.types import JSON


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (pa.int32(), pa.int32()),
        (pa.date32(), pa.string()),
        (pa.timestamp("us", tz="UTC"), pa.string()),
        (pa.binary(), pa.string()),
        (JSON, pa.string()),
        (pa.list_(pa.date32()), pa.list_(pa.string())),
        (pa.struct([("at", pa.timestamp("us")), ("n", pa.int8())]), pa.struct([("at", pa.string()), ("n", pa.int8())])),
    ],
)
def test_times_and_bytes_are_read_as_texts_at_every_depth(kind, read):
    assert read_type(kind) == read


def test_texts_become_times_and_times_that_are_none_are_refused():
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32()), ("n", pa.int8())])
    read = pa.table({"at": ["2026-01-02T03:04:05.000006Z", None], "day": ["2026-01-02", None], "n": ["1", "2"]})
    found = cast_columns(read, schema)
    assert found.schema.types == schema.types
    assert found["at"][0].as_py().isoformat() == "2026-01-02T03:04:05.000006+00:00"
    with pytest.raises(pa.ArrowInvalid):
        cast_columns(pa.table({"day": ["2026-13-02"]}), schema)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (None, pa.int64(), "a value is required, found none"),
        ("x", pa.int64(), "'x' is not int64"),
        ({"a": Decimal("1.5")}, pa.int64(), '{"a": 1.5} is not int64'),
        (Decimal("1.50"), pa.int64(), "1.50 is not int64"),
        ("x", pa.float64(), "'x' is not float64"),
        ("x", pa.bool_(), "'x' is not true or false"),
        ("x", pa.date32(), "'x' is not a date, such as 2024-01-31"),
        ("{", JSON, "'{' is not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_the_value_and_what_was_expected(value, kind, said):
    assert misfit_reason(value, pa.field("c", kind)) == said


def test_a_long_value_is_cut_short():
    assert len(misfit_reason("x" * 1000, pa.field("c", pa.int64()))) < 80
