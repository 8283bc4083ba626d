"""Mirrors on the command line: which mode a sink gets, and where it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from test_cli import Run

import strandline as sl
from support import ITEMS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    lake = sl.Lake("lake")
    lake.create_table("items", ITEMS, key=["id"], vnodes=2).upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    monkeypatch.setenv("STRANDLINE_LAKE", "lake")
    return Run()


def test_a_new_delta_sink_is_a_mirror_and_show_says_so(run: Run) -> None:
    run("sink", "add", "copy", "items", "--kind", "delta", "--to", "there")
    run("tick")
    assert DeltaTable("there").to_pyarrow_table().column_names == ITEMS.names
    assert "mirror: the rows of the table" in run("sink", "show", "copy")
    assert json.loads(run("--json", "sink", "show", "copy"))["definition"]["to"]["mode"] == "mirror"


def test_changes_are_asked_for_and_another_mode_is_a_new_life(run: Run) -> None:
    run("sink", "add", "log", "items", "--kind", "delta", "--to", "there", "--mode", "changes")
    run("tick")
    assert DeltaTable("there").to_pyarrow_table().column_names == ["_op", "_seq", *ITEMS.names]
    assert "every change" in run("sink", "show", "log")
    assert "is unchanged" in run("sink", "add", "log", "items", "--kind", "delta", "--to", "there")
    assert "new generation" in run(
        "sink", "add", "log", "items", "--kind", "delta", "--to", "here", "--mode", "mirror", "--yes"
    )


def test_a_mirror_is_refused_where_it_cannot_be_one(run: Run) -> None:
    run("sink", "add", "files", "items", "--to", "there", "--mode", "mirror", code=2)
    run("sink", "add", "late", "items", "--kind", "delta", "--to", "x", "--mode", "mirror", "--start", "head", code=1)
    run("sink", "add", "late", "items", "--kind", "delta", "--to", "x", "--start", "head")
    assert "every change" in run("sink", "show", "late")


def test_a_purge_says_what_is_left_where_sinks_sent_the_rows(run: Run) -> None:
    run("sink", "add", "copy", "items", "--kind", "delta", "--to", "there")
    run("sink", "add", "log", "items", "--to", "files")
    run("tick")
    said = " ".join(run("table", "purge", "items", "1", "--yes").split())
    assert "(mirror) with the next tick" in said and "what it sent there before stays" in said
    run("tick")
    assert DeltaTable("there").to_pyarrow_table()["id"].to_pylist() == [2]
