"""What lies in a lake and is needed by nothing: found, told of, and deleted only when nothing is in doubt."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import examined
import strandline as sl
from examined import aged, notes, wrong
from strandline.jobs.doctor import Report
from support import ITEMS, by_id, files_below, python

folder = examined.folder
check = examined.check


NOW = {"keep": 0, "grace": 0}


def fill(table, commits=4, start=0):
    for at in range(start, start + commits):
        table.upsert([{"id": at, "name": f"n{at}"}, {"id": -1, "name": f"last{at}"}])


def test_a_lake_is_cleaned_of_dropped_tables_and_unfinished_files(lake, make_table):
    kept, dropped = make_table(ITEMS, key=["id"]), make_table(ITEMS, key=["id"])
    for table in (kept, dropped):
        fill(table)
        table.compact(full=True)
    root = Path(lake.storage.uri)
    lake.drop(dropped.name)
    temporary = root / kept.log.folder / ".tmp-00-x.parquet"
    temporary.write_text("half")
    unfinished = root / "tables" / "never" / ("0" * 32) / "log" / "_delta_log" / f"{0:020d}.json"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("{}")
    # Young ones may be of a table that is being created just now.
    os.utime(unfinished, (1, 1))
    before = files_below(root)
    report = lake.vacuum(keep=0)
    assert not [found for found in report.leftovers if found.table == dropped.name], "the grace time is not over"
    assert {name for name in before if dropped.entry.folder in name} <= files_below(root)
    time.sleep(0.05)
    report = lake.vacuum(**NOW, dry_run=True)
    assert temporary.exists()
    assert report.to_dict()["leftover_files"] > 2, "the dropped table's"
    report = lake.vacuum(**NOW)
    left = files_below(root)
    assert not [name for name in left if dropped.entry.folder in name or ".tmp-" in name or "/never/" in name]
    assert len(by_id(sl.Lake(root).table(kept.name))) == 5
    assert lake.vacuum(**NOW).to_dict()["leftover_files"] == 0


def test_a_table_that_the_catalog_lost_is_never_deleted(
    folder: Path, lake: sl.Lake, check: Callable[..., Report]
) -> None:
    """A catalog that was set back to an older state: its later tables look like leftovers."""
    entries = sorted((folder.parents[2] / "catalog").glob("*.json"))
    entries[-1].unlink()
    before = files_below(folder.parents[2] / "tables")
    report = check(repair=True)
    assert notes(report) == [None]
    assert [table for table, _ in wrong(report)] == ["events"]
    sl.Lake(lake.storage.uri).vacuum(grace=0)
    entries[0].rename(entries[0].with_suffix(".bak"))
    assert not check(repair=True).is_sound
    assert files_below(folder.parents[2] / "tables") >= before


def test_a_dropped_mark_without_a_dropped_log_keeps_the_files(
    folder: Path, lake: sl.Lake, check: Callable[..., Report]
) -> None:
    lake.catalog.drop(lake.table("items").entry)
    before = files_below(folder)
    assert notes(check(repair=True)) == [None]
    lake.vacuum(grace=0)
    assert files_below(folder) == before


def test_what_a_crashed_import_left_is_reclaimed(tmp_path: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).import_table('x', sys.argv[2], key=['id'])"
    for point in ("log.file_written", "delta.before_commit"):
        assert python(code, lake.storage.uri, str(tmp_path / "a.parquet"), crash=point).returncode == -9
    assert lake.tables() == []
    assert check(repair=True).is_sound
    lake.vacuum(grace=0)
    assert files_below(Path(lake.storage.uri) / "tables"), "it may be a table that is being made"
    for path in (Path(lake.storage.uri) / "tables").rglob("*"):
        if path.is_file():
            aged(path)
    lake.vacuum(grace=0)
    assert files_below(Path(lake.storage.uri) / "tables") == set()
    assert check().findings == ()
