"""`strandline backfill …`, and what other verbs say of a history, as a person and a program see them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from pipelines import delivered, rows
from strandline.cli import app
from strandline.consumers import ranges
from strandline.engines.choice import DriverLimit
from support import BIN, environment

ROWS = 400
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, lake: sl.Lake, items: sl.Table, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command line for a lake with a table and a sink that sends its history at ten rows a second."""
    monkeypatch.setattr(ranges, "SMALL", DriverLimit(10, 1 << 20))

    def call(*words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, ["--lake", lake.storage.uri, *words], input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    items.upsert(rows(*range(ROWS)))
    call("sink", "add", "out", "items", "--to", str(tmp_path / "out"), "--rate", "10", "--rate-bytes", "1GB")
    return call


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out"


def document(text: str) -> Any:
    return json.loads(text)


def begin(lake: sl.Lake, least: int = 1) -> None:
    """Send the first round, then pause."""
    lake.tick(only=["out"], progress=lambda done, *_: done >= least and lake.backfill("out").pause()).raise_for_errors()


def test_a_rate_is_kept_before_the_first_tick(run, lake):
    assert lake.state.rates.get("out").rows_per_s == 10 and lake.state.rates.get("out").bytes_per_s == 10**9
    shown = run("plan")
    assert "history in rounds" in shown and str(ROWS) in shown
    (work,) = document(run("tick", "out", "--dry-run", "--json"))["consumers"][0]["works"]
    assert (work["source"], work["rows"]) == ("round", ROWS)


def test_a_paused_history_is_said_everywhere_and_is_no_error(run, lake, place):
    begin(lake)
    sent = len(delivered(place))
    assert 0 < sent < ROWS
    said = run("backfill", "pause", "out")
    assert "paused already at" in said and "still sent" in said and "backfill resume out" in said
    for words in (
        ["status"],
        ["sink", "list"],
        ["mark", "show"],
        ["backfill", "status"],
        ["backfill", "status", "out"],
    ):
        assert "paused" in run(*words), words
    assert "All is well" in run("status")
    assert "history is paused" in run("plan") and "up to date" not in run("plan")
    assert "backfill resume out" in run("tick") and "up to date" not in run("tick")
    (consumer,) = [each for each in document(run("status", "--json"))["consumers"] if each["name"] == "out"]
    history = consumer["backfill"]
    assert (history["condition"], history["rows"], history["rate"]["is_stopped"]) == ("paused", sent, True)
    assert document(run("status", "--json"))["attention"] == []
    lake.table("items").upsert(rows(*range(ROWS), name="m"))
    assert f"{sent} rows" in run("tick", "out")
    assert len({row["id"] for row in delivered(place)}) == sent


def test_a_history_goes_on_and_ends(run, lake, place):
    begin(lake)
    assert "tick out" in run("backfill", "resume", "out")
    assert "rest of its history" in run("plan") and "waits for a tick" in run("status")
    assert "without a limit" in run("backfill", "rate", "out", "none")
    assert "history of items" in (told := run("tick", "out")) and "round" in told
    assert re.search(r"\bok\b", run("status"))
    assert "history delivered" in run("backfill", "status", "out") and "100.0 %" in run("backfill", "status")
    assert len({row["id"] for row in delivered(place)}) == ROWS


def test_status_lists_the_histories(run, lake):
    one, many = (document(run("backfill", "status", *words, "--json"))["backfills"] for words in (["out"], []))
    assert [each["consumer"] for each in one] == [each["consumer"] for each in many] == ["out"]
    assert (one[0]["condition"], one[0]["rows_left"], one[0]["percent"]) == ("waiting", ROWS, 0.0)
    assert f"about {ROWS} left" in run("backfill", "status", "out")
    run("sink", "add", "later", "items", "--to", "later", "--start", "head")
    assert "no history" in run("backfill", "status", "later") and "later" not in run("backfill", "status")
    run("sink", "remove", "out", "--yes")
    assert "No sink" in run("backfill", "status")
    assert document(run("backfill", "status", "nothing", "--json", code=1))["error"]["kind"] == "NotFound"


def test_rates_are_texts_a_person_would_write(run, lake):
    assert "at most 2,500 rows/s and 10.0 MB/s" in run("backfill", "rate", "out", "2,500", "--bytes", "10MB")
    assert document(run("backfill", "rate", "out", "--bytes", "1.5kB", "--json"))["rate"] == {
        "rows_per_s": None, "bytes_per_s": 1500.0, "is_stopped": False,
    }  # fmt: skip
    assert "is paused" in run("backfill", "rate", "out", "0")
    for words in ([], ["fast"], ["--bytes", "10 miles"]):
        run("backfill", "rate", "out", *words, code=2)
    assert document(run("backfill", "rate", "out", "--json", "--", "-1", code=1))["error"]["kind"] == "Invalid"
    run("sink", "add", "out", "items", "--to", "x", "--rate", "much", code=2)


def test_restart_asks_and_says_what_is_sent_again(run, lake, place):
    begin(lake)
    will = run("backfill", "restart", "out", "--dry-run")
    assert f"{ROWS} rows" in will and "Nothing was written" in will
    run("backfill", "restart", "out", stdin="n\n", code=1)
    assert document(run("backfill", "restart", "out", "--json", code=1))["error"]["kind"] == "Invalid"
    said = run("backfill", "restart", "out", "--yes")
    assert "generation 2" in said and "stays paused" in said
    assert document(run("backfill", "status", "--json"))["backfills"][0]["percent"] == 0.0


def test_watch_prints_a_line_for_each_change_until_all_is_delivered(run, lake, monkeypatch):
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        lake.backfill("out").rate(None)
        lake.tick(only=["out"])

    monkeypatch.setattr("strandline.cli.backfill.time", SimpleNamespace(sleep=look))
    lines = run("backfill", "status", "--watch").splitlines()
    assert lines[0].startswith("out: history 0.0 %") and "delivered" in lines[1] and looks == 1
    run("backfill", "restart", "out", "--yes")
    documents = [json.loads(line) for line in run("backfill", "status", "out", "--watch", "--json").splitlines()]
    assert [each["condition"] for each in documents] == ["waiting", "done"]


def test_watch_draws_a_bar_in_a_terminal(run, lake, tmp_path):
    lake.backfill("out").rate(None)
    lake.tick(only=["out"])
    command = f"{BIN}/strandline --lake {lake.storage.uri} backfill status out --watch"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], env=environment(COLUMNS="100"), capture_output=True, text=True
    )
    assert done.returncode == 0 and "━" in done.stdout and "history delivered" in done.stdout


