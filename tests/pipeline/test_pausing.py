"""A paused sink waits and keeps the log; a removed one is forgotten."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.model.change import RefusedRows
from strandline.sinks.delta import DeltaSink
from strandline.sinks.parquet import ParquetSink
from strandline.state.intents import IntentDraft


def other(lake: sl.Lake) -> sl.Lake:
    """The same lake in a program that declares nothing."""
    return sl.Lake(lake.storage.uri)


def test_a_paused_sink_waits_in_every_program_and_goes_on_from_its_mark(lake, items, archive, place):
    done = lake.pause_sink("archive")
    assert (done.is_paused, done.is_changed, done.holds_log, done.is_working) == (True, True, True, False)
    items.upsert(rows(4))
    for each in (lake, other(lake)):
        report = each.tick()
        assert (report.rows, report.paused, report.is_well) == (0, ("archive",), True)
        (plan,) = each.plan(only=["archive"]).consumers
        assert (plan.is_paused, plan.works, plan.is_due) == (True, (), False)
        (status,) = each.status().sinks
        assert (status.is_paused, status.lag.rows, status.error, status.holds_log) == (True, 1, None, True)
    assert len(delivered(place)) == 3
    assert not lake.pause_sink("archive").is_changed
    assert other(lake).resume_sink("archive").is_changed
    assert not lake.resume_sink("archive").is_changed
    assert lake.tick().rows == 1
    assert len(delivered(place)) == 4


def test_the_log_is_kept_for_a_paused_sink(lake, items, archive, place):
    lake.pause_sink("archive")
    items.upsert(rows(4, 5))
    items.compact(full=True)
    report = items.vacuum(keep="0s", grace="0s")
    assert "archive" in report.held_by.who
    lake.resume_sink("archive")
    assert lake.tick().rows == 2


def test_a_failing_sink_is_no_error_while_it_is_paused(lake, items, tmp_path):
    items.upsert(rows(1))
    lake.sink("bad", "items", to=ParquetSink(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("in the way")
    assert not lake.tick().is_well
    lake.pause_sink("bad")
    assert lake.tick().is_well and lake.status().is_healthy


def test_a_declared_sink_can_be_paused_before_its_first_run(lake, items, place):
    items.upsert(rows(1))
    lake.sink("archive", "items", to=ParquetSink(place))
    assert not lake.pause_sink("archive").holds_log
    assert lake.tick().paused == ("archive",)
    assert not place.exists()
    assert "archive" not in other(lake).consumer_states()
    lake.resume_sink("archive")
    assert lake.tick().rows == 1


@pytest.mark.parametrize("start", ["backfill", "head", 1])
def test_a_pause_does_not_change_the_lag(lake, items, place, start):
    items.upsert(rows(1))
    items.upsert(rows(2))
    lake.sink("archive", "items", to=ParquetSink(place), start=start)
    before = lake.status().sinks[0].lag
    lake.pause_sink("archive")
    after = lake.status().sinks[0].lag
    assert (
        (after.commits, after.rows)
        == (before.commits, before.rows)
        == {"backfill": (2, 2), "head": (0, 0)}.get(start, (1, 1))
    )


def test_a_pause_does_not_change_the_lag_of_a_mirror_that_will_be_written_again(lake, items, place):
    items.upsert(rows(1))
    lake.sink("archive", "items", to=DeltaSink(str(place)))
    assert lake.tick().is_well
    items.rename_column("name", "title")
    before = lake.status().sinks[0].lag
    lake.pause_sink("archive")
    after = lake.status().sinks[0].lag
    assert (after.commits, after.rows) == (before.commits, before.rows) == (1, 1)
    assert lake.tick().paused == ("archive",)


def test_a_sink_that_is_paused_after_its_plan_was_made_does_not_begin(lake, items, archive):
    """The record is read again under the lease."""
    from strandline.consumers.loop import run_marked

    items.upsert(rows(4))
    (plan,) = lake.plan(only=["archive"]).consumers
    assert plan.is_due
    lake.pause_sink("archive")
    assert run_marked(lake, plan).rows == 0


def test_a_running_lake_leaves_a_paused_sink_alone(lake, items, archive, place):
    lake.pause_sink("archive")
    items.upsert(rows(4))
    stop = threading.Event()
    reports: list[object] = []

    def hear(report: object) -> None:
        reports.append(report)
        stop.set()

    lake.run(every=0.05, stop=stop, on_report=hear)
    assert isinstance(reports[0], sl.TickReport) and len(delivered(place)) == 3


def test_retiring_ends_a_pause_and_a_retired_sink_cannot_be_paused(lake, items, archive):
    lake.pause_sink("archive")
    lake.retire_sink("archive")
    with pytest.raises(sl.Invalid):
        lake.pause_sink("archive")
    lake.reset_sink("archive")
    assert lake.tick().rows == 3


def test_a_reset_sink_stays_paused(lake, items, archive):
    lake.pause_sink("archive")
    lake.reset_sink("archive")
    assert lake.tick().paused == ("archive",)


def test_what_is_not_there_is_not_paused_resumed_or_removed(lake, items, archive):
    for act in (lake.pause_sink, lake.resume_sink, lake.remove_sink):
        with pytest.raises(sl.NotFound):
            act("nothing")


def test_a_removed_sink_is_forgotten_and_the_log_is_no_longer_kept_for_it(lake, items, archive, place):
    with pytest.raises(sl.Invalid):
        lake.remove_sink("archive")
    free = other(lake)
    record = free.state.registry.get("archive")
    free.state.letters.save(record, "x", [RefusedRows((0, 1, 0), 1, b"", "no")])
    items.upsert(rows(4))
    planned = free.remove_sink("archive", dry_run=True)
    assert (planned.letters, planned.lag.rows, planned.to_dict()["intents"]) == (1, 1, 0)
    assert free.tick(only=["archive"]).rows == 1
    free.pause_sink("archive")
    free.remove_sink("archive")
    assert "archive" not in free.consumer_states() and not free.status().sinks
    assert free.state.letters.counts() == {} and free.state.pauses.all() == {}
    items.compact(full=True)
    assert "archive" not in items.vacuum(keep="0s", grace="0s").held_by.who
    assert len(delivered(place)) == 4
    with pytest.raises(sl.NotFound):
        free.remove_sink("archive")


def test_a_later_sink_of_the_name_is_a_newer_life(lake, items, archive, tmp_path):
    free = other(lake)
    before = free.state.registry.get("archive")
    free.remove_sink("archive")
    free.add_sink(free.sink("archive", "items", to=ParquetSink(tmp_path / "again")))
    assert free.tick().rows == 3
    now = free.state.registry.get("archive")
    assert (now.life, now.began_ms > before.began_ms) == (2, True)


def test_a_sink_at_work_is_not_removed(lake, items, archive, place: Path):
    free = other(lake)
    record = free.state.registry.get("archive")
    with free.state.leases.hold(record.lease, "somebody@else:1"), pytest.raises(sl.Conflict):
        free.remove_sink("archive")
    with free.state.leases.hold(record.lease, "somebody@else:1") as held:
        items.upsert(rows(4))
        free.state.begin(record, [IntentDraft("0", (0, 1, 2, 3), 1, 2, 0)], held.fence)
    assert free.remove_sink("archive").intents == 1
    assert free.state.marks.consumer_states() == {}
