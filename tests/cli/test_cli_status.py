"""`status` fits a window of 80 columns and ends with a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from strandline.cli.answer import cut_middle

LONG = "a_table_with_a_name_that_is_much_longer_than_people_like_to_read_in_a_window"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sl.Lake:
    monkeypatch.chdir(tmp_path)
    lake = sl.Lake("lake")
    lake.create_table(LONG, "id:int64, name:string", key=["id"]).upsert([{"id": 1, "name": "a"}])
    return lake


def status(*words: str, code: int = 0, columns: str = "80") -> list[str]:
    done = CliRunner(env={"COLUMNS": columns}).invoke(app, ["status", *words])
    assert done.exit_code == code, done.output
    return done.output.splitlines()


def test_every_line_fits_80_columns_and_long_names_are_cut_in_the_middle(lake: sl.Lake, tmp_path: Path) -> None:
    lake.sink("archive", LONG, to=sl.ParquetSink(str(tmp_path / "a_folder" / "with" / "a_very_long_path" / "to_it")))
    lake.tick()
    lines = status()
    assert max(map(len, lines[1:])) <= 80
    assert any("a_table_w" in line and "…" in line for line in lines)
    assert lines[-1] == "All is well."
    assert any(LONG in line for line in status(columns="0")), "a pipe has no width"


def test_the_verdict_names_what_needs_attention_with_the_command(lake: sl.Lake, tmp_path: Path) -> None:
    lake.sink("archive", LONG, to=sl.ParquetSink(str(tmp_path / "out")))
    lake.tick()
    (tmp_path / "out").rename(tmp_path / "gone")
    (tmp_path / "out").touch()
    lake.table(LONG).upsert([{"id": 2, "name": "b"}])
    assert not lake.tick().is_well
    lines = status(code=1)
    assert "1 thing needs attention:" in lines
    assert lines[-1] == "    strandline tick archive"
    (found,) = lake.status().attention
    assert (found.cause, found.consumer, found.command) == ("failed", "archive", "tick archive")


@pytest.mark.parametrize(
    ("text", "most", "found"), [("short", 8, "short"), ("abcdefghij", 5, "ab…ij"), ("abc", 2, "a…")]
)
def test_a_text_is_cut_in_its_middle(text: str, most: int, found: str) -> None:
    assert cut_middle(text, most) == found
