"""Names in files and names of columns, on the command line."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from strandline.cli import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_LAKE", raising=False)

    def call(*words):
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    call("init", "lake")
    return call


def test_ingest_and_show_tell_the_names_that_changed(run, tmp_path):
    (tmp_path / "a.csv").write_text("Order Date,n\n2024-01-31,1\n")
    said = run("ingest", "t", "a.csv", "--key", "Order Date")
    assert "Order Date" in said and "order_date" in said
    found = json.loads(run("table", "show", "t", "--json"))
    assert found["names"] == [{"source": "Order Date", "column": "order_date"}]
    assert "NAME IN FILE" in run("table", "show", "t")
    (tmp_path / "b.csv").write_text("order_date,n\n2024-02-01,2\n")
    assert json.loads(run("ingest", "t", "b.csv", "--json"))["names"] == []


def test_import_takes_the_rule(run, tmp_path):
    pq.write_table(pa.table({"OrderId": [1]}), tmp_path / "a.parquet")
    found = json.loads(run("table", "import", "one", "a.parquet", "--key", "OrderId", "--json"))
    assert found["names"] == [{"source": "OrderId", "column": "order_id"}]
    assert json.loads(run("table", "import", "two", "a.parquet", "--names", "keep", "--json"))["names"] == []
