"""`strandline table add-column` and `rename-column`, and the calls in Python."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app


def run(lake: sl.Lake, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["--lake", lake.storage.uri, "table", *words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_a_column_is_added_and_old_rows_are_null_there(lake, items):
    items.upsert([{"id": 1, "name": "a"}])
    assert "price" in run(lake, "add-column", "items", "price:decimal(10,2)")
    items.upsert([{"id": 2, "name": "b", "qty": 1, "price": None}])
    assert items.schema.field("price").type == pa.decimal128(10, 2)
    assert items.to_arrow(where="price is null").num_rows == 2
    assert items.add_column("tags", pa.list_(pa.string())).names[-1] == "tags"
    assert items.add_column("doc", "json").names[-1] == "doc"


@pytest.mark.parametrize("column", ["name:string", "NAME:string", "_seq:string", "x:nothing", "x:string!"])
def test_a_column_that_cannot_be_added_is_refused(lake, items, column):
    found = json.loads(run(lake, "add-column", "items", column, "--json", code=1))
    assert found["error"]["kind"] == "Invalid"
    assert items.schema.names == ["id", "name", "qty"]


def test_a_column_without_a_type_is_a_usage_error(lake, items):
    run(lake, "add-column", "items", "price", code=2)


def test_a_dropped_name_is_not_used_again(lake, items):
    items.drop_column("qty")
    with pytest.raises(sl.Invalid):
        items.add_column("qty", "int64")


def test_a_column_is_renamed_without_a_question_when_no_sink_names_it(lake, items):
    items.upsert([{"id": 1, "name": "a", "qty": 1}])
    assert "Would rename" in run(lake, "rename-column", "items", "name", "title", "--dry-run")
    assert items.schema.names == ["id", "name", "qty"]
    assert "it has id, title, qty" in run(lake, "rename-column", "items", "name", "title")
    assert items.to_arrow().to_pylist() == [{"id": 1, "title": "a", "qty": 1}]
    told = json.loads(run(lake, "rename-column", "items", "title", "name", "--json"))
    assert (told["was"], told["renamed"], told["columns"]) == ("title", "name", ["id", "name", "qty"])


@pytest.mark.parametrize(
    ("old", "new", "kind"), [("id", "key", "Invalid"), ("name", "qty", "Invalid"), ("x", "y", "NotFound")]
)
def test_a_column_that_cannot_be_renamed_is_named(lake, items, old, new, kind):
    error = json.loads(run(lake, "rename-column", "items", old, new, "--json", code=1))["error"]
    assert error["kind"] == kind
    assert items.schema.names == ["id", "name", "qty"]


def test_a_rename_that_stops_sinks_names_them_and_asks(lake, items, tmp_path):
    lake.add_sink(lake.sink("some", "items", to=sl.ParquetSink(tmp_path / "out"), columns=["name"]))
    error = json.loads(run(lake, "rename-column", "items", "name", "title", "--json", code=1))["error"]
    assert error["kind"] == "Invalid" and items.schema.names == ["id", "name", "qty"]
    told = run(lake, "rename-column", "items", "name", "title", "--yes")
    assert "until they are changed: some." in " ".join(told.split()) and "sink add some items" in told
    assert items.schema.names == ["id", "title", "qty"]
