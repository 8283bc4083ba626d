"""The history of a large table: how far it is, and how a person slows it down, pauses it and starts it again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.consumers import ranges, rounds
from strandline.engines.choice import DriverLimit
from strandline.pipeline import runner
from strandline.pipeline.backfill import BackfillStatus
from strandline.sinks.parquet import ParquetSink
from support import environment, refused, trim

ROWS = 60


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of more than ten rows are delivered in rounds; a batch of a slow sink has ten."""
    monkeypatch.setattr(ranges, "SMALL", DriverLimit(10, 1 << 20))
    monkeypatch.setattr("strandline.consumers.rounds.ROUND_S", 0.1)


@pytest.fixture
def slow(lake: sl.Lake, items: sl.Table, place: Path) -> sl.Lake:
    """A lake with a sink that sends a table in rounds of ten rows."""
    items.upsert(rows(*range(ROWS)))
    lake.sink("archive", "items", to=ParquetSink(str(place)))
    lake.backfill("archive").rate(100)
    return lake


def status(lake: sl.Lake) -> BackfillStatus:
    return lake.backfill("archive").status()


def run_until(lake: sl.Lake, least: int, act: Callable[[], object]) -> sl.TickReport:
    """A tick during which `act` is called once, when so many rows were sent."""
    done = threading.Event()

    def hear(sent: int, whole: int, what: str) -> None:
        if sent >= least and what == "archive" and not done.is_set():
            done.set()
            act()

    report = lake.tick(only=["archive"], progress=hear)
    assert done.is_set()
    report.raise_for_errors()
    return report


def pause_after(lake: sl.Lake, least: int) -> BackfillStatus:
    run_until(lake, least, lake.backfill("archive").pause)
    return status(lake)


def test_a_history_is_delivered_in_rounds_and_every_status_says_how_far_it_is(slow, place):
    before = status(slow)
    assert (before.condition, before.rows_left, before.percent, before.eta_s) == ("waiting", ROWS, 0.0, None)
    seen: list[BackfillStatus] = []
    report = slow.tick(progress=lambda *_: seen.append(status(slow)))
    report.raise_for_errors()
    (sink,) = report.sinks
    assert (sink.rows, sink.rounds >= 6) == (ROWS, True)
    assert {"running"} <= {each.condition for each in seen} <= {"waiting", "running", "done"}
    for name in ("percent", "rows", "rounds", "seq", "vnodes_done"):
        values = [getattr(each, name) for each in seen]
        assert values == sorted(values), name
    assert any(0 < each.percent < 100 and each.eta_s for each in seen)
    after = status(slow)
    assert (after.condition, after.percent, after.rows, after.rows_left, after.eta_s) == ("done", 100.0, ROWS, 0, 0.0)
    assert (after.vnodes_done, after.owner, after.safe_s, after.is_open) == (4, None, None, False)
    assert [row["id"] for row in delivered(place)] == list(range(ROWS))


def test_progress_counts_the_rows_of_the_whole_history(slow):
    seen: list[tuple[int, int]] = []
    slow.tick(only=["archive"], progress=lambda done, whole, what: seen.append((done, whole)))
    assert seen[0] == (0, ROWS) and len(seen) > 6
    assert max(whole for _, whole in seen) <= ROWS * 1.2


def test_progress_goes_on_where_it_was_after_a_restart(slow, place):
    first = pause_after(slow, 20)
    assert (first.condition, 0 < first.percent < 100) == ("paused", True)
    # Another process, which declares nothing.
    again = sl.Lake(slow.storage.uri)
    assert status(again) == first
    status_now = again.backfill("archive").resume()
    assert (status_now.condition, status_now.percent, status_now.rate.rows_per_s) == ("waiting", first.percent, 100)
    seen: list[float] = []
    again.tick(only=["archive"], progress=lambda *_: seen.append(status(again).percent)).raise_for_errors()
    assert seen[0] == first.percent and seen == sorted(seen) and status(again).condition == "done"
    assert [row["id"] for row in delivered(place)] == list(range(ROWS))


