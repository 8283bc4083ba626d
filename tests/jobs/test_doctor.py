"""The doctor sees what is wrong, leaves alone what is needed, and repairs what can be."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.jobs.doctor import Report, examine
from strandline.storage.open import LocalStorage
from strandline.storage.snapshot import Draft
from support import ITEMS, by_id, files_below, python, rewrite_commits


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": i, "name": f"{name}{i}", "qty": i % 5} for i in ids]


@pytest.fixture
def folder(items: sl.Table) -> Path:
    """The folder of a table with some history: commits, a delete, two folds, an append-only neighbour."""
    lake = sl.Lake(items.log.storage.uri)
    table = lake.table("items")
    table.upsert(rows(*range(100)))
    table.compact(full=True)
    table.upsert(rows(*range(50, 150), name="m"))
    table.delete([1, 2, 3])
    table.compact(full=True)
    table.upsert(rows(200))
    events = lake.create_table("events", ITEMS)
    events.append(rows(1, 2))
    events.compact(full=True)
    events.append(rows(3))
    return Path(lake.storage.uri) / table.entry.folder


@pytest.fixture
def check(lake: sl.Lake) -> Callable[..., Report]:
    def run(**options: Any) -> Report:
        return examine(LocalStorage(lake.storage.uri), **options)

    return run


def wrong(report: Report) -> list[tuple[str | None, str]]:
    return [(f.table, f.what) for f in report.findings if f.severity == "wrong"]


def notes(report: Report) -> list[str | None]:
    """The commands that notes name, without those about folding."""
    return [f.command for f in report.findings if not (f.command or "").startswith("compact ")]


def aged(path: Path, seconds: float = 7200) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def live_file(folder: Path, part: str) -> Path:
    snapshot = sl.Lake(folder.parents[2]).table("items")
    files = (snapshot.log if part == "log" else snapshot.baseline).refresh().snapshot.files
    # The largest, with rows enough to be in a wrong order.
    return folder / part / max(files, key=lambda path: (files[path].size, path))


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


def test_a_row_count_that_is_not_the_commits_is_found(folder: Path, check: Callable[..., Report]) -> None:
    file = live_file(folder, "baseline")

    def one_more(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path") == file.name:
            stats = json.loads(action["add"]["stats"])
            action["add"]["stats"] = json.dumps({**stats, "numRecords": stats["numRecords"] + 1})

    rewrite_commits(file.parent / "_delta_log", one_more)
    assert any("rows; its commit says" in what for _, what in wrong(check()))


def _rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a file by one of changed rows, and its size in the commit, so that only the rows are wrong."""
    table = pq.read_table(file)
    pq.write_table(change(table), file, compression="zstd")
    size = file.stat().st_size

    def resize(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("path") == file.name:
            action["add"]["size"] = size

    rewrite_commits(file.parent / "_delta_log", resize)


def _reversed(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1)))


def _doubled(table: pa.Table) -> pa.Table:
    return table.take(pa.array([0, *range(table.num_rows - 1)]))


def _misplaced(table: pa.Table) -> pa.Table:
    at = table.column_names.index("id")
    return table.set_column(at, table.schema.field("id"), pa.array(range(1000, 1000 + table.num_rows)))


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("change", [_reversed, _doubled, _misplaced])
def test_only_a_deep_look_finds_wrong_rows(
    folder: Path, check: Callable[..., Report], part: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    _rewritten(live_file(folder, part), change)
    assert check().is_sound
    assert [table for table, _ in wrong(check(deep=True))] == ["items"]


def test_a_key_in_two_files_of_a_commit_is_found_by_a_deep_look(
    items: sl.Table, lake: sl.Lake, check: Callable[..., Report]
) -> None:
    from strandline.model.rows import checked
    from strandline.tables.log import prepare

    definition = items.definition
    changes = prepare(next(checked(rows(1, 2, 3), ITEMS)), definition, "upsert")
    files = [*items.log.write(changes, definition), *items.log.write(changes, definition)]
    items.log.commit(files, operation="UPSERT")
    assert any("in two files" in what for _, what in wrong(check(deep=True)))


def test_marks_past_the_head_are_found(folder: Path, lake: sl.Lake, check: Callable[..., Report]) -> None:
    lake.table("items").baseline.delta.commit("TEST", lambda s, now: Draft(txns={"fold/0": 99}))
    assert any("folded up to 99" in what for _, what in wrong(check()))


def test_a_seq_that_is_not_its_commits_version_is_found(folder: Path, check: Callable[..., Report]) -> None:
    def move(action: dict[str, Any]) -> None:
        if action.get("add", {}).get("partitionValues") == {"_seq": "1"}:
            action["add"]["partitionValues"] = {"_seq": "7"}

    rewrite_commits(folder / "log/_delta_log", move)
    assert any("with seq 7" in what for _, what in wrong(check()))


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


@pytest.mark.parametrize("damage", ["pointer", "pointer to nothing", "checkpoint", "both"])
def test_a_bad_checkpoint_is_written_anew_from_the_commits(
    folder: Path, lake: sl.Lake, check: Callable[..., Report], damage: str
) -> None:
    lake.table("items").log.delta.checkpoint()
    before = by_id(lake.table("items"))
    pointer = folder / "log/_delta_log/_last_checkpoint"
    checkpoint = next((folder / "log/_delta_log").glob("*.checkpoint.parquet"))
    if damage in ("pointer", "both"):
        pointer.write_text("{")
    if damage == "pointer to nothing":
        pointer.write_text('{"version": 2, "size": 5}')
    if damage in ("checkpoint", "both"):
        checkpoint.write_bytes(b"PAR1 nonsense")
    found = check()
    assert not found.is_sound
    assert {f.repair for f in found.findings if f.severity == "wrong"} == {"checkpoint"}
    assert check(repair=True).is_sound
    assert notes(check()) == []
    assert by_id(sl.Lake(lake.storage.uri).table("items")) == before


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
