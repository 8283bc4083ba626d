"""Sinks by command, their lag, what retention waits for, and a state that is found again."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from receiving import served
from strandline.consumers import loop, retention
from strandline.pipeline import commands, runner
from strandline.pipeline.recover_marks import adopt_state
from strandline.pipeline.status import TableStatus
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink
from strandline.state.epoch import read_record
from support import ITEMS, by_id, python


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{name}{id}"} for id in ids]


def delivered(place: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found = [row for path in place.glob("data/**/*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: (row["_seq"], row["id"]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def archive(lake: sl.Lake, items: sl.Table, place: Path) -> SinkDef:
    """A sink that has delivered one commit."""
    items.upsert(rows(1, 2, 3))
    sink = lake.sink("archive", "items", to=ParquetSink(str(place)))
    assert lake.tick().is_well
    return sink


def test_a_sink_that_was_added_runs_without_a_program_that_declares_it(
    tmp_path: Path, lake: sl.Lake, items: sl.Table, place: Path
) -> None:
    items.upsert(rows(1))
    added = commands.add(lake, SinkDef.declare("archive", "items", ParquetSink(str(place))))
    assert added.is_new
    report = sl.Lake(tmp_path / "lake").tick()
    assert [(sink.name, sink.rows) for sink in report.sinks] == [("archive", 1)]


def test_a_secret_that_would_be_lost_is_refused_by_add(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    with pytest.raises(sl.Invalid):
        commands.add(lake, SinkDef.declare("a", "items", ParquetSink(str(place)), mask={"name": "hash"}, salt="pepper"))


def test_reset_sends_the_table_again_as_a_new_life(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path
) -> None:
    planned = commands.reset(lake, "archive", dry_run=True)
    assert (planned.rows, planned.life, lake.plan().sinks[0].works) == (3, 1, ())
    done = commands.reset(lake, "archive")
    assert (done.life, done.was) == (2, {0: 1, 1: 1, 2: 1, 3: 1})
    assert lake.tick().sinks[0].rows == 3
    assert len(delivered(place)) == 6
    assert lake.tick().is_idle


def test_reset_to_a_seq_sends_the_changes_after_it(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.upsert(rows(4))
    items.upsert(rows(5))
    assert lake.tick().rows == 2
    assert commands.reset(lake, "archive", 2).rows == 1 == lake.status().sinks[0].lag.rows
    report = lake.tick().sinks[0]
    assert (report.rows, report.after, report.upto) == (1, 2, 3)
    assert commands.reset(lake, "archive", "head").rows == 0 == lake.status().sinks[0].lag.rows
    assert lake.tick().rows == 0
    with pytest.raises(sl.Invalid):
        commands.reset(lake, "archive", 99)


def test_a_reset_to_seq_0_sends_every_change(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.upsert(rows(1, name="again"))
    lake.tick()
    assert commands.reset(lake, "archive", 0).rows == 4
    assert lake.tick().rows == 4


def test_a_retired_sink_stays_so_when_its_table_is_made_again_or_it_is_pointed_elsewhere(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path, tmp_path: Path
) -> None:
    commands.retire(lake, "archive")
    before = delivered(place)
    lake.drop("items")
    lake.create_table("items", ITEMS, key=["id"], vnodes=4).upsert(rows(7))
    for again in (lake, sl.Lake(tmp_path / "lake")):
        assert again.tick().sinks == () and again.status().sinks[0].is_retired
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "elsewhere")))
    assert lake.tick().sinks == () and delivered(place) == before and not (tmp_path / "elsewhere").exists()
    lake.drop("items")
    assert lake.tick().sinks == () and lake.status().sinks[0].error is None, "nor does it miss its table"
    lake.create_table("items", ITEMS, key=["id"], vnodes=4).upsert(rows(7))
    commands.add(lake, lake.declared["archive"])
    assert lake.tick().sinks[0].rows == 1


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_retired_sink_whose_table_was_made_again_is_used_again_by_a_reset(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path, tmp_path: Path, is_declared: bool
) -> None:
    commands.retire(lake, "archive")
    lake.drop("items")
    lake.create_table("items", ITEMS, key=["id"], vnodes=4).upsert(rows(7))
    again = lake if is_declared else sl.Lake(tmp_path / "lake")
    assert commands.reset(again, "archive").rows == 1
    assert again.tick().sinks[0].rows == 1 and 7 in [row["id"] for row in delivered(place)]


def test_a_sink_whose_condition_lost_its_column_says_so(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(place)), where="qty is null")
    items.upsert(rows(1))
    assert (lake.tick().sinks[0].rows, lake.plan().sinks[0].lost) == (1, ())
    items.drop_column("qty")
    items.upsert(rows(2))
    report = lake.tick().sinks[0]
    assert (report.rows, report.withheld, report.lost) == (0, 1, ("qty",)) == (0, 1, lake.plan().sinks[0].lost)


def test_the_lag_of_a_sink_that_will_start_again_is_the_table(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, tmp_path: Path
) -> None:
    assert lake.status().sinks[0].lag.is_none
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "elsewhere")))
    assert lake.status().sinks[0].lag.rows == lake.plan().sinks[0].rows == 3


@pytest.mark.parametrize("where", ["lease_of", "this_worker"])
def test_a_fault_of_one_sink_that_nobody_foresaw_stops_no_other(
    lake: sl.Lake, items: sl.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    items.upsert(rows(1))
    for number in range(3):
        lake.sink(f"s{number}", "items", to=ParquetSink(str(tmp_path / f"s{number}")))
    real, calls = getattr(loop, where), iter(range(99))

    def broken(*words: object) -> object:
        if not next(calls):
            raise RuntimeError("what is this?")
        return real(*words)

    monkeypatch.setattr(loop, where, broken)
    reports = lake.tick().sinks
    [failed] = [report for report in reports if report.error is not None]
    assert isinstance(failed.error, sl.Internal) and "what is this?" in failed.error.message
    assert sorted(report.rows for report in reports) == [0, 1, 1]


def test_a_retired_sink_sends_nothing_and_holds_nothing(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.upsert(rows(4))
    assert lake.vacuum(keep="0s", grace="0s").to_dict()["tables"][0]["held_by"]["who"] == "sink archive"
    gone = commands.retire(lake, "archive")
    assert (gone.lag.commits, gone.lag.rows) == (1, 1)
    assert lake.tick().sinks == ()
    assert lake.status().sinks[0].is_retired
    assert lake.vacuum(keep="0s", grace="0s").to_dict()["tables"][0]["held_by"]["who"] == "the setting keep"


def test_the_log_is_kept_for_a_sink_that_has_not_run(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    items.upsert(rows(1))
    commands.add(lake, SinkDef.declare("archive", "items", ParquetSink(str(place))))
    items.upsert(rows(2))
    items.compact(full=True)
    lake.vacuum(keep="0s", grace="0s")
    assert items.log.refresh().trimmed_to == 0


def test_lag_is_told_in_commits_rows_and_seconds(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    assert lake.status().sinks[0].lag.is_none
    items.upsert(rows(4, 5))
    items.delete([1])
    items.configure(keep="7d")
    lag = lake.status().sinks[0].lag
    assert (lag.commits, lag.rows) == (2, 3) and lag.seconds is not None


def test_a_commit_without_data_is_no_lag_and_no_work(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.configure(keep="7d")
    assert lake.plan().is_idle and lake.status().sinks[0].lag.is_none


def test_an_unknown_sink_is_named_with_those_there_are(lake: sl.Lake, archive: SinkDef) -> None:
    for act in (commands.reset, commands.retire):
        with pytest.raises(sl.NotFound) as caught:
            act(lake, "central")
        assert caught.value.fields["consumer"] == "central" and "archive" in str(caught.value)


# --- retention --------------------------------------------------------------------------------------------------

TIMED = pa.schema([pa.field("id", pa.int64(), False), ("at", pa.timestamp("us", tz="UTC"))])


def timed(id: int, days: float) -> dict[str, Any]:
    return {"id": id, "at": dt.datetime.now(dt.UTC) - dt.timedelta(days=days)}


def test_a_late_row_is_sent_before_it_expires(lake: sl.Lake, place: Path) -> None:
    """Lesson 21."""
    table = lake.create_table("timed", TIMED, key=["id"], vnodes=2, time="at", retention="90d")
    lake.sink("archive", "timed", to=ParquetSink(str(place)))
    table.upsert([timed(1, 0)])
    lake.tick()
    table.upsert([timed(2, 200), timed(3, 1)])
    assert retention.due(table) is None
    found = lake.status().tables[0]
    assert isinstance(found, TableStatus) and found.waits_for is not None and "archive" in found.waits_for
    with pytest.raises(sl.Conflict) as caught:
        table.expire(dt.datetime.now(dt.UTC) - dt.timedelta(days=100))
    assert caught.value.fields["consumer"] == "archive"
    report = lake.tick()
    assert (report.rows, report.expired) == (2, ("timed",))
    assert {row["id"] for row in delivered(place)} == {1, 2, 3}
    assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 3]
    assert lake.tick().is_idle


def test_rows_of_a_table_that_nobody_reads_expire_in_a_tick(lake: sl.Lake) -> None:
    table = lake.create_table("timed", TIMED, key=["id"], vnodes=2, time="at", retention="90d")
    table.upsert([timed(1, 200), timed(2, 1)])
    assert lake.plan().expire == ("timed",)
    assert lake.tick().expired == ("timed",)
    assert table.to_arrow().column("id").to_pylist() == [2]


# --- a state that was lost --------------------------------------------------------------------------------------


def lose(lake: sl.Lake) -> sl.Lake:
    """The lake, opened after its state was deleted."""
    for path in Path(lake.storage.uri).glob("state.db*"):
        os.unlink(path)
    return sl.Lake(lake.storage.uri)


def test_a_lost_state_neither_sends_nor_trims_nor_expires_until_it_is_adopted(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path
) -> None:
    """Lesson 8."""
    items.upsert(rows(4))
    again = lose(lake)
    for act in (again.tick, again.table("items").vacuum, lambda: commands.retire(again, "archive")):
        with pytest.raises(sl.StrandlineError):
            act()
    assert again.status().state_fault is not None and not again.status().is_healthy
    assert again.table("items").to_arrow().num_rows == 4
    (found,) = adopt_state(again)
    assert (found.name, found.marks) == ("archive", {0: 1, 1: 1, 2: 1, 3: 1})
    assert again.tick().rows == 1
    assert [row["id"] for row in delivered(place)] == [1, 2, 3, 4]


def test_a_state_from_an_old_copy_goes_on_where_the_destination_is(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path, tmp_path: Path
) -> None:
    state = Path(lake.storage.uri) / "state.db"
    lake.state.database.close()
    shutil.copy(state, tmp_path / "old.db")
    items.upsert(rows(4))
    lake.tick()
    lake.state.database.close()
    for path in Path(lake.storage.uri).glob("state.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", state)
    again = sl.Lake(lake.storage.uri)
    with pytest.raises(sl.Conflict):
        again.tick()
    (found,) = adopt_state(again)
    assert set((found.marks or {}).values()) == {2}
    assert again.tick().is_idle
    assert [row["id"] for row in delivered(place)] == [1, 2, 3, 4]


def test_a_lake_from_an_old_copy_is_noticed_and_its_sink_waits_for_a_person(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path, tmp_path: Path
) -> None:
    root = Path(lake.storage.uri)
    shutil.copytree(root, tmp_path / "copy")
    items.upsert(rows(4))
    lake.tick()
    lake.state.database.close()
    kept = tmp_path / "kept.db"
    shutil.copy(root / "state.db", kept)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    for path in root.glob("state.db*"):
        path.unlink()
    shutil.copy(kept, root / "state.db")
    again = sl.Lake(root)
    with pytest.raises(sl.Conflict):
        again.tick()
    (found,) = adopt_state(again)
    assert found.marks is None and found.is_undecided
    again.table("items").upsert(rows(7))
    assert not again.tick().is_well and not again.status().is_healthy
    assert commands.reset(again, "archive").life == 2
    assert again.tick().rows == 4


def test_a_destination_that_cannot_be_asked_stops_the_adoption_unless_it_is_skipped(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path
) -> None:
    again = lose(lake)
    shutil.rmtree(place)
    place.write_text("in the way")
    with pytest.raises(sl.Unavailable) as caught:
        adopt_state(again)
    assert caught.value.fields["consumer"] == "archive"
    (found,) = adopt_state(again, skip=["archive"])
    assert found.marks is None and again.status().sinks[0].is_retired


def test_a_sink_is_kept_in_postgresql(tmp_path: Path, postgres_url: str, place: Path) -> None:
    lake = sl.Lake(tmp_path / "lake", state=postgres_url)
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=4)
    items.upsert(rows(1))
    lake.sink("archive", "items", to=ParquetSink(str(place)))
    assert lake.tick().rows == 1
    other = sl.Lake(tmp_path / "lake", state=postgres_url)
    items.upsert(rows(2))
    assert [(sink.name, sink.rows) for sink in other.tick().sinks] == [("archive", 1)]
    assert not (tmp_path / "lake" / "state.db").exists()
    with pytest.raises(sl.Conflict):
        sl.Lake(tmp_path / "lake").tick()


def test_purged_keys_leave_dead_letters_too(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.model.change import RefusedRows

    keys = pa.table({"id": pa.array([1, 2], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    dead = RefusedRows((0, 1, 0), 2, sink.getvalue().to_pybytes(), "no")
    lake.state.letters.save(lake.state.registry.get("archive"), "intent", [dead])
    items.purge([1])
    assert [letter.key_table.to_pylist() for letter in lake.state.letters.all()] == [[{"id": 2}]]


def test_a_purge_tells_sinks_that_the_row_is_gone(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path
) -> None:
    items.purge([2])
    items.compact(full=True)
    assert lake.tick(only=["archive"]).rows == 1
    assert [(row["_op"], row["id"]) for row in delivered(place)[-1:]] == [("delete", 2)]


def test_a_purge_waits_for_what_a_sink_has_begun(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.upsert(rows(4))
    consumer = lake.state.registry.get("archive")
    with lake.state.leases.held(consumer.lease, "someone") as held:
        with pytest.raises(sl.Conflict):
            items.purge([1])
        lake.state.marks.open_intent(
            consumer, lane="0-3", vnodes=range(4), after=1, upto=2, schema_id=0, fence=held.fence
        )
    with pytest.raises(sl.Conflict) as caught:
        items.purge([1])
    assert caught.value.fields["consumer"] == "archive"
    assert lake.tick().rows == 1
    items.purge([1])


def test_every_sink_is_told_to_the_lake_before_anything_of_it_leaves(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    items.upsert(rows(1))
    for number in range(3):
        lake.sink(f"s{number}", "items", to=ParquetSink(str(tmp_path / f"out{number}")))
    lake.tick()
    record = read_record(lake.storage)
    assert record is not None and [consumer.name for consumer in record.consumers] == ["s0", "s1", "s2"]


def test_a_state_and_its_record_from_an_old_copy_are_noticed_by_what_the_log_was_trimmed_with(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, tmp_path: Path
) -> None:
    root = Path(lake.storage.uri)
    lake.state.database.close()
    kept = {name: (root / name).read_bytes() for name in ("state.db", "state.json")}
    items.upsert(rows(4))
    lake.tick()
    items.compact(full=True)
    lake.vacuum(keep="0s", grace="0s")
    lake.state.database.close()
    for path in root.glob("state.db*"):
        path.unlink()
    for name, data in kept.items():
        (root / name).write_bytes(data)
    with pytest.raises(sl.Conflict):
        sl.Lake(root).tick()


def test_a_state_that_is_the_lakes_own_is_not_adopted(lake: sl.Lake, archive: SinkDef) -> None:
    with pytest.raises(sl.Invalid):
        adopt_state(lake)


INTERRUPTED = """
import sys
import strandline as sl
lake = sl.Lake(sys.argv[1])
lake.sink("central", "items", to=sl.HttpSink(sys.argv[2], chunk_rows=2, lanes=1))
lake.tick()
"""


# Kills after which the receiver happens to hold whole seqs of each vnode.
BETWEEN_SEQS = {(False, 1), (False, 4)}


@pytest.mark.parametrize("is_first", [True, False], ids=["a first load", "a range of the log"])
@pytest.mark.parametrize("acked", [1, 2, 4])
def test_a_delivery_that_was_interrupted_inside_a_seq_goes_on_there_when_the_state_is_lost(
    lake: sl.Lake, items: sl.Table, tmp_path: Path, is_first: bool, acked: int
) -> None:
    other = sl.Lake(tmp_path / "other").create_table("items", ITEMS, key=["id"])
    with served(str(tmp_path / "other")) as receiver:
        url = f"{receiver.url}/ingest/items"
        if not is_first:
            items.upsert(rows(100))
            assert python(INTERRUPTED, lake.storage.uri, url).returncode == 0
        items.upsert(rows(*range(10)))
        items.upsert(rows(*range(10, 30)))
        killed = python(INTERRUPTED, lake.storage.uri, url, crash=f"sink.chunk_acked:{acked}")
        assert killed.returncode == -signal.SIGKILL
        items.upsert(rows(*range(30, 35)))
        items.delete([{"id": 7}])
        again = lose(lake)
        (found,) = adopt_state(again)
        assert found.marks is not None and not found.is_undecided
        assert found.begun == (0 if (is_first, acked) in BETWEEN_SEQS else 1)
        assert all(not sink.error for sink in again.status().sinks)
        report = again.tick()
        assert report.is_well, report.sinks
        assert again.tick().is_idle
    assert other.to_arrow().sort_by("id") == again.table("items").to_arrow().sort_by("id")
    sent = other.changes().to_pylist()
    assert len(sent) == (0 if is_first else 1) + 30 + 5 + 1, "each row once"


def test_a_part_of_a_batch_that_the_lake_does_not_know_waits_for_a_person(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    """The lake's record is of an older copy: how the batch began is not known, and its rows may be a first load's."""
    other = sl.Lake(tmp_path / "other").create_table("items", ITEMS, key=["id"])
    items.upsert(rows(*range(10)))
    record = Path(lake.storage.uri) / "state.json"
    with served(str(tmp_path / "other")) as receiver:
        url = f"{receiver.url}/ingest/items"
        assert python(INTERRUPTED, lake.storage.uri, url).returncode == 0
        older = record.read_bytes()
        items.upsert(rows(*range(20)))
        killed = python(INTERRUPTED, lake.storage.uri, url, crash="sink.chunk_acked")
        assert killed.returncode == -signal.SIGKILL
        record.write_bytes(older)
        again = lose(lake)
        (found,) = adopt_state(again)
        assert found.marks is None and found.is_undecided
        (sink,) = again.status().sinks
        assert sink.is_retired and sink.error is not None and not again.status().is_healthy
        for _ in range(2):
            (report,) = again.tick().sinks
            assert isinstance(report.error, sl.Conflict) and not report.rows
            assert "mark reset central" in (report.error.hint or "")
        commands.reset(again, "central")
        assert again.tick().is_well and again.status().is_healthy
    assert by_id(other) == by_id(items)


def test_an_undecided_sink_may_be_given_up(lake: sl.Lake, items: sl.Table, archive: SinkDef, place: Path) -> None:
    again = lose(lake)
    (consumer,) = read_record(lake.storage).consumers
    lost = replace(consumer, definition={**consumer.definition, "undecided": "nobody knows"})
    again.state.epoch.adopt([(lost, None)])
    assert not again.status().is_healthy
    assert commands.retire(again, "archive").name == "archive"
    assert again.status().is_healthy and again.tick().is_idle


def test_a_destination_that_never_answers_holds_no_other_sink_up(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    items.upsert(rows(1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        lake.sink("archive", "items", to=ParquetSink(str(place)))
        lake.sink("hung", "items", to=sl.HttpSink(url, receiver="any", timeout="4s", patience="1s"))
        stop = threading.Event()
        running = threading.Thread(target=runner.run, args=(lake, 0.1), kwargs={"stop": stop})
        running.start()
        try:
            for number in (2, 3, 4):
                items.upsert(rows(number))
                deadline_s = time.monotonic() + 3
                while len(delivered(place)) < number:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.05)
        finally:
            stop.set()
            running.join(60)
    assert not running.is_alive()


def test_a_sink_that_only_the_state_knows_begins_anew_in_a_table_that_was_recreated(
    lake: sl.Lake, items: sl.Table, place: Path
) -> None:
    items.upsert(rows(1))
    commands.add(lake, SinkDef.declare("archive", "items", ParquetSink(str(place))))
    lake.tick()
    lake.drop("items")
    with pytest.raises(sl.NotFound):
        commands.reset(lake, "archive")
    lake.create_table("items", ITEMS, key=["id"], vnodes=4).upsert(rows(7, 8))
    plan = lake.plan().sinks[0]
    assert plan.is_new and "recreated" in plan.why
    assert lake.tick().rows == 2
    assert lake.tick().is_idle


def test_a_server_whose_state_was_lost_lets_nobody_in(lake: sl.Lake, items: sl.Table) -> None:
    from typer.testing import CliRunner

    from strandline.cli import app

    run = CliRunner()
    uri = lake.storage.uri
    assert run.invoke(app, ["--lake", uri, "token", "add", "me", "--role", "writer"]).exit_code == 0
    lose(lake)
    refused = run.invoke(app, ["--lake", uri, "serve", "--port", "0", "--json"])
    assert refused.exit_code == 1 and "Conflict" in refused.output