def test_a_filter_does_not_hide_progress(lake, items, place):
    items.upsert(rows(*range(ROWS)))
    lake.sink("archive", "items", to=ParquetSink(str(place)), where="id IN (0, 10, 20, 30, 40, 50)")
    lake.backfill("archive").rate(100)
    seen: list[BackfillStatus] = []
    lake.tick(only=["archive"], progress=lambda *_: seen.append(status(lake))).raise_for_errors()
    # Rounds of ten rows of the table, of which each sends one; the next one needs no wait.
    assert seen[3].percent >= 50 > seen[1].percent
    assert status(lake).rows == 6 and len([row for row in delivered(place) if row["_op"] == "upsert"]) == 6


def test_a_paused_history_sends_changes_of_the_rows_that_were_delivered(slow, items, place):
    now = pause_after(slow, 20)
    assert (now.condition, now.rows_left) == ("paused", ROWS - now.rows)
    sent = {row["id"] for row in delivered(place)}
    assert len(sent) == now.rows < ROWS
    items.upsert(rows(*range(ROWS), name="m"))
    report = slow.tick(only=["archive"])
    assert (report.rows, report.is_well) == (now.rows, True)
    assert {row["id"] for row in delivered(place)} == sent
    still = status(slow)
    assert (still.condition, still.rows, still.percent, still.seq) == ("paused", now.rows, now.percent, 2)
    (sink,) = slow.status().sinks
    assert (sink.backfill, sink.lag.is_none, sink.error, sink.is_paused) == (still, True, None, False)
    assert slow.status().is_healthy and slow.tick(only=["archive"]).is_idle
    slow.backfill("archive").resume()
    slow.tick().raise_for_errors()
    last = {row["id"]: row["name"] for row in delivered(place)}
    assert last == {id: f"m{id}" for id in range(ROWS)}


def test_a_pause_before_the_first_tick_holds_a_small_table_too(lake, items, place):
    items.upsert(rows(1, 2, 3))
    lake.sink("archive", "items", to=ParquetSink(str(place)))
    now = lake.backfill("archive").pause()
    assert (now.condition, now.rows_left, now.percent) == ("paused", 3, 0.0)
    assert lake.tick(only=["archive"]).is_well and not delivered(place)
    lake.backfill("archive").resume()
    assert lake.tick().rows == 3
    assert status(lake).condition == "none" and lake.status().sinks[0].backfill is None


def test_a_change_of_the_rate_holds_from_the_next_batch_on(slow, place):
    slow.backfill("archive").rate(0.1)
    # Ten seconds for a row, until there is no limit any more.
    run_until(slow, 1, lambda: slow.backfill("archive").rate(None))
    assert len(delivered(place)) == ROWS and status(slow).rate == sl.Lake(slow.storage.uri).state.rates.get("none")


def test_a_rate_of_zero_pauses_and_another_one_lets_it_go_on(slow):
    assert slow.backfill("archive").rate(0).condition == "paused"
    assert slow.tick(only=["archive"]).rows == 0
    now = slow.backfill("archive").rate(bytes=1 << 20)
    assert (now.condition, now.rate.rows_per_s, now.rate.bytes_per_s) == ("waiting", None, 1 << 20)
    with refused():
        slow.backfill("archive").rate(-1)


SET_RATE = """
import sys, strandline as sl
history = sl.Lake(sys.argv[1]).backfill("archive")
getattr(history, sys.argv[2])(*map(float, sys.argv[3:]))
"""


def change_elsewhere(lake: sl.Lake, *words: str) -> None:
    """Change the history of the sink in another process."""
    command = [sys.executable, "-c", SET_RATE, lake.storage.uri, *words]
    subprocess.run(command, env=environment(), check=True)


def test_another_process_changes_the_rate_and_pauses_while_a_tick_runs(slow, items, place):
    slow.add_sink(slow.declared["archive"])
    slow.backfill("archive").rate(0.1)
    run_until(slow, 1, lambda: (change_elsewhere(slow, "rate", "50"), change_elsewhere(slow, "pause")))
    now = status(slow)
    assert (now.condition, now.rate.rows_per_s, 0 < now.rows < ROWS) == ("paused", 50, True)
    items.upsert([{"id": 0, "name": "new"}])
    slow.tick(only=["archive"]).raise_for_errors()
    assert "new" in {row["name"] for row in delivered(place)}
    change_elsewhere(slow, "resume")
    change_elsewhere(slow, "rate", "100000")
    slow.tick(only=["archive"]).raise_for_errors()
    assert status(slow).condition == "done" and len({row["id"] for row in delivered(place)}) == ROWS


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def has_sent(place: Path, id: int) -> bool:
    return place.exists() and id in [row["id"] for row in delivered(place)]


