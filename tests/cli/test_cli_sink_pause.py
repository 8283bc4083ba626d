"""`strandline sink pause`, `resume` and `remove`, as a person and a program see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app


@pytest.fixture
def run(tmp_path: Path, lake: sl.Lake, items: sl.Table):
    """Calls the command line for a lake with a sink that is up to date, but for one row."""

    def call(*words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, ["--lake", lake.storage.uri, *words], input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    items.upsert([{"id": 1}])
    call("sink", "add", "out", "items", "--to", str(tmp_path / "out"))
    call("tick")
    items.upsert([{"id": 2}])
    return call


def as_json(text: str) -> Any:
    return json.loads(text)


def test_a_paused_sink_is_shown_as_paused_everywhere_and_is_no_error(run):
    said = run("sink", "pause", "out")
    assert "is paused" in said and "log is kept" in said and "sink resume out" in said
    assert "paused" in run("plan") and "paused" in run("status") and "paused" in run("sink", "list")
    assert "paused" in run("sink", "show", "out") and "sink resume out" in run("tick")
    assert as_json(run("tick", "out", "--json"))["paused"] == ["out"]
    assert as_json(run("status", "--json"))["consumers"][0]["is_paused"] is True
    assert "already" in run("sink", "pause", "out")
    assert "goes on" in run("sink", "resume", "out") and "was not paused" in run("sink", "resume", "out")
    assert as_json(run("tick", "--json"))["consumers"][0]["rows"] == 1


def test_removing_asks_and_says_what_goes(run, lake):
    will = run("sink", "remove", "out", "--dry-run")
    assert "1 row" in will and "marks" in will and "Nothing was written" in will
    run("sink", "remove", "out", stdin="n\n", code=1)
    assert as_json(run("sink", "remove", "out", "--json", code=1))["error"]["kind"] == "Invalid"
    assert lake.status().sinks
    assert "removed" in run("sink", "remove", "out", "--yes")
    assert not lake.status().sinks
    assert "no sink" in run("sink", "remove", "out", "--yes", code=1)
