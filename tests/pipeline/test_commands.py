"""Sinks by command, their lag, what retention waits for, and a state that is found again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.pipeline import commands
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink
from strandline.state.intents import IntentDraft
from support import ITEMS


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


def test_an_unknown_sink_is_named_with_those_there_are(lake: sl.Lake, archive: SinkDef) -> None:
    for act in (commands.reset, commands.retire):
        with pytest.raises(sl.NotFound) as caught:
            act(lake, "central")
        assert caught.value.fields["consumer"] == "central" and "archive" in str(caught.value)


# --- retention --------------------------------------------------------------------------------------------------


# --- a state that was lost --------------------------------------------------------------------------------------


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
    with lake.state.leases.hold(consumer.lease, "someone") as held:
        with pytest.raises(sl.Conflict):
            items.purge([1])
        lake.state.begin(consumer, [IntentDraft("0-3", range(4), after=1, upto=2, schema_id=0)], held.fence)
    with pytest.raises(sl.Conflict) as caught:
        items.purge([1])
    assert caught.value.fields["consumer"] == "archive"
    assert lake.tick().rows == 1
    items.purge([1])
