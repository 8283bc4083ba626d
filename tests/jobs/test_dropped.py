"""Dropped tables: what a drop says, and how a table comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline.jobs import leftovers as sweeping
from strandline.jobs.doctor import examine
from support import ITEMS, python, refused


@pytest.fixture
def stocked(lake: sl.Lake) -> sl.Lake:
    """The table items with three rows, one folded."""
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    items.upsert([{"id": 1, "name": "a"}])
    items.compact(full=True)
    items.upsert([{"id": 1, "name": "A"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    return lake


def names(table: sl.Table, **options: object) -> list[str]:
    return sorted(table.to_arrow(**options).column("name").to_pylist())


def test_a_drop_reports_the_rows_of_now_and_the_sinks(stocked: sl.Lake, tmp_path: Path) -> None:
    stocked.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    stocked.tick()
    plan = stocked.drop("items", dry_run=True)
    assert (plan.rows, plan.is_exact, plan.sinks, plan.until) == (3, True, ("archive",), None)
    report = stocked.drop("items")
    assert (report.table, report.rows, report.sinks) == ("items", 3, ("archive",)) and report.until is not None
    assert stocked.tables() == []


def test_a_table_comes_back_with_its_rows_its_history_and_its_generation(stocked: sl.Lake) -> None:
    items = stocked.table("items")
    generation, seqs = items.entry.generation, [entry.seq for entry in items.history()]
    stocked.drop("items")
    with refused(sl.NotFound):
        items.upsert([{"id": 9, "name": "x"}])
    (dropped,) = stocked.dropped()
    assert (dropped.table, dropped.generation, dropped.rows, dropped.is_exact) == ("items", generation, 3, True)
    assert dropped.until > dropped.at
    back = stocked.undrop("items")
    assert names(back) == ["A", "b", "c"] and names(back, at=1) == ["a"]
    assert back.entry.generation == generation and [entry.seq for entry in back.history()][: len(seqs)] == seqs
    assert items.upsert([{"id": 9, "name": "x"}]).rows == 1, "who had it open writes on"
    assert stocked.dropped() == [] and examine(stocked.storage).is_sound
    other = sl.Lake(stocked.storage.uri)
    assert other.tables() == ["items"] and other.table("items").count() == 4
    other.vacuum(grace=0, keep=0)
    assert other.table("items").count() == 4


def test_the_sinks_of_a_table_that_came_back_go_on_where_they_were(stocked: sl.Lake, tmp_path: Path) -> None:
    stocked.sink("archive", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    assert stocked.tick().rows == 3
    stocked.table("items").upsert([{"id": 4, "name": "d"}])
    stocked.drop("items")
    failed = next(each for each in stocked.tick().consumers if each.name == "archive")
    assert isinstance(failed.error, sl.NotFound)
    stored = sl.Lake(stocked.storage.uri).tick().consumers[0]
    assert stored.error is not None and "undrop items" in str(stored.error.hint)
    stocked.undrop("items")
    report = stocked.tick()
    assert (report.rows, report.is_well) == (1, True)


def test_a_table_comes_back_under_another_name_when_its_own_is_taken(stocked: sl.Lake) -> None:
    stocked.drop("items")
    stocked.create_table("items", ITEMS, key=["id"])
    with pytest.raises(sl.Invalid) as caught:
        stocked.undrop("items")
    assert "--as" in str(caught.value.hint)
    assert names(stocked.undrop("items", to="old")) == ["A", "b", "c"]
    assert stocked.tables() == ["items", "old"] and stocked.table("items").count() == 0
    stocked.rename("old", "older")
    stocked.drop("older")
    assert names(stocked.undrop("older")) == ["A", "b", "c"]


def test_of_several_the_last_dropped_comes_back_or_the_one_that_is_named(stocked: sl.Lake) -> None:
    first = stocked.drop("items").generation
    stocked.create_table("items", ITEMS, key=["id"]).upsert([{"id": 7, "name": "second"}])
    stocked.drop("items")
    assert [table.rows for table in stocked.dropped()] == [1, 3]
    assert names(stocked.undrop("items")) == ["second"]
    assert names(stocked.undrop("items", to="first", generation=first[:8])) == ["A", "b", "c"]
    with refused(sl.NotFound):
        stocked.undrop("items", to="third")


def test_what_a_vacuum_has_deleted_does_not_come_back(stocked: sl.Lake) -> None:
    stocked.drop("items")
    stocked.vacuum()
    assert len(stocked.dropped()) == 1, "its files stay for the grace time"
    stocked.vacuum(grace=0)
    assert stocked.dropped() == []
    with refused(sl.NotFound):
        stocked.undrop("items")
    assert list(stocked.storage.list("tables")) == []


def test_a_vacuum_that_found_the_table_dropped_leaves_it_when_it_has_come_back(stocked: sl.Lake) -> None:
    """The vacuum has read the catalog; then the table comes back, also before its entry is written."""
    stocked.drop("items")
    found = sweeping.leftovers(stocked.storage, now_s=stocked.storage.now_s() + 1, grace_s=0)
    assert [each.is_dropped for each in found] == [True]
    stocked.undrop("items")
    sweeping.sweep(stocked.storage, found)
    assert names(stocked.table("items")) == ["A", "b", "c"]


def test_a_vacuum_that_has_begun_cannot_be_overtaken(stocked: sl.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    stocked.drop("items")
    entry = stocked.catalog.generations().dropped[stocked.dropped()[0].generation].entry
    assert sweeping._claim_dropped(stocked.storage, entry.folder)
    assert stocked.dropped() == []
    with refused(sl.NotFound):
        stocked.undrop("items")
    stocked.vacuum(grace=0)
    assert list(stocked.storage.list("tables")) == []


def test_a_process_killed_in_an_undrop_leaves_a_table_that_can_be_brought_back(stocked: sl.Lake) -> None:
    stocked.drop("items")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).undrop('items')"
    ended = python(code, stocked.storage.uri, crash="undrop.log_opened")
    assert ended.returncode != 0
    assert stocked.tables() == []
    stocked.vacuum(grace=0)
    assert [table.table for table in stocked.dropped()] == ["items"], "no vacuum deletes it"
    assert names(stocked.undrop("items")) == ["A", "b", "c"]


def test_a_vacuum_killed_before_it_deletes_is_completed_by_the_next(stocked: sl.Lake) -> None:
    stocked.drop("items")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).vacuum(grace=0)"
    assert python(code, stocked.storage.uri, crash="sweep.claimed").returncode != 0
    assert stocked.dropped() == []
    with refused(sl.NotFound):
        stocked.undrop("items")
    stocked.vacuum(grace=0)
    assert list(stocked.storage.list("tables")) == []
