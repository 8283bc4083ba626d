"""A copy of a lake is that lake: taken while others write it, again and again, and after every kind of crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import copies
import strandline as sl
from copies import (
    Cut,
    Meddled,
    check_copy,
    check_unfinished,
    large,
    more,
    now,
    once,
    rows,
    small,
    states,
)
from strandline.jobs.backup import BackupReport, backup, copy_lake, restore
from strandline.storage.open import open_storage
from support import (
    BUCKET,
    ITEMS,
    by_id,
    data_files,
    files_below,
    options_for,
    refused,
    rows_of,
)

target = copies.target


# --- round trips -----------------------------------------------------------------------------------------------


def test_a_backup_is_the_lake_and_so_is_what_is_restored_from_it(lake, tmp_path, target):
    small(lake)
    more(lake)
    prices = lake.create_table("prices", ITEMS, key=["name"], version="qty", vnodes=2)
    prices.upsert([{"id": 1, "name": "a", "qty": 5}])
    prices.upsert([{"id": 2, "name": "a", "qty": 4}])
    file = tmp_path / "loads.jsonl"
    file.write_text('{"id": 1, "name": "x"}\n{"id": "bad"}\n{"id": 2, "name": "y"}\n')
    loads = lake.create_table("loads", ITEMS, key=["id"], vnodes=1)
    lake.ingest("loads", [str(file)], rejects=True)
    lake.create_table("empty", ITEMS, vnodes=1)

    report = backup(lake, target)
    assert dict(report.tables) == {name: lake.table(name).head for name in lake.tables()}
    assert (report.uri, report.files_skipped) == (str(target), 0)
    assert report.files_copied == len(files_below(target))
    assert report.bytes_copied == sum((target / name).stat().st_size for name in files_below(target))
    assert json.loads(json.dumps(report.to_dict()))["tables"][0] == {"name": "empty", "seq": 0}
    check_copy(lake, sl.Lake(target))

    again = restore(target, tmp_path / "restored")
    assert (again.tables, again.files_copied) == (report.tables, report.files_copied)
    restored = sl.Lake(tmp_path / "restored")
    check_copy(lake, restored)
    assert restored.ingest("loads", [str(file)], rejects=True).count("skip") == 1
    assert restored.table("loads").upsert(rows(7)).seq == loads.head + 1
    assert restored.table("prices").upsert([{"id": 3, "name": "a", "qty": 3}]).seq == 3
    assert rows_of(restored.table("prices").to_arrow()) == rows_of(prices.to_arrow())
    check_copy(lake, sl.Lake(target))


def test_a_lake_without_tables_can_be_copied(lake, target):
    lake.catalog.ensure_lake()
    assert backup(lake, target).files_copied == 1
    check_copy(lake, sl.Lake(target))


def test_a_second_backup_copies_only_what_is_new(lake, target):
    small(lake)
    first = backup(lake, target)
    same = backup(lake, target)
    assert (same.files_copied, same.bytes_copied, same.files_skipped) == (0, 0, first.files_copied)
    lake.table("items").upsert(rows(50))
    second = backup(lake, target)
    # A data file and its commit.
    assert (second.files_copied, second.files_skipped) == (2, first.files_copied)
    before = data_files(lake.table("items"))
    lake.table("items").compact(full=True)
    lake.drop("events")
    third = backup(lake, target)
    folded = len(data_files(lake.table("items")) - before)
    assert folded and third.files_copied == folded + 2, "a fold's files and commit, and the catalog's entry"
    assert dict(third.tables) == {"items": lake.table("items").head}
    assert sl.Lake(target).tables() == ["items"]
    assert states(sl.Lake(target)) == states(lake)


def test_dropped_tables_are_not_copied_and_a_recreated_one_is_the_later(lake, target):
    small(lake)
    dropped = lake.table("items").entry.folder
    lake.drop("items")
    lake.create_table("items", ITEMS, key=["id"], vnodes=1).upsert(rows(1))
    backup(lake, target)
    assert not [name for name in files_below(target) if name.startswith(dropped)]
    check_copy(lake, sl.Lake(target))
    lake.drop("items")
    lake.create_table("items", ITEMS, key=["id"], vnodes=1).upsert(rows(2))
    backup(lake, target)
    assert by_id(sl.Lake(target).table("items")) == {2: "n2"}


def test_leftovers_claims_and_unfinished_files_are_not_copied(lake, target):
    small(lake)
    folder = Path(lake.storage.uri)
    log = folder / lake.table("items").log.folder
    for path in (
        folder / "_check" / "1",
        folder / "pins" / "x" / "1.json",
        log / f"0000-{0:032x}.parquet",
        log / ".tmp-0-x.parquet",
        log / "_delta_log" / ".tmp-0-y.json",
        log.parent / "health.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    backup(lake, target)
    check_copy(lake, sl.Lake(target))
    known = {"catalog", "tables"}
    assert {name.split("/")[0] for name in files_below(target)} == known
    assert not [name for name in files_below(target) if ".tmp-" in name or f"{0:032x}" in name or "health" in name]


# --- S3 --------------------------------------------------------------------------------------------------------


def test_a_lake_goes_to_s3_grows_there_and_comes_back(lake, tmp_path, seaweed):
    small(lake)
    options = options_for(seaweed)
    to = f"s3://{BUCKET}/backups/{tmp_path.name}"

    def on_s3() -> sl.Lake:
        return sl.Lake(to, storage_options=options)

    first = backup(lake, to, storage_options=options)
    assert now(on_s3()) == now(lake)
    assert backup(lake, to, storage_options=options).files_copied == 0
    more(lake)
    second = backup(lake, to, storage_options=options)
    assert second.files_skipped == first.files_copied
    check_copy(lake, on_s3())

    there: BackupReport = restore(to, f"{to}-again", storage_options=options)
    assert there.files_copied == first.files_copied + second.files_copied
    restore(f"{to}-again", tmp_path / "restored", storage_options=options)
    check_copy(lake, sl.Lake(tmp_path / "restored"))

    with refused(sl.Invalid):
        backup(on_s3(), f"{to}/inside", storage_options=options)
    with refused(sl.Invalid):
        restore(tmp_path / "restored", to, storage_options=options)
    other = sl.Lake(tmp_path / "other")
    small(other)
    with refused(sl.Invalid):
        backup(other, to, storage_options=options)
    on_s3().table("items").upsert(rows(1))
    with refused(sl.Conflict):
        backup(lake, to, storage_options=options)


def test_large_files_go_to_s3_and_back_whole(lake, tmp_path, seaweed):
    large(lake)
    options = options_for(seaweed)
    to = f"s3://{BUCKET}/backups/{tmp_path.name}"
    backup(lake, to, storage_options=options)
    restore(to, tmp_path / "restored", storage_options=options)
    restored = open_storage(str(tmp_path / "restored"))
    for side in (open_storage(to, options), restored):
        assert {info.path: side.read(info.path) for info in side.list("")} == {
            info.path: lake.storage.read(info.path) for info in lake.storage.list("")
        }


def test_a_copy_to_s3_that_was_cut_off_is_completed(lake, tmp_path, seaweed):
    small(lake)
    to = f"s3://{BUCKET}/backups/{tmp_path.name}"
    options = options_for(seaweed)
    source = Meddled(lake.storage.uri, once(lambda verb, path: verb == "input" and "baseline" in path, cut))
    with pytest.raises(Cut):
        copy_lake(source, open_storage(to, options))
    check_unfinished(to, storage_options=options)
    assert backup(lake, to, storage_options=options).files_skipped > 0
    check_copy(lake, sl.Lake(to, storage_options=options))


def cut() -> None:
    raise Cut