def test_a_rate_holds_in_the_next_process_too(lake, items, place, monkeypatch):
    waits: list[float] = []

    def look(self, load_rate, stop, is_over):
        waits.append(self.last.free_s(self.rate) - time.monotonic())

    monkeypatch.setattr(rounds.Rounds, "wait", look)
    items.upsert(rows(*range(10)))
    lake.sink("archive", "items", to=ParquetSink(str(place)))
    lake.backfill("archive").rate(0.01)
    lake.tick().raise_for_errors()
    items.upsert(rows(100))
    waits.clear()
    other = sl.Lake(lake.storage.uri)
    other.sink("archive", "items", to=ParquetSink(str(place)))
    other.tick().raise_for_errors()
    # The last row before it takes a hundred seconds.
    assert 50 < waits[0] <= 100
    assert len(delivered(place)) == 11


def test_slow_histories_leave_turns_to_other_sinks(slow, items, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "AT_ONCE", 1)
    monkeypatch.setattr(runner, "TURN_S", 0.3)
    slow.backfill("archive").rate(30)
    slow.sink("quick", "items", to=ParquetSink(str(tmp_path / "quick")), start="head")
    stop, seen = threading.Event(), list[str]()
    thread = threading.Thread(target=slow.run, kwargs={"every": 0.05, "stop": stop})
    thread.start()
    try:
        wait_until(lambda: status(slow).rows > 0)
        items.upsert(rows(1000))
        wait_until(lambda: has_sent(tmp_path / "quick", 1000))
        seen.append(status(slow).condition)
        wait_until(lambda: status(slow).condition == "done")
    finally:
        stop.set()
        thread.join()
    assert seen == ["running"] or seen == ["waiting"]


def test_a_restart_beside_a_tick_says_to_pause_first(slow):
    errors: list[sl.Conflict] = []

    def restart() -> None:
        with refused(sl.Conflict) as caught:
            slow.backfill("archive").restart()
        errors.append(caught.value)

    run_until(slow, 10, restart)
    assert "strandline backfill pause archive" in errors[0].hint


def test_a_paused_sink_pauses_its_history_and_says_so(slow):
    pause_after(slow, 20)
    slow.backfill("archive").resume()
    slow.pause_sink("archive")
    now = status(slow)
    assert (now.condition, now.rate.is_stopped, now.rows > 0) == ("paused", False, True)
    slow.resume_sink("archive")
    assert status(slow).condition == "waiting"


def test_a_new_life_begins_its_history_anew_in_the_same_tick(slow, tmp_path):
    before = pause_after(slow, 20)
    assert before.rows
    slow.sink("archive", "items", to=ParquetSink(str(tmp_path / "elsewhere")))
    now = slow.backfill("archive").resume()
    assert (now.rows, now.rounds, now.percent, now.rows_left) == (0, 0, 0.0, ROWS)
    slow.tick().raise_for_errors()
    assert len(delivered(tmp_path / "elsewhere")) == ROWS and status(slow).condition == "done"


def test_a_restart_delivers_the_whole_table_again(slow, items):
    pause_after(slow, 20)
    planned = slow.backfill("archive").restart(dry_run=True)
    assert (planned.life, planned.rows) == (1, ROWS) and status(slow).rows
    done = slow.backfill("archive").restart()
    now = status(slow)
    assert (done.life, now.rows, now.percent, now.condition) == (2, 0, 0.0, "paused")
    slow.backfill("archive").resume()
    (report,) = slow.tick(only=["archive"]).sinks
    assert (report.rows, report.is_well) == (ROWS, True)


def test_a_consumer_without_a_history_has_none(lake, items, archive, tmp_path):
    items.upsert(rows(*range(ROWS)))
    now = status(lake)
    assert (now.condition, now.rows, now.rows_left, now.vnodes) == ("none", 0, 0, 4)
    lake.sink("late", "items", to=ParquetSink(str(tmp_path / "late")), start="head")
    lake.tick()
    assert [each.backfill for each in lake.status().sinks] == [None, None]
    assert lake.backfill("late").pause().condition == "none" and repr(lake.backfill("late")) == "Backfill('late')"
    with refused(sl.NotFound, consumer="nothing"):
        lake.backfill("nothing").status()
    lake.retire_sink("archive")
    assert status(lake).condition == "none"
    with refused(sl.Invalid, consumer="archive"):
        lake.backfill("archive").pause()


