"""`strandline table add-column`, and the call in Python."""

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


@pytest.mark.parametrize("column", ["name:string", "NAME:string", "a b:string", "x:nothing", "x:string!"])
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
