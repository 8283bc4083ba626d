"""The verbs about refused rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app


class Verbs:
    """Calls the command line for one lake, in this process."""

    def __init__(self, lake: sl.Lake) -> None:
        self.lake = lake

    def __call__(self, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--lake", self.lake.storage.uri, *words])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def kept(lake: sl.Lake, tmp_path: Path) -> Verbs:
    lake.create_table("items", "id:int64!, v:int64", key=["id"])
    (tmp_path / "a.jsonl").write_text('{"id": 1, "v": 1}\n{"id": 2, "more": 5}\n{"id": "x"}\n')
    verbs = Verbs(lake)
    verbs("ingest", "items", str(tmp_path / "a.jsonl"), "--rejects")
    return verbs


def test_refused_rows_are_listed_by_file_and_reason(kept: Verbs) -> None:
    listed = kept.json("rejects", "list")
    assert (listed["count"], [group["column"] for group in listed["groups"]]) == (2, ["more", "id"])
    said = kept("rejects", "list", "items")
    assert "a.jsonl" in said and "rejects retry items" in said


def test_a_table_after_rejects_is_shown(kept: Verbs) -> None:
    assert kept.json("rejects", "items") == kept.json("rejects", "show", "items")
    assert kept.json("rejects", "show", "items", "--file", "other.jsonl")["rejects"] == []
    assert len(kept.json("rejects", "show", "items", "--file", "a.jsonl")["rejects"]) == 2


def test_a_file_without_refused_rows_is_named(kept: Verbs) -> None:
    for verb in ("show", "retry", "drop"):
        said = kept("rejects", verb, "items", "--file", "other.jsonl")
        assert "No row of items was refused in a file other.jsonl" in said
    assert "No row" not in kept("rejects", "show", "items", "--limit", "0")


def test_refused_rows_are_loaded_once_they_fit(kept: Verbs) -> None:
    kept("table", "add-column", "items", "more:int64")
    report = kept.json("rejects", "retry", "items")
    assert (report["rows"], report["kept"]) == (1, 1)
    assert "still refused" in kept("rejects", "retry", "items")


def test_a_retry_that_replaces_rows_asks(kept: Verbs) -> None:
    kept.lake.table("items").upsert([{"id": 2, "v": 7}])
    kept("table", "add-column", "items", "more:int64")
    assert "--yes" in kept.json("rejects", "retry", "items", code=1)["error"]["message"]
    assert kept.json("rejects", "retry", "items", "--yes")["rows"] == 1


def test_refused_rows_are_dropped_when_told(kept: Verbs) -> None:
    assert "--yes" in kept.json("rejects", "drop", "items", code=1)["error"]["message"]
    assert kept.json("rejects", "drop", "items", "--yes")["dropped"] == 2
    assert "No row was refused" in kept("rejects", "list")
    assert "No row of items was refused" in kept("rejects", "drop", "items"), "nothing to drop, nothing to ask"