def test_a_copy_of_the_state_from_before_a_change_is_noticed(slow):
    slow.tick()
    before = slow.state.epoch.renew()
    slow.backfill("archive").pause()
    changed = slow.state.epoch.renew()
    slow.backfill("archive").pause()
    assert (changed - before, slow.state.epoch.renew() - changed) == (2, 1)


def test_the_document_of_a_status_is_json(slow):
    pause_after(slow, 20)
    document = json.loads(json.dumps(slow.status().sinks[0].to_dict()["backfill"]))
    assert document["rate"] == {"rows_per_s": 100.0, "bytes_per_s": None, "is_stopped": True}
    assert (document["condition"], document["consumer"], document["lag"]["commits"]) == ("paused", "archive", 0)


# --- the table changes meanwhile ------------------------------------------------------------------------------------


def test_the_past_is_kept_for_a_history_whatever_vacuum_and_compaction_do(slow, items, place):
    pause_after(slow, 20)
    slow.pause_sink("archive")
    for number in range(3):
        items.upsert(rows(*range(ROWS), name=f"v{number}-"))
        items.compact(full=True)
    assert "archive" in items.vacuum(keep="0s", grace="0s").held_by.who
    assert status(slow).safe_s is None
    slow.resume_sink("archive")
    slow.backfill("archive").resume()
    slow.tick().raise_for_errors()
    last = {row["id"]: row["name"] for row in delivered(place)}
    assert last == {id: f"v2-{id}" for id in range(ROWS)}


def test_a_past_that_is_gone_is_an_error_until_a_restart(slow, items, place):
    pause_after(slow, 20)
    items.upsert(rows(*range(ROWS), name="m"))
    items.compact(full=True)
    items.upsert(rows(1, name="m"))
    trim(items, 2)
    now = slow.backfill("archive").resume()
    assert (now.safe_s, now.condition) == (0.0, "waiting")
    (report,) = slow.tick(only=["archive"]).sinks
    assert isinstance(report.error, sl.NotRetained) and "backfill restart archive" in str(report.error.hint)
    assert not slow.status().is_healthy
    slow.backfill("archive").restart()
    slow.tick(only=["archive"]).raise_for_errors()
    assert (status(slow).safe_s, status(slow).condition) == (None, "done")


def test_columns_names_and_purges_change_in_the_middle(slow, items, place):
    now = pause_after(slow, 20)
    items.add_column("note", "string")
    items.upsert([{"id": 1, "name": "n1", "qty": None, "note": "late"}])
    gone = ROWS - 1
    items.purge([{"id": gone}])
    slow.rename("items", "things")
    free = sl.Lake(slow.storage.uri)
    assert (status(free).table, status(free).percent) == ("things", now.percent)
    free.backfill("archive").resume()
    free.tick(only=["archive"]).raise_for_errors()
    found = delivered(place)
    assert {row["id"] for row in found if row["_op"] == "upsert"} == set(range(ROWS)) - {gone}
    assert [row.get("note") for row in found if row["id"] == 1][-1] == "late"


def test_a_restored_table_is_what_a_history_ends_with(slow, items, place):
    pause_after(slow, 20)
    items.upsert(rows(*range(ROWS), name="bad"))
    slow.tick(only=["archive"]).raise_for_errors()
    items.restore(1)
    slow.backfill("archive").resume()
    slow.tick(only=["archive"]).raise_for_errors()
    last = {row["id"]: row["name"] for row in delivered(place)}
    assert last == {id: f"n{id}" for id in range(ROWS)}


def test_a_dropped_table_ends_its_history_until_it_is_back(slow, items):
    now = pause_after(slow, 20)
    slow.declared.clear()
    slow.drop("items")
    lost = status(slow)
    assert (lost.rows, lost.percent, lost.rows_left) == (now.rows, now.percent, None)
    slow.undrop("items")
    slow.backfill("archive").resume()
    slow.tick(only=["archive"]).raise_for_errors()
    assert status(slow).condition == "done"
