"""What `strandline ingest` says about text files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strandline.cli import app


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_LAKE", raising=False)
    call("init")


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_a_dry_run_shows_what_it_sees_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Sales\n\nid;day;price\n1;2024-01-31;1.5\n2;x\n3;2024-02-01;\n")
    said = call("ingest", "t", "a.csv", "--key", "id", "--dry-run")
    for part in ("delimiter semicolon", "2 lines before the table", "2024-01-31", "float64", "the line has 2 fields"):
        assert part in said
    assert "Would make the table t and load 1 file, 2 rows" in said
    assert json.loads(call("table", "list", "--json"))["tables"] == []
    report = json.loads(call("ingest", "t", "a.csv", "--key", "id", "--dry-run", "--json"))
    assert [each["type"] for each in report["preview"]["columns"]] == ["int64", "date", "float64"]
    assert (report["rows"], report["rejects"]) == (2, 1)


def test_what_was_found_out_is_told_and_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("Título\n\nid,name\n1,Müller\n".encode("latin-1"))
    said = call("ingest", "t", "a.csv", "--no-key")
    assert "read as latin-1" in said and "2 lines before the table" in said
    (tmp_path / "b.csv").write_text("1:NA\n-3:x\n")
    words = ("--delimiter", ":", "--no-header", "--null", "NA", "--types", "column_1:int32", "--encoding", "utf-8")
    call("ingest", "u", "b.csv", "--no-key", *words)
    rows = json.loads(call("query", "select * from u", "--json"))["rows"]
    assert rows == [{"column_1": 1, "column_2": None}, {"column_1": -3, "column_2": "x"}]
    error = json.loads(call("ingest", "v", "b.csv", "--no-key", "--delimiter", "::", "--json", code=1))["error"]
    assert error["kind"] == "Invalid" and "delimiter" in error["message"]


def test_a_column_without_a_name_is_shown_and_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,,name\n1,x,a\n")
    assert "(no name)     column_2" in call("ingest", "t", "a.csv", "--key", "id")
    call("ingest", "u", "a.csv", "--key", "id", "--skip", '""')
    assert [each["name"] for each in json.loads(call("table", "show", "u", "--json"))["columns"]] == ["id", "name"]


def test_values_that_a_json_file_made_null_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    call("ingest", "t", "a.jsonl", "--key", "id")
    said = call("ingest", "t", "b.jsonl")
    assert "2 values of the table are null now" in said and "name" in said and "--missing keep" in said


def test_a_line_that_was_asked_to_wait_is_not_called_growing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,a\n2,b")
    said = call("ingest", "t", "a.csv", "--key", "id", "--last-line", "wait")
    assert "it has no newline." in said and "--last-line load" in said and "growing" not in said


def test_a_copy_that_is_not_loaded_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,x\n")
    (tmp_path / "b.csv").write_text("id,v\n1,x\n")
    said = call("ingest", "t", "a.csv", "b.csv", "--no-key")
    assert "b.csv: same content as " in said and "--again" in said and "Loaded 1 row from 1 file" in said
    (tmp_path / "c.csv").write_text("id,v\n1,x\n")
    assert "c.csv: same content as loaded at seq 1" in call("ingest", "t", "c.csv")
    assert "same content" not in call("ingest", "t", "c.csv"), "by now its name is known"
    assert "same content" not in call("ingest", "t", "a.csv")


def test_rows_that_another_row_of_the_load_replaced_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,x\n1,y\n2,z\n")
    (tmp_path / "b.csv").write_text("id,v\n2,z\n2,q\n")
    said = call("ingest", "t", "a.csv", "b.csv", "--key", "id")
    assert "Loaded 5 rows from 2 files" in said
    assert "3 rows were replaced by other rows of this load with the same key" in said
    assert "strandline table show t" in said
    (tmp_path / "c.csv").write_text("id,v\n1,new\n")
    report = json.loads(call("ingest", "t", "c.csv", "--json"))
    assert (report["rows"], report["replaced"]) == (1, 0), "a row of an earlier load is replaced without a word"
    assert "replaced" not in call("ingest", "u", "a.csv", "--no-key")
