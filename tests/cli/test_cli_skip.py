"""`--skip` leaves columns out, in `ingest` and in `table import`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from strandline.cli import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "lake"))
    assert CliRunner().invoke(app, ["init"]).exit_code == 0
    (tmp_path / "data" / "year=2024").mkdir(parents=True)
    rows = pa.table({"id": [1], "Order Date": ["x"], "odd": pa.array([1], pa.time64("ns"))})
    pq.write_table(rows, tmp_path / "data" / "year=2024" / "a.parquet")
    return tmp_path


def _run(*words: str) -> dict[str, Any]:
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


@pytest.mark.parametrize("verb", ["ingest t data --key id", "table import t data --key id"])
def test_columns_are_left_out_by_the_names_in_the_files(folder: Path, verb: str) -> None:
    _run(*verb.split(), "--skip", "Order Date,odd")
    shown = _run("table", "show", "t")
    assert [column["name"] for column in shown["columns"]] == ["id", "year"]


@pytest.mark.parametrize("verb", ["ingest t data --key id", "table import t data --key id"])
def test_a_column_to_skip_that_is_not_there_is_named(folder: Path, verb: str) -> None:
    found = CliRunner().invoke(app, [*verb.split(), "--skip", "nope"])
    assert found.exit_code == 1
    assert "nope" in found.output and "Order Date" in found.output


def test_the_columns_that_a_table_lacks_are_named_as_they_are_typed(folder: Path) -> None:
    (folder / "first.csv").write_text("id\n1\n")
    (folder / "odd.csv").write_text('id,"a, b",,it\'s,x:y\n2,,,,\n')
    _run("ingest", "t", "first.csv", "--key", "id")
    refused = CliRunner().invoke(app, ["ingest", "t", "odd.csv", "--json"])
    hint = json.loads(refused.stdout)["error"]["hint"]
    skip = next(line for line in hint.splitlines() if line.startswith("Leave out: ")).removeprefix("Leave out: ")
    assert _run("ingest", "t", "odd.csv", *shlex.split(skip.partition(". Or add")[0]))["rows"] == 1
