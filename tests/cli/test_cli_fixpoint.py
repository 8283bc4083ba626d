"""`strandline fixpoint …`, as a person sees it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app

PROGRAM = """
import strandline as sl
lake = sl.Lake("./lake")
sl.graph.connected_components(lake, "parts", edges="edges")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Calls the command line in a folder with a lake and the program of its fixed point."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    edges = sl.Lake("./lake").create_table("edges", "id:int64, src:int64, dst:int64", key=["id"], vnodes=2)
    edges.upsert([{"id": 1, "src": 1, "dst": 2}])

    def call(*words, code=0, stdin=None, program=True):
        more = ["--app", f"{name}:lake"] if program else []
        result = CliRunner().invoke(app, [*more, *words], input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return call


def test_a_fixed_point_from_its_declaration_to_its_end(run):
    assert "no fixed points" in run("fixpoint", "list", program=False)
    listed = run("fixpoint", "list")
    assert "parts" in listed and "never" in listed and "first run" in listed
    assert "first run" in run("plan") and "fixpoint/parts" in run("tick")
    assert "nothing to do" in run("fixpoint", "list") and "not declared here" in run("fixpoint", "list", program=False)
    shown = run("fixpoint", "show", "parts")
    assert "connected_components" in shown and "seq 1" in shown and "cold start, 1 round" in shown
    assert "all 2 rows are those of a cold start on edges at seq 1" in run("fixpoint", "verify", "parts")
    sl.Lake("./lake").table("parts").upsert([{"node": 2, "component": 2, "parent": None}])
    said = run("fixpoint", "verify", "parts", code=1)
    assert "1 row differ" in said and "node = 2" in said and "fixpoint rebuild parts" in said
    assert "computed anew" in run("fixpoint", "rebuild", "parts")
    assert json.loads(run("fixpoint", "verify", "parts", "--json"))["is_right"]
    run("fixpoint", "drop", "parts", stdin="n\n", code=1)
    assert "Dropped parts" in run("fixpoint", "drop", "parts", "--yes")


def test_what_cannot_be_done_is_said(run):
    run("tick")
    assert "--app" in run("fixpoint", "verify", "parts", code=1, program=False)
    assert "There are: parts" in run("fixpoint", "drop", "edges", "--yes", code=1)
