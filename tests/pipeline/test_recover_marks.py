"""Marks of a lost or old state, found again from the destinations that hold them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

import strandline as sl
from backfills import small_rounds
from forks import Interrupted, at_crash_points
from pipelines import delivered, rows
from receiving import served
from strandline.pipeline import commands
from strandline.pipeline.recover_marks import adopt_state
from strandline.sinks.definition import SinkDef
from strandline.sinks.delta import DeltaSink
from strandline.sinks.parquet import ParquetSink
from strandline.state.epoch import read_record
from strandline.state.key_positions import IN_HISTORY
from support import ITEMS, by_id, python


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


def test_a_server_whose_state_was_lost_lets_nobody_in(lake: sl.Lake, items: sl.Table) -> None:
    from typer.testing import CliRunner

    from strandline.cli import app

    run = CliRunner()
    uri = lake.storage.uri
    assert run.invoke(app, ["--lake", uri, "token", "add", "me", "--role", "writer"]).exit_code == 0
    lose(lake)
    refused = run.invoke(app, ["--lake", uri, "serve", "--port", "0", "--json"])
    assert refused.exit_code == 1 and "Conflict" in refused.output


INTERRUPTED = """
import sys
import strandline as sl
lake = sl.Lake(sys.argv[1])
lake.sink("central", "items", to=sl.HttpSink(sys.argv[2], chunk_rows=2, lanes=1))
lake.tick()
"""


# Kills after which the receiver happens to hold whole seqs of each vnode.
BETWEEN_SEQS = {(False, 1), (False, 4)}


# --- while a history is delivered -----------------------------------------------------------------------------------


def stop_after(lake: sl.Lake, advances: int) -> None:
    """A tick in whose course the history of a sink is stopped, after so many moves of its marks."""
    left = itertools.count(1)

    def here(point: str) -> None:
        if point == "marks.advanced" and next(left) == advances:
            lake.state.rates.set_stopped("out", True)

    with at_crash_points(here):
        assert lake.tick().is_well


def check_undecided(lake: sl.Lake, items: sl.Table) -> None:
    """The sink waits for a person, and then delivers everything again."""
    (found,) = adopt_state(lake)
    assert found.marks is None and found.is_undecided and found.why == IN_HISTORY
    for _ in range(2):
        (report,) = lake.tick().sinks
        assert isinstance(report.error, sl.Conflict) and not report.rows
        assert "strandline backfill restart out" in (report.error.hint or "")
    commands.reset(lake, "out")
    lake.state.rates.set_stopped("out", False)
    for _ in range(5):
        assert lake.tick().is_well
    assert lake.tick().is_idle


@pytest.fixture
def history(lake: sl.Lake, items: sl.Table, monkeypatch: pytest.MonkeyPatch) -> sl.Table:
    small_rounds(monkeypatch)
    for first in (0, 10):
        items.upsert(rows(*range(first, first + 10)))
    return items


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_history_that_only_the_lost_state_knew_waits_for_a_person(
    lake: sl.Lake, history: sl.Table, place: Path, kind: str
) -> None:
    to = ParquetSink(str(place)) if kind == "parquet" else DeltaSink(str(place))
    lake.sink("out", "items", to=to)
    stop_after(lake, 3)
    assert read_record(lake.storage).backfills
    again = lose(lake)
    check_undecided(again, history)
    if kind == "delta":
        assert sorted(DeltaTable(str(place)).to_pyarrow_table()["id"].to_pylist()) == list(range(20))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_history_of_which_nothing_was_delivered_begins_again(
    lake: sl.Lake, history: sl.Table, place: Path, kind: str
) -> None:
    lake.sink("out", "items", to=ParquetSink(str(place)) if kind == "parquet" else DeltaSink(str(place)))

    def here(point: str) -> None:
        if point == "loop.lanes_done":
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick()
    again = lose(lake)
    (found,) = adopt_state(again)
    assert set((found.marks or {}).values()) == {0}
    assert again.tick().rows == 20 and again.tick().is_idle


@pytest.mark.parametrize("advances", [1, 4])
def test_a_receiver_with_a_part_of_the_history_waits_for_a_person(
    lake: sl.Lake, history: sl.Table, tmp_path: Path, advances: int
) -> None:
    other = sl.Lake(tmp_path / "other").create_table("items", ITEMS, key=["id"])
    with served(str(tmp_path / "other")) as receiver:
        lake.sink("out", "items", to=sl.HttpSink(f"{receiver.url}/ingest/items", chunk_rows=2, lanes=1))
        stop_after(lake, advances)
        check_undecided(lose(lake), history)
    assert by_id(other) == by_id(history)


def test_a_receiver_that_ends_between_two_commits_of_a_catch_up_waits_for_a_person(
    lake: sl.Lake, history: sl.Table, tmp_path: Path
) -> None:
    """Its positions look like those of whole seqs: (seq, 0)."""
    other = sl.Lake(tmp_path / "other").create_table("items", ITEMS, key=["id"])
    with served(str(tmp_path / "other")) as receiver:
        url = f"{receiver.url}/ingest/items"
        lake.sink("out", "items", to=sl.HttpSink(url, chunk_rows=1, lanes=1))
        stop_after(lake, 2)
        for _ in range(3):
            history.upsert(rows(0, name="m"))

        def here(point: str) -> None:
            if point == "sink.chunk_acked":
                raise Interrupted

        with at_crash_points(here), pytest.raises(Interrupted):
            lake.tick()
        (sink,) = read_record(lake.storage).consumers
        told = httpx.get(f"{url}/positions", params={"sink": lake.producer(sink).sink}).json()["positions"]
        assert any(seq > 1 and index == 0 for _, _, seq, index in told)
        check_undecided(lose(lake), history)
    assert by_id(other) == by_id(history)


@pytest.mark.parametrize("kind", ["parquet", "http"])
def test_a_state_from_the_middle_of_a_history_that_is_there_goes_on_behind_it(
    lake: sl.Lake, history: sl.Table, tmp_path: Path, place: Path, kind: str
) -> None:
    other = sl.Lake(tmp_path / "other").create_table("items", ITEMS, key=["id"])
    root = Path(lake.storage.uri)
    with served(str(tmp_path / "other")) as receiver:
        url = f"{receiver.url}/ingest/items"
        lake.sink("out", "items", to=sl.HttpSink(url) if kind == "http" else ParquetSink(str(place)))
        stop_after(lake, 2)
        lake.state.rates.set_stopped("out", False)
        lake.state.database.close()
        copy = (root / "state.db").read_bytes()
        history.upsert(rows(3, 30))
        assert lake.tick().is_well
        assert not read_record(lake.storage).backfills
        lake.state.database.close()
        for path in root.glob("state.db*"):
            path.unlink()
        (root / "state.db").write_bytes(copy)
        again = sl.Lake(root)
        (found,) = adopt_state(again)
        assert set((found.marks or {}).values()) == {3} and not found.is_undecided
        assert again.tick().is_idle
        history.upsert(rows(4))
        assert again.tick().rows == 1 and again.tick().is_idle
    if kind == "http":
        assert by_id(other) == by_id(history)
    else:
        assert len(delivered(place)) == len({(row["id"], row["_seq"]) for row in delivered(place)})
