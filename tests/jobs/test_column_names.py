"""The rule from the names in a file to the names of columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.jobs.column_names import ColumnMatcher, find_columns, name_columns, new_map, snake_name
from strandline.model.definition import TableDef
from strandline.model.name_map import NameMap
from strandline.model.names import caseless_name, is_reserved
from support import refused


@pytest.mark.parametrize(
    ("source", "column"),
    [
        ("Order Date", "order_date"), ("orderDate", "order_date"), ("ORDER_DATE", "order_date"), ("a.b", "a_b"),
        ("_id", "_id"), ("_Id", "_id"), ("__v", "__v"), ("a__b", "a__b"), ("ID", "id"), ("OrderID", "order_id"),
        ("IDs", "ids"), ("HTTPServer", "http_server"), ("mp3File", "mp3_file"), ("Q1", "q1"), ("2019", "_2019"),
        ("Price ($)", "price"), ("e-mail", "e_mail"), (" x ", "x"), ("Größe", "größe"), ("Gro\u0308ße", "größe"),
        ("ЦенаТовара", "цена_товара"), ("中文 列", "中文_列"), ("हिन्दी", "हिन्दी"),
        ("", ""), ("  ", ""), ("#", ""), ("_", ""),
    ],
)  # fmt: skip
def test_snake_makes_plain_words(source, column):
    assert snake_name(source) == column
    assert snake_name(column) == column


def test_every_column_gets_a_name_of_its_own():
    sources = ["Order Date", "order_date", "a", "a", "a_2", "", "_seq", "C++", "C#", "ID", "id", " "]
    assert name_columns(sources) == [
        "order_date_2", "order_date", "a", "a_3", "a_2", "column_6", "_seq_2", "c", "c_2", "id_2", "id", "column_12",
    ]  # fmt: skip
    assert name_columns(sources, rule="keep") == [
        "Order Date", "order_date", "a", "a_3", "a_2", "column_6", "_seq_2", "C++", "C#", "ID", "id_2", "column_12",
    ]  # fmt: skip


@given(st.lists(st.text(max_size=8) | st.sampled_from(["a", "A", "a_2", "_op", "a b", "a-b"]), max_size=8))
def test_the_columns_of_any_names_are_good_and_stay(sources):
    for rule in ("snake", "keep"):
        columns = name_columns(sources, rule=rule)
        assert len({caseless_name(column) for column in columns}) == len(columns)
        assert all(columns) and not any(map(is_reserved, columns))
        if columns:
            TableDef.declare(pa.schema([(column, pa.int64()) for column in columns]))
        assert name_columns(sources, rule=rule) == columns
        known = new_map(sources, columns, rule)
        assert name_columns(sources, known=known, columns=columns) == columns


def test_a_later_file_goes_through_the_map_first():
    sources = ["Order Date", "order date", "a", "a"]
    columns = name_columns(sources)
    known = new_map(sources, columns, None)
    assert columns == ["order_date", "order_date_2", "a", "a_2"]

    def later(*names):
        return name_columns(names, known=known, columns=columns)

    assert later("order date") == ["order_date_2"]
    assert later("a", "a", "order date", "Order Date") == ["a", "a_2", "order_date_2", "order_date"]
    assert later("OrderDate", "A") == ["order_date", "a"]
    # The values of two names never meet in one column.
    assert later("Order Date", "order date", "order_date") == ["order_date", "order_date_2", "order_date_3"]
    assert later("a+") == ["a_3"]


def test_a_declared_table_takes_exact_names_then_case_then_the_rule():
    columns = ["id", "Total", "order_date", "price"]
    assert name_columns(["ID", "total", "Order Date", "Price ($)"], columns=columns) == columns
    assert name_columns(["Id", "id"], columns=columns) == ["id_2", "id"]
    assert name_columns(["Order Date"], columns=columns, rule="keep") == ["Order Date"]


def test_people_may_say_the_name_in_the_file():
    known = NameMap("snake", {"Order Date": ("order_date",)})
    assert find_columns(["Order Date", "ID", "order_date", "x"], ["order_date", "id"], known) == (
        "order_date", "id", "order_date", "x",
    )  # fmt: skip


def test_a_matcher_collects_new_names_and_refuses_those_without_a_column():
    definition = TableDef.declare(pa.schema([("id", pa.int64()), ("order_date", pa.string())]))
    matcher = ColumnMatcher(definition.with_names(new_map(["id", "Order Date"], ["id", "order_date"], None)))
    assert matcher.require(["ID", "order-date"], "f.csv") == ["id", "order_date"]
    assert matcher.known.columns == {"Order Date": ("order_date",), "ID": ("id",), "order-date": ("order_date",)}
    assert [(name.source, name.column) for name in matcher.renamed] == [("ID", "id"), ("order-date", "order_date")]
    with refused(sl.Invalid, column="Order Date?", file="f.csv") as caught:
        matcher.require(["Order Date?"], "f.csv", file="f.csv")
    assert "order_date_2" in caught.value.message and "Order Date" in caught.value.hint
    with refused(sl.Invalid, column="other") as caught:
        matcher.require(["other", "id", "two words"], "f.csv")
    assert "--skip 'other,two words'" in caught.value.hint and "add-column TABLE other:TYPE" in caught.value.hint


def test_a_rule_that_is_none_is_refused(lake, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with refused(sl.Invalid):
        lake.ingest("t", [str(tmp_path / "a.csv")], key=[], names="upper")


@pytest.mark.parametrize("rule", ["snake", "keep"])
def test_a_name_with_the_reserved_prefix_gets_one_without_it(rule: str) -> None:
    assert name_columns(["_sl_x", "sl_x", "_SL_y", "_sl_", "_seq"], rule=rule)[:2] == ["sl_x", "sl_x_2"]
