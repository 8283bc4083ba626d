"""The map from names in files to columns, which is kept with a table."""

from __future__ import annotations

from strandline.model.name_map import NameMap, RenamedColumn


def test_only_names_that_are_not_those_of_their_columns_are_kept():
    names = NameMap("snake").add(["Order Date", "id", "a", "a", ""], ["order_date", "id", "a", "a_2", "column_5"])
    assert names.columns == {"Order Date": ("order_date",), "a": ("a", "a_2")}
    assert names.renamed == [RenamedColumn("Order Date", "order_date"), RenamedColumn("a", "a_2")]
    assert NameMap.from_dict(names.to_dict()) == names


def test_a_known_name_keeps_its_columns():
    names = NameMap("snake", {"a": ("a", "a_2")})
    assert names.add(["a"], ["a"]) == names
    assert names.add(["a", "a", "a"], ["a", "a_2", "a_3"]).columns == {"a": ("a", "a_2", "a_3")}
    assert names.union(NameMap("keep", {"a": ("x",), "b": ("c",)})) == NameMap(
        "snake", {"a": ("a", "a_2"), "b": ("c",)}
    )


def test_a_column_without_a_name_in_the_map_has_its_own_name_in_files():
    assert NameMap("snake", {"A b": ("a_b",)}).sources_of("a_b") == ["A b"]
    assert NameMap("snake").sources_of("id") == ["id"]
    assert NameMap().sources_of("id") == []
    assert (NameMap("snake", {"A b": ("a_b",)}).column_of("A b"), NameMap().column_of("A b")) == ("a_b", None)
