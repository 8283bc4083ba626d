"""Before rows or history are given up, the command line says how much, and asks."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from test_cli import Run

import strandline as sl

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run()


@pytest.fixture
def visits(run: Run) -> Run:
    """A lake with a table of 20 rows, one for each of the last 20 days, in two commits."""
    run("init")
    words = ("--schema", "id:int64, at:timestamp", "--key", "id", "--vnodes", "1", "--time", "at")
    run("table", "create", "visits", *words)
    table = sl.Lake("lake").table("visits")
    for first in (0, 10):
        table.upsert([{"id": n, "at": NOW - dt.timedelta(days=n, hours=12)} for n in range(first, first + 10)])
    return run


def head() -> int:
    return sl.Lake("lake").table("visits").head


def test_a_retention_that_hides_rows_is_set_after_a_question_with_their_number(visits: Run) -> None:
    before = head()
    said = visits("table", "set", "visits", "retention=5d", code=1, stdin="n\n")
    assert "The next tick hides 15 of 20 rows of visits, whose at lies before" in said and "Aborted" in said
    error = visits.json("table", "set", "visits", "retention=5d", code=1)["error"]
    assert error["kind"] == "Invalid" and "--yes" in error["hint"]
    assert head() == before
    done = visits.json("table", "set", "visits", "retention=5d", "--yes")
    assert (done["changed"], done["expiring_rows"]) == (["retention"], 15)
    assert "visits: retention is 30d" in visits("table", "set", "visits", "retention=30d"), "no row is that old"


def test_tick_and_status_say_how_many_rows_are_hidden(visits: Run) -> None:
    visits("table", "set", "visits", "retention=5d", "--yes")
    table = visits.json("status")["tables"][0]
    assert (table["hidden_rows"], table["hidden_before"], table["expiring_rows"] > 10) == (0, None, True)
    assert "visits: the next tick hides about" in visits("status")
    assert "hid 15 rows from before" in visits("tick")
    found = visits.json("status")["tables"][0]
    assert (found["rows"], found["hidden_rows"], found["expiring_rows"]) == (5, 15, 0)
    assert "visits: 15 rows have expired and are hidden, from before" in visits("status")
    assert visits.json("table", "history", "visits")["commits"][-1]["rows"] == 15
    visits("table", "expire", "visits", "--before", (NOW - dt.timedelta(days=4)).isoformat(), "--yes")
    assert visits.json("status")["tables"][0]["hidden_rows"] == 16


def test_a_tick_reports_the_hidden_rows_as_json(visits: Run) -> None:
    visits("table", "set", "visits", "retention=5d", "--yes")
    (facts,) = [each["facts"] for each in visits.json("tick")["consumers"] if each["kind"] == "retention"]
    assert (facts["hidden_rows"], facts["is_hidden_exact"], facts["seq"]) == (15, True, head())


def test_an_expiry_counts_first_and_asks(visits: Run) -> None:
    before = head()
    day = (NOW - dt.timedelta(days=10)).isoformat()
    question = "Hide 10 of 20 rows of visits, whose at lies before"
    assert question in visits("table", "expire", "visits", "--before", day, code=1, stdin="n\n")
    visits("table", "set", "visits", "retention=10d", "--yes")
    before = head()
    assert question in visits("table", "expire", "visits", code=1, stdin="n\n")
    assert visits.json("table", "expire", "visits", code=1)["error"]["kind"] == "Invalid"
    assert head() == before
    done = visits.json("table", "expire", "visits", "--yes")
    assert (done["hidden_rows"], done["total"], done["is_exact"]) == (10, 20, True)
    assert "nothing was written" in visits("table", "expire", "visits"), "nothing is hidden, so nothing is asked"


def test_a_row_that_was_changed_counts_once(visits: Run) -> None:
    sl.Lake("lake").table("visits").upsert([{"id": 19, "at": NOW - dt.timedelta(days=18)}])
    said = visits("table", "set", "visits", "retention=5d", code=1, stdin="n\n")
    assert "hides 15 of 20 rows" in said


def test_a_vacuum_asks_before_it_gives_up_what_the_settings_keep(visits: Run) -> None:
    visits("compact", "--all")
    visits("vacuum", "--keep", "7d", "--grace", "2h")
    said = visits("vacuum", "--keep", "0s", code=1, stdin="n\n")
    assert "visits: seqs 0 to 1 (from " in said and "can no longer be read" in said and "Aborted" in said
    assert visits.json("vacuum", "--keep", "0s", code=1)["error"]["kind"] == "Invalid"
    assert visits.json("status")["tables"][0]["oldest_seq"] == 0
    plan = visits.json("vacuum", "--keep", "0s", "--dry-run")["tables"][0]
    assert plan["given_up"] == [0, 1]
    assert visits.json("vacuum", "--keep", "0s", "--yes")["tables"][0]["given_up"] == [0, 1]
    said = visits("vacuum", "--keep", "0s", "--grace", "0s", code=1, stdin="n\n")
    assert "go at once; reads that began in the last 1h may fail" in said
    visits("vacuum", "--keep", "0s", "--grace", "0s", stdin="y\n")
    visits("vacuum", "--keep", "0s", "--grace", "0s")


def test_a_vacuum_asks_before_a_dropped_table_is_gone(visits: Run) -> None:
    visits("table", "drop", "visits", "--yes")
    said = visits("vacuum", "--grace", "0s", code=1, stdin="n\n")
    assert "visits: the dropped table can no longer be brought back." in said
    assert "visits: deleted" in visits("vacuum", "--grace", "0s", "--yes")


def test_a_program_that_sets_a_retention_is_warned(visits: Run, caplog: pytest.LogCaptureFixture) -> None:
    table = sl.Lake("lake").table("visits")
    plan = table.plan_expiry(retention="5d")
    assert (plan.rows, plan.total, plan.is_exact) == (15, 20, True)
    table.configure(retention="30d")
    assert caplog.text == ""
    table.plan_expiry(retention="4d")
    table.configure(retention="4d")
    assert caplog.text == "", "who has asked is not told again"
    table.configure(retention="5d")
    assert "the next tick hides about" in caplog.text
    assert table.plan_expiry().rows == 15


def test_a_drop_names_rows_and_sinks_and_the_table_comes_back(visits: Run) -> None:
    visits("sink", "add", "archive", "visits", "--to", "out")
    visits("tick")
    said = visits("table", "drop", "visits", code=1, stdin="n\n")
    assert "Drop the table visits (20 rows)? Its sinks will send nothing more: archive." in said
    assert visits.json("table", "drop", "visits", code=1)["error"]["kind"] == "Invalid"
    assert visits("table", "undrop") == "No dropped table can be brought back.\n"
    said = visits("table", "drop", "visits", "--yes")
    assert "Dropped visits (20 rows)." in said and "strandline table undrop visits" in said
    (found,) = visits.json("table", "undrop")["dropped"]
    assert (found["table"], found["rows"]) == ("visits", 20)
    assert found["generation"] in visits("table", "undrop")
    said = visits("table", "undrop", "visits", "--as", "again")
    assert "visits is back as again: 20 rows" in said and "Its sinks go on with the next tick: archive" in said
    done = visits.json("table", "drop", "again", "--yes")
    assert (done["rows"], done["sinks"], done["dropped"]) == (20, ["archive"], True)
    assert visits.json("table", "undrop", "again")["rows"] == 20
    assert visits.json("table", "undrop", "nothing", code=1)["error"]["kind"] == "NotFound"
    visits("table", "undrop", "--as", "x", code=2)


def test_a_sink_of_a_renamed_and_dropped_table_names_the_table_to_bring_back(visits: Run) -> None:
    visits("sink", "add", "archive", "visits", "--to", "out")
    visits("tick")
    visits("table", "rename", "visits", "stays")
    visits("table", "drop", "stays", "--yes")
    said = visits("tick", "archive", code=1)
    assert "the table 'stays' of sink 'archive' was dropped" in said
    assert "strandline table undrop stays" in said
    visits("table", "undrop", "stays")
    visits("tick", "archive")
