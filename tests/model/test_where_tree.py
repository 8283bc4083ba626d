"""A condition as a tree: its columns, its text for each engine, and the bounds by which files are skipped."""

from __future__ import annotations

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model.where_tree import parse_tree
from support import refused

SCHEMA = pa.schema([("id", pa.int64()), ("Name", pa.string()), ("day", pa.date32()), ("x", pa.float64())])


def bounds(text: str) -> list[tuple[str, str, object]]:
    return [(each.column, each.op, each.value) for each in parse_tree(text, SCHEMA).bounds]


def test_columns_are_found_whatever_their_case_and_quoted() -> None:
    found = parse_tree("NAME = 'a' AND id > 3", SCHEMA)
    assert found.columns == {"Name", "id"}
    assert '"Name"' in found.duckdb and "`Name`" in found.spark


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 3", [("id", "=", 3)]),
        ("3 < id", [("id", ">", 3)]),
        ("id >= -2 AND Name <= 'k'", [("id", ">=", -2), ("Name", "<=", "k")]),
        ("id BETWEEN 1 AND 9", [("id", ">=", 1), ("id", "<=", 9)]),
        ("(id > 1 AND (id < 5))", [("id", ">", 1), ("id", "<", 5)]),
        ("day = DATE '2026-01-31'", [("day", "=", "2026-01-31")]),
    ],
)
def test_what_every_row_must_satisfy_is_a_bound(text: str, expected: list[tuple[str, str, object]]) -> None:
    assert bounds(text) == expected


@pytest.mark.parametrize("text", ["id > 1 OR id < -1", "NOT id = 3", "id = id", "x > 1.5"])
def test_what_is_not_sure_skips_nothing(text: str) -> None:
    assert bounds(text) == []


@pytest.mark.parametrize(("text", "fields"), [("nope = 1", {"column": "nope"}), ("id = 1; id = 2", {}), ("id =", {})])
def test_what_is_no_condition_of_the_table_is_refused(text: str, fields: dict[str, str]) -> None:
    with refused(sl.Invalid, **fields):
        parse_tree(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id = ", "something is missing after '=', before character 5"),
        ("case when", "something is missing after 'when', before character 10"),
        ("id = 3 4", "it cannot have '4' at character 8"),
        ("Name = 'a", "a quote or a bracket is not closed"),
    ],
)
def test_a_text_that_is_no_expression_is_explained_in_plain_words(text: str, why: str) -> None:
    with pytest.raises(sl.Invalid) as caught:
        parse_tree(text, SCHEMA)
    assert caught.value.message == f"where {text!r} is not an SQL expression: {why}"


def test_a_text_with_signs_that_settings_change_is_spelled_out_for_spark() -> None:
    found = parse_tree(r"Name = 'a\b$c'", SCHEMA)
    assert "$" not in found.spark and "'a\\b$c'" in found.duckdb