def test_another_process_pauses_a_tick_that_is_killed_later_and_goes_on(run, lake, items, place):
    """A tick of its own process: it is slowed down, paused, and killed; the next one goes on."""

    def tick() -> subprocess.Popen[str]:
        return subprocess.Popen([BIN / "strandline", "--lake", lake.storage.uri, "tick", "out"], env=environment())

    def wait_for(is_met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            (now,) = document(run("backfill", "status", "out", "--json"))["backfills"]
            assert percents == sorted([*percents, now["percent"]])[: len(percents)]
            percents.append(now["percent"])
            if is_met(now):
                return now
            time.sleep(0.1)

    percents: list[float] = [0.0]
    begin(lake)
    run("backfill", "resume", "out")
    # The subprocess has the usual limits, but the history has begun, so that it goes on in rounds.
    with tick() as first:
        now = wait_for(lambda now: now["condition"] == "running" and now["owner"] is not None)
        run("backfill", "rate", "out", "20")
        wait_for(lambda later: later["rows"] > now["rows"])
        run("backfill", "pause", "out")
        assert first.wait(30) == 0
    paused = wait_for(lambda now: now["condition"] == "paused")
    assert 0 < paused["rows"] < ROWS
    items.upsert([{"id": 0, "name": "new"}])
    run("tick", "out")
    assert "new" in {row["name"] for row in delivered(place)}
    run("backfill", "resume", "out")
    with tick() as second:
        wait_for(lambda later: later["rows"] > paused["rows"])
        os.kill(second.pid, signal.SIGKILL)
        assert second.wait(30) == -signal.SIGKILL
    run("backfill", "rate", "out", "none")
    run("tick", "out")
    assert wait_for(lambda now: now["condition"] == "done")["percent"] == 100.0
    assert len({row["id"] for row in delivered(place)}) == ROWS
