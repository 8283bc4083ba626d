"""The shell completes verbs, and the names of tables and sinks."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app


def complete(words: str) -> list[str]:
    count = str(len(words.split(" ")) - 1)
    env = {"_STRANDLINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    return CliRunner(env=env).invoke(app, prog_name="strandline").output.split()


@pytest.fixture(autouse=True)
def _lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_LAKE", raising=False)
    lake = sl.Lake("lake")
    for name in ("orders", "items"):
        lake.create_table(name, "id:int64", key=["id"])
    sl.Lake("other").create_table("others", "id:int64", key=["id"])
    lake.add_sink(lake.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out"))))


def test_verbs_are_completed() -> None:
    assert complete("strandline stat") == ["status"]
    assert complete("strandline table sh") == ["show"]


def test_names_are_completed_from_the_lake_that_was_named() -> None:
    assert sorted(complete("strandline table show ")) == ["items", "orders"]
    assert complete("strandline --lake other table show o") == ["others"]
    assert complete("strandline sink show a") == ["archive"]
    assert complete("strandline backfill status a") == complete("strandline backfill rate a") == ["archive"]


def test_where_there_is_no_lake_nothing_is_completed_and_nothing_written(tmp_path: Path) -> None:
    assert complete("strandline --lake nowhere table show ") == []
    assert not (tmp_path / "nowhere").exists()


def test_completion_can_be_installed() -> None:
    assert "--install-completion" in CliRunner(env={"COLUMNS": "120"}).invoke(app, ["--help"]).output
