"""How a lake is looked after: what could be deleted, told in the words of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import examined
import strandline as sl
from examined import aged, notes
from strandline.jobs.doctor import Report
from support import by_id, files_below

folder = examined.folder
check = examined.check


def test_orphans_are_notes_and_only_old_ones_go(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    old = [
        folder / "log" / f"0000-{'a' * 32}.parquet",
        folder / "log" / f"spool-{'b' * 32}.parquet",
        folder / "baseline" / f"0000-{'c' * 32}.parquet",
        folder / "log" / ".tmp-1234-0000-x.parquet",
    ]
    young, stranger = folder / "log" / f"0000-{'d' * 32}.parquet", folder / "log" / "README.txt"
    for path in [*old, young, stranger]:
        path.write_bytes(b"x")
        aged(path, 10 if path == young else 7200)
    report = check()
    assert report.is_sound
    assert notes(report) == [None, None, "vacuum items", "vacuum"]
    assert [f.what.split(",")[0] for f in report.findings if f.command and "vacuum" in f.command] == [
        "3 files that nothing needs",
        "1 file that were never finished",
    ]
    lake.vacuum(dry_run=True)
    assert all(path.exists() for path in old)
    lake.vacuum()
    assert [path.exists() for path in [*old, young, stranger]] == [False] * 4 + [True, True]


def test_files_that_older_versions_need_stay(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    table = lake.table("items")
    states = {seq: by_id(table, at=seq) for seq in range(table.head + 1)}
    for path in folder.rglob("*"):
        if path.is_file():
            aged(path)
    assert notes(check(repair=True)) == []
    lake.vacuum(grace=0)
    fresh = sl.Lake(lake.storage.uri).table("items")
    assert {seq: by_id(fresh, at=seq) for seq in states} == states


def test_a_dropped_table_goes_after_the_grace_time(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    lake.drop("items")
    assert notes(check(repair=True)) == []
    lake.vacuum()
    assert files_below(folder)
    lake.vacuum(grace=0)
    assert not files_below(folder)
    assert notes(check()) == []
    assert lake.table("events").to_arrow().num_rows == 3
