"""The two sides of a copy: a place that is no copy of this lake is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import copies
import strandline as sl
from copies import (
    Meddled,
    check_copy,
    left_as_it_was,
    more,
    once,
    rows,
    small,
)
from strandline.jobs.backup import backup, copy_lake, restore
from strandline.storage.open import LocalStorage
from support import (
    ITEMS,
    refused,
)

target = copies.target


def test_a_target_with_another_lake_is_refused(lake, target):
    small(lake)
    small(sl.Lake(target))
    with left_as_it_was(target), refused(sl.Invalid, path=str(target)):
        backup(lake, target)


@pytest.mark.parametrize(
    "name", ["notes.txt", "tables/items/x/log/1.parquet", "catalog/notes", "items/_delta_log/0.json"]
)
def test_a_target_with_files_and_no_lake_is_refused(lake, target, tmp_path, name):
    small(lake)
    backup(lake, tmp_path / "good")
    (target / name).parent.mkdir(parents=True)
    (target / name).write_text("mine")
    for call in (lambda: backup(lake, target), lambda: restore(tmp_path / "good", target)):
        with left_as_it_was(target), refused(sl.Invalid, path=name):
            call()


def test_a_target_that_was_written_to_is_refused(lake, target):
    small(lake)
    backup(lake, target)
    # At a seq that the source has not reached, and then, written there otherwise, at one that it has.
    sl.Lake(target).table("items").upsert(rows(1, name="theirs"))
    head = lake.table("items").head
    path = f"{lake.table('items').log.folder}/_delta_log/{head + 1:020d}.json"
    for _ in range(2):
        lake.table("events").append(rows(5))
        with left_as_it_was(target), refused(sl.Conflict, path=path):
            backup(lake, target)
        if lake.table("items").head == head:
            lake.table("items").upsert(rows(1, name="ours"))


def test_a_target_whose_catalog_went_its_own_way_is_refused(lake, target):
    small(lake)
    backup(lake, target)
    sl.Lake(target).drop("items")
    with left_as_it_was(target), refused(sl.Conflict, path=f"catalog/{3:020d}.json"):
        backup(lake, target)
    lake.create_table("other", ITEMS)
    with left_as_it_was(target), refused(sl.Conflict, path=f"catalog/{3:020d}.json"):
        backup(lake, target)


def test_a_target_that_another_copy_brought_further_is_no_conflict(lake, target):
    small(lake)
    entry = lake.table("items").entry

    def meddle() -> None:
        """After the state was fixed: the lake goes on, and another process copies it."""
        more(lake)
        backup(lake, target)

    hook = once(lambda verb, path: verb == "list" and path == entry.folder, meddle)
    report = copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    assert dict(report.tables)["items"] < lake.table("items").head
    check_copy(lake, sl.Lake(target))


def test_a_target_in_the_lake_or_around_it_is_refused(lake, tmp_path):
    small(lake)
    root = Path(lake.storage.uri)
    (tmp_path / "link").symlink_to(root)
    for place in (root, root / "backup", tmp_path / "link", tmp_path / "link" / "x", tmp_path):
        with left_as_it_was(root), refused(sl.Invalid, path=str(place)):
            backup(lake, place)
    backup(lake, f"{root}-copy")


def test_no_lake_can_neither_be_backed_up_nor_restored(lake, tmp_path, target):
    with refused(sl.NotFound):
        backup(lake, target)
    with refused(sl.NotFound):
        restore(tmp_path / "nothing", target)
    assert not target.exists()


def test_a_restore_over_a_lake_is_refused(lake, target, tmp_path):
    small(lake)
    backup(lake, target)
    for root in (Path(lake.storage.uri), tmp_path / "other"):
        if not root.exists():
            small(sl.Lake(root))
        with left_as_it_was(root), refused(sl.Invalid, path=str(root)):
            restore(target, root)


def test_a_place_that_takes_no_folders_is_refused_by_name(lake):
    lake.create_table("items", ITEMS, key=["id"])
    with refused(sl.Unavailable) as caught:
        lake.backup("/proc/nothing/here")
    assert "/proc/nothing" in caught.value.message
