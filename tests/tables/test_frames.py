"""Rows as frames: the same values, whatever the library."""

import sys

import pytest

import strandline as sl

BIG = 2**60 + 1


@pytest.fixture
def mixed(lake: sl.Lake) -> sl.Table:
    table = lake.create_table("mixed", "id:int64, n:int64, doc:json, at:timestamp", key=["id"])
    table.upsert([{"id": 1, "n": BIG, "doc": {"a": [1]}}, {"id": 2}])
    return table


def test_a_pandas_frame_keeps_large_integers_beside_nulls(mixed):
    frame = mixed.to_pandas().set_index("id")
    assert frame.loc[1, "n"] == BIG
    assert frame["n"].isna().tolist().count(True) == 1
    assert frame.loc[1, "doc"] == '{"a": [1]}'
    assert len(mixed.to_pandas(where="id = 2", columns=["id"])) == 1


def test_a_frame_can_be_written_back(mixed):
    mixed.upsert(mixed.to_pandas())
    mixed.upsert(mixed.to_polars())
    assert mixed.count("n = 1152921504606846977") == 1
    assert mixed.count() == 2


def test_a_polars_frame_has_json_as_text(mixed):
    frame = mixed.to_polars(columns=["id", "n", "doc"]).sort("id")
    assert frame.rows() == [(1, BIG, '{"a": [1]}'), (2, None, None)]


def test_without_polars_the_error_says_what_to_install(mixed, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(sl.Unavailable) as failed:
        mixed.to_polars()
    assert "pip install polars" in str(failed.value.hint)
