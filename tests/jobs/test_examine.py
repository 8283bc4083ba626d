"""The doctor sees what is wrong, leaves alone what is needed, and repairs what can be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import examined
import strandline as sl
from examined import live_file, notes, rows, wrong
from strandline.jobs.doctor import Report, examine
from support import ITEMS, by_id, files_below

folder = examined.folder
check = examined.check


def test_a_sound_lake_has_nothing_wrong_and_nothing_is_changed(folder: Path, check: Callable[..., Report]) -> None:
    before = files_below(folder.parents[2])
    for deep in (False, True):
        report = check(deep=deep, repair=True)
        assert report.is_sound
        assert notes(report) == []
        assert (report.tables, report.is_deep) == (2, deep)
    assert files_below(folder.parents[2]) == before


def test_an_empty_lake_is_sound(lake: sl.Lake, check: Callable[..., Report]) -> None:
    lake.catalog.ensure_lake()
    assert check(deep=True).is_sound


@pytest.mark.parametrize("part", ["log", "baseline"])
def test_a_missing_file_is_found(folder: Path, check: Callable[..., Report], part: str) -> None:
    live_file(folder, part).unlink()
    for deep in (False, True):
        report = check(deep=deep)
        assert [table for table, _ in wrong(report)] == ["items"]
        assert "missing" in wrong(report)[0][1]


@pytest.mark.parametrize("part", ["log", "baseline"])
def test_a_torn_file_is_found_and_does_not_stop_the_rest(folder: Path, check: Callable[..., Report], part: str) -> None:
    file = live_file(folder, part)
    file.write_bytes(file.read_bytes()[:-10])
    events = Path(sl.Lake(folder.parents[2]).table("events").entry.folder)
    next((folder.parents[2] / events / "log").glob("*.parquet")).unlink()
    assert {table for table, _ in wrong(check())} == {"items", "events"}


def test_a_missing_or_torn_commit_is_found_and_nothing_is_deleted_then(
    folder: Path, lake: sl.Lake, check: Callable[..., Report]
) -> None:
    orphan = folder / "log" / f"0000-{'a' * 32}.parquet"
    orphan.write_bytes(b"x")
    commit = folder / "log/_delta_log" / f"{1:020d}.json"
    text = commit.read_text()
    commit.write_text(text[:50])
    assert wrong(check(repair=True))
    assert broken(sl.Lake(lake.storage.uri).vacuum(grace=0)) == {"items": "Corrupt"}
    commit.unlink()
    assert any("missing before others" in what for _, what in wrong(check(repair=True)))
    assert broken(sl.Lake(lake.storage.uri).vacuum(grace=0)) == {"items": "Corrupt"}
    assert orphan.exists()
    commit.write_text(text)
    assert check(repair=True).is_sound
    assert broken(sl.Lake(lake.storage.uri).vacuum(grace=0)) == {}
    assert not orphan.exists()


def test_a_checkpoint_that_lies_is_found(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    lake.table("items").log.delta.checkpoint()
    checkpoint = next((folder / "log/_delta_log").glob("*.checkpoint.parquet"))
    rows_ = pq.read_table(checkpoint)
    kept = [
        i
        for i, add in enumerate(rows_.column("add").to_pylist())
        if not add or add["partitionValues"] != [("_seq", "1")]
    ]
    pq.write_table(rows_.take(pa.array(kept)), checkpoint)
    assert any("does not match" in what or "do not match" in what for _, what in wrong(check()))
    assert check(repair=True).is_sound
    assert notes(check()) == []


def broken(vacuumed: Any) -> dict[str, str]:
    return {table.name: table.kind for table in vacuumed.tables if hasattr(table, "kind")}


@pytest.mark.parametrize("damage", ["gap", "garbage", "format"])
def test_a_broken_catalog_is_wrong_and_stops_deleting(folder: Path, check: Callable[..., Report], damage: str) -> None:
    orphan = folder / "log" / f"0000-{'a' * 32}.parquet"
    orphan.write_bytes(b"x")
    catalog = folder.parents[2] / "catalog"
    entry = catalog / f"{1:020d}.json"
    if damage == "gap":
        entry.unlink()
    elif damage == "garbage":
        entry.write_text("garbage")
    else:
        first = catalog / f"{0:020d}.json"
        first.write_text(first.read_text().replace('"format":2', '"format":99'))
    assert not check(repair=True).is_sound
    assert orphan.exists()


def test_a_lake_on_an_object_store_is_examined(s3_lake: Callable[..., sl.Lake]) -> None:
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert(rows(1, 2, 3))
    table.compact(full=True)
    with lake.storage.output(f"{table.entry.folder}/log/0000-{'a' * 32}.parquet") as out:
        out.write(b"x")
    assert examine(lake.storage, deep=True).is_sound
    assert lake.vacuum(grace=0).tables[0].deleted_files == 1
    assert examine(lake.storage, deep=True).findings == ()
    assert by_id(table) == {1: "n1", 2: "n2", 3: "n3"}


def test_a_horizon_before_1970_is_sound(lake: sl.Lake, check: Callable[..., Report]) -> None:
    table = lake.create_table("old", "at:timestamp, name:string", time="at")
    table.append([{"at": dt.datetime(1950, 1, 1, tzinfo=dt.UTC), "name": "a"}])
    table.expire(dt.datetime(1960, 1, 1))
    assert check().is_sound
