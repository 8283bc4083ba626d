"""Schemas as people type them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.errors import Invalid
from strandline.model.schema_text import columns_of, parse_schema, type_text
from strandline.model.types import JSON

TEXT = "id:int64!, name:string, at:timestamp, price:decimal(10,2), tags:list<string>, note:json, deep:list<list<int32>>"


def test_a_text_is_the_schema_that_it_says() -> None:
    found = parse_schema(TEXT)
    assert found.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert found.field("at").type == pa.timestamp("us", tz="UTC")
    assert found.field("price").type == pa.decimal128(10, 2)
    assert found.field("note").type == JSON
    assert found.field("deep").type == pa.list_(pa.list_(pa.int32()))


def test_columns_are_told_in_the_words_that_made_them() -> None:
    columns = columns_of(parse_schema(TEXT))
    assert columns[0] == {"name": "id", "type": "int64", "nullable": False}
    text = ", ".join(f"{each['name']}:{each['type']}{'' if each['nullable'] else '!'}" for each in columns)
    assert text == TEXT


def test_a_type_without_a_word_is_told_as_arrow_does() -> None:
    assert type_text(pa.int64()) == "int64"
    assert type_text(pa.time64("us")) == "time64[us]"


@pytest.mark.parametrize(
    ("text", "column"),
    [("id", "id"), ("id:", "id"), (":int64", None), ("id:foo", "id"), ("id:decimal(99,2)", "id"), ("a:list<foo>", "a")],
)
def test_what_is_no_schema_is_refused_with_its_column(text: str, column: str | None) -> None:
    with pytest.raises(Invalid) as error:
        parse_schema(text)
    assert error.value.fields.get("column") == column
