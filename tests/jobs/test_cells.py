"""Texts become values a column at a time, each decided alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.jobs.ingest.bad_rows import UNFIT
from strandline.jobs.ingest.cells import cast_texts, find_unfit, reason_for
from strandline.model.types import JSON


def column(*texts: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), " 5 ", 5),
        (pa.int64(), "", None),
        (pa.date32(), "", None),
        (pa.float64(), "NA", None),
        (pa.string(), "", ""),
        (pa.string(), "NA", "NA"),
        (pa.float64(), "9007199254740992", 9007199254740992.0),
        (pa.bool_(), "TRUE", True),
    ],
)
def test_a_text_is_a_value_of_its_column(kind: pa.DataType, text: str, value: object) -> None:
    assert cast_texts(column(text), pa.field("c", kind), ("NA",)).to_pylist() == [value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "1.5"),
        (pa.int32(), "3000000000"),
        (pa.float64(), "1234567890123456789"),
        (pa.decimal128(5, 2), "1.005"),
        (pa.timestamp("us", tz="UTC"), "2024-01-31 12:00:00"),
        (JSON, "{"),
    ],
)
def test_a_text_that_is_none_is_refused_with_a_reason(kind: pa.DataType, text: str) -> None:
    field = pa.field("c", kind)
    with pytest.raises(UNFIT):
        cast_texts(column(text), field)
    assert text in reason_for(text, field, ())


def test_bad_texts_are_found_among_many_and_a_missing_value_too() -> None:
    texts = [str(at) for at in range(1000)]
    texts[7] = texts[500] = "x"
    assert find_unfit(column(*texts), pa.field("c", pa.int64()), ()).to_pylist().count(True) == 2
    assert find_unfit(column("1", "2"), pa.field("c", pa.int64()), ()) is None
    required = pa.field("c", pa.int64(), nullable=False)
    assert find_unfit(column("1", None, "", "NA"), required, ("NA",)).to_pylist() == [False, True, True, True]
    assert "required" in reason_for(None, required, ())
