"""Keys as people type them."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.errors import Invalid
from support import by_id


def test_keys_of_one_column_are_values_in_its_type_each_once(items: sl.Table) -> None:
    assert items.parse_keys(["1", "2", "1"]).sort_by("id").to_pydict() == {"id": [1, 2]}
    assert items.parse_keys(["-5"]).column("id").to_pylist() == [-5]


def test_keys_of_several_columns_are_json_objects(lake: sl.Lake) -> None:
    table = lake.create_table("pairs", "a:int64, b:string", key=["a", "b"])
    assert table.parse_keys(['{"a": 1, "b": "x"}']).to_pylist() == [{"a": 1, "b": "x"}]
    for text, column in (("1", None), ('{"a": 1, "b": "x", "c": 2}', "c"), ('{"a": "one", "b": "x"}', "a")):
        with pytest.raises(Invalid) as error:
            table.parse_keys([text])
        assert (error.value.fields["key"], error.value.fields.get("column")) == (text, column)


def test_what_is_no_key_is_refused(items: sl.Table, lake: sl.Lake) -> None:
    for text in ("one", ""):
        with pytest.raises(Invalid) as error:
            items.parse_keys([text])
        assert error.value.fields["key"] == text
    with pytest.raises(Invalid):
        lake.create_table("log", "a:int64").parse_keys(["1"])


def test_a_plan_counts_the_keys_that_are_there(items: sl.Table) -> None:
    items.upsert([{"id": at, "name": "n"} for at in range(3)])
    keys = items.parse_keys(["1", "2", "7"])
    assert items.plan_purge(keys).to_dict() == {"table": "items", "keys": 3, "present": 2}
    report = items.purge(keys)
    assert report.vacuum_after.timestamp() >= items.log.storage.now_s() + items.definition.settings.grace - 60
    assert by_id(items).keys() == {0}
