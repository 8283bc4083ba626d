"""A type keeps every value, whatever the block in which it comes."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.jobs.ingest.csv_types import ColumnGuess


def guess(*blocks: list[str | None]) -> pa.DataType:
    column = ColumnGuess(("NA",))
    for block in blocks:
        column.add(pa.chunked_array([pa.array(block, pa.string())]))
    return column.type


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-5", "0", None, ""], "int64"),
        (["1234567890123456789"], "int64"),
        (["1", "12345678901234567890"], "decimal128(20, 0)"),
        (["1" * 39], "string"),
        (["1234567890123456789", "1.5"], "decimal128(20, 1)"),
        (["1", "2.5", ".5", "-0.25"], "double"),
        (["0.1234567890123456"], "double"),
        (["0.12345678901234567891"], "decimal128(21, 20)"),
        (["1.5e300", "2"], "double"),
        (["1.5e-7", "1234567890123456789"], "string"),
        (["1e999"], "string"),
        (["00712", "1"], "string"),
        (["NA", "1"], "int64"),
        (["1", "x"], "string"),
        (["true", "FALSE"], "bool"),
        (["true", "1"], "string"),
        (["2024-01-31", "2024-02-31"], "string"),
        (["2024-01-31", "2024-01-31 12:00"], "string"),
        ([" 1", "2 "], "int64"),
        ([None, ""], "string"),
    ],
)
def test_the_type_of_texts_does_not_depend_on_blocks(texts: list[str | None], kind: str) -> None:
    assert str(guess(texts)) == kind
    assert str(guess(*([text] for text in texts))) == kind
    assert str(guess(*([text] for text in reversed(texts)))) == kind


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.integers(), min_size=1, max_size=5))
def test_numbers_read_back_as_they_are_written(numbers: list[Decimal | int]) -> None:
    texts = [f"{number:f}" if isinstance(number, Decimal) else str(number) for number in numbers]
    kind = guess(texts)
    if kind != pa.string():
        found = pa.array(texts).cast(kind).to_pylist()
        assert [Decimal(repr(one) if isinstance(one, float) else one) for one in found] == [Decimal(t) for t in texts]
