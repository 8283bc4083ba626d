"""What a target lacks of one Delta table: commits, checkpoints, pointers, also behind a gap."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import copies
import strandline as sl
from copies import Cut, Cutting, Meddled, check_copy, check_table, grown, once, rows, small, state, states
from strandline.jobs.backup import backup, copy_lake, restore
from strandline.storage import delta
from strandline.storage.delta_files import CommitChain
from strandline.storage.open import LocalStorage
from strandline.tables.baseline import Baseline
from strandline.tables.log import Log
from support import (
    ITEMS,
    files_below,
    refused,
    rows_of,
    trim,
)

target = copies.target


def clean(part: Any) -> None:
    """Delete what lies before the last checkpoint of a log or baseline, and say so before, as a vacuum does."""
    # It is written beside the commits.
    part.delta.await_checkpoint()
    folder = Path(part.storage.uri) / part.folder / "_delta_log"
    last = json.loads((folder / "_last_checkpoint").read_text())["version"]
    if isinstance(part, Baseline):
        part.keep_from(lambda state: last)
    part.delta.chain.checkpoints.set_alone(last)
    for path in folder.glob("*"):
        if path.name[:20].isdigit() and int(path.name[:20]) < last:
            path.unlink()


def test_a_log_without_its_first_commits_is_copied_as_it_is(lake, target):
    small(lake)
    table = grown(lake, 60)
    clean(table.log)
    # A writer that slept for long may have left a commit there, which nobody reads.
    stray = f"{table.log.folder}/_delta_log/{3:020d}.json"
    lake.storage.put_new(stray, b"{}")
    backup(lake, target)
    assert stray not in files_below(target)
    lake.storage.delete([stray])
    copy = sl.Lake(target).table("items")
    fresh = sl.Lake(lake.storage.uri).table("items")
    assert (copy.head, rows_of(copy.to_arrow())) == (table.head, rows_of(table.to_arrow()))
    first = len(fresh.history())
    assert len(copy.history()) == first < table.head
    for seq in range(table.head - first + 1, table.head + 1):
        assert state(copy, seq) == state(fresh, seq)
    check_table(copy)


def test_files_that_only_a_checkpoint_names_are_copied(lake, target):
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=4)
    table.upsert(rows(*range(40)))
    table.compact(full=True)
    for n in range(60):
        table.upsert(rows(n % 3, name=str(n)))
        table.compact(full=True)
    table.upsert(rows(*range(40)))
    table.compact(full=True)
    clean(table.baseline)
    fresh = sl.Lake(lake.storage.uri)
    kept = states(fresh)["items"]
    assert kept[0] is None
    assert kept[-5] is not None
    backup(lake, target)
    assert states(sl.Lake(target))["items"] == kept
    check_table(sl.Lake(target).table("items"))


@pytest.fixture(params=["log", "log and baseline", "baseline"])
def behind(lake: sl.Lake, target: Path, request: Any, monkeypatch: pytest.MonkeyPatch) -> sl.Table:
    """A table of which the source has no commit files any more that lead on from the copy."""
    monkeypatch.setattr(delta, "RESTED_S", -60.0)
    small(lake)
    backup(lake, target)
    if request.param == "log":
        table = grown(lake, 60)
        trim(table, table.head)
        table.upsert(rows(99))
        clean(table.log)
    elif request.param == "log and baseline":
        table = grown(lake, 60)
        table.purge([5])
        table.vacuum(grace=0, keep=0)
        table.upsert(rows(99))
        assert table.oldest > 4
    else:
        table = grown(lake, 3)
        table.purge([5])
        clean(table.baseline)
    return table


def test_a_copy_that_fell_behind_what_the_source_keeps_catches_up(behind, lake, target, tmp_path):
    backup(lake, target)
    copy = sl.Lake(target).table("items")
    assert (copy.head, state(copy)) == (behind.head, state(behind))
    check_table(copy)
    # What is restored from it lacks what lies before the gap, as the source does.
    restore(target, tmp_path / "restored")
    restored = sl.Lake(tmp_path / "restored").table("items")
    assert states(sl.Lake(tmp_path / "restored")) == states(lake)
    check_table(restored)
    restored.vacuum(grace=0, keep=0)
    assert state(sl.Lake(tmp_path / "restored").table("items")) == state(behind)


def test_a_copy_that_is_cut_off_when_it_catches_up_never_shows_wrong_rows(behind, lake, target, tmp_path, request):
    old = sl.Lake(target).table("items")
    expected = {old.head: state(old), behind.head: state(behind)}
    shutil.copytree(target, tmp_path / "whole")
    writes = backup(lake, tmp_path / "whole").files_copied
    seen = []
    for left in range(1, min(writes, 25)):
        partly = tmp_path / f"partly{left}"
        shutil.copytree(target, partly)
        with pytest.raises(Cut):
            copy_lake(lake.storage, Cutting(str(partly), writes - left))
        head = Log(LocalStorage(str(partly)), f"{behind.entry.folder}/log").refresh().head
        try:
            found = state(sl.Lake(partly).table("items"))
            # On the way there are states that the source no longer has.
            assert found == expected.get(head, found)
            seen.append((head, "read"))
        except sl.Corrupt:
            seen.append((head, "refused"))
            with refused(sl.Corrupt, table="items"):
                restore(partly, tmp_path / "never")
        if left % 5 == 1:
            backup(lake, partly)
            assert state(sl.Lake(partly).table("items")) == expected[behind.head]
    assert (old.head, "read") in seen
    assert (old.head, "refused") in seen
    assert (behind.head, "refused") not in seen
    if "log" in request.node.callspec.id:
        assert seen.count((old.head, "refused")) <= 2, "the two jumps follow each other closely"


def test_a_pointer_behind_the_fixed_state_is_replaced_by_one_to_the_last_checkpoint_before_it(lake, target):
    small(lake)
    table = grown(lake, 60)
    clean(table.log)
    head = table.head
    assert head < 100

    def meddle() -> None:
        grown(lake, 60)

    hook = once(lambda verb, path: verb == "list" and path == table.entry.folder, meddle)
    copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    copy = sl.Lake(target).table("items")
    assert (copy.head, rows_of(copy.to_arrow())) == (head, rows_of(table.to_arrow(at=head)))
    check_table(copy)


def test_a_pointer_in_the_target_is_not_set_back(lake, target):
    small(lake)
    table = lake.table("items")
    table.log.delta.checkpoint()

    def meddle() -> None:
        table.upsert(rows(50))
        table.log.delta.checkpoint()
        backup(lake, target)

    hook = once(lambda verb, path: verb == "list" and path == table.entry.folder, meddle)
    copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    pointers = [
        CommitChain(LocalStorage(str(root)), table.log.folder).checkpoints for root in (target, lake.storage.uri)
    ]
    assert [each.pointed_version() for each in pointers] == [table.head, table.head]
    check_copy(lake, sl.Lake(target))
