"""How a copy is written: in an order that leaves what was or something newer, wherever it ends."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import copies
import strandline as sl
from copies import (
    Cut,
    Cutting,
    check_copy,
    check_table,
    check_unfinished,
    large,
    left_as_it_was,
    more,
    now,
    rows,
    small,
    state,
    states,
)
from strandline.jobs.backup import backup, copy_lake, restore
from strandline.tables.rejects import Rejects
from support import (
    ITEMS,
    claimed_files,
    python,
    refused,
)

target = copies.target


def test_a_file_larger_than_a_chunk_arrives_whole_and_progress_adds_up(lake, target):
    table = large(lake)
    said: list[tuple[int, int, str]] = []
    report = backup(lake, target, progress=lambda *step: said.append(step))
    copied = [step for step in said if step[1]]
    assert [done for done, _, _ in copied] == sorted(done for done, _, _ in copied)
    assert copied[-1][:2] == (report.bytes_copied, report.bytes_copied)
    assert len([step for step in copied if step[2] == "blobs"]) > 3
    assert sl.Lake(target).table("blobs").to_arrow().equals(table.to_arrow())


CHILD = """
import sys
import strandline as sl
from strandline.jobs.backup import backup, restore
if sys.argv[3] == "restore":
    restore(sys.argv[1], sys.argv[2])
else:
    backup(sl.Lake(sys.argv[1]), sys.argv[2])
"""
POINTS = ["backup.data_copied", "backup.log_copied", "backup.table_copied"]


def die(source: str | Path, to: str | Path, crash: str, verb: str = "backup") -> None:
    ended = python(CHILD, str(source), str(to), verb, crash=crash)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def check_partly(target: Path, history: dict[str, list[Any]], before: dict[str, int]) -> None:
    """A repeated copy that broke off: the tables there were, each whole, at what it had or at something later."""
    copy = sl.Lake(target)
    assert set(copy.tables()) == set(before)
    for name in copy.tables():
        table = copy.table(name)
        assert before[name] <= table.head < len(history[name])
        found = [state(table, seq) for seq in range(table.head + 1)]
        assert found[-1] is not None
        assert [(seq, rows) for seq, rows in enumerate(found) if rows not in (None, history[name][seq])] == []
        check_table(table)


@pytest.mark.parametrize("ordinal", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_backup_killed_at_a_point_is_completed_by_the_next(lake, target, point, ordinal):
    small(lake)
    die(lake.storage.uri, target, f"{point}:{ordinal}")
    check_unfinished(target)
    report = backup(lake, target)
    assert report.files_skipped > 0
    check_copy(lake, sl.Lake(target))
    before = dict(report.tables)
    history = recorded(lake)
    die(lake.storage.uri, target, f"{point}:{ordinal}")
    check_partly(target, history, before)
    assert backup(lake, target).files_skipped > report.files_copied
    check_copy(lake, sl.Lake(target))


def recorded(lake: sl.Lake) -> dict[str, list[Any]]:
    """Does `more`; returns every state of the tables that there were, those that are trimmed away as well."""
    history = states(lake)
    for name, found in history.items():
        table = lake.table(name)
        commit = table.log.delta.commit

        def commit_and_note(
            *args: Any, table: Any = table, found: Any = found, commit: Any = commit, **more: Any
        ) -> Any:
            landed = commit(*args, **more)
            while len(found) <= table.head:
                found.append(state(table))
            return landed

        table.log.delta.commit = commit_and_note  # type: ignore[method-assign]
    more(lake)
    return history


def check_locked(target: Path) -> None:
    """Nothing is created, dropped or renamed while entries of the catalog are missing."""
    with left_as_it_was(target):
        with refused(sl.Conflict):
            sl.Lake(target).create_table("mine", ITEMS)
        with refused(sl.Conflict):
            sl.Lake(target).drop("items")
        with refused(sl.Conflict):
            sl.Lake(target).rename("items", "mine")


def test_a_backup_killed_between_the_entries_of_the_catalog_is_completed_by_the_next(lake, target):
    small(lake)
    die(lake.storage.uri, target, "backup.catalog_begun")
    check_unfinished(target)
    check_locked(target)
    before = dict(backup(lake, target).tables)
    check_copy(lake, sl.Lake(target))
    history = recorded(lake)
    die(lake.storage.uri, target, "backup.catalog_begun")
    check_partly(target, history, before)
    check_locked(target)
    backup(lake, target)
    check_copy(lake, sl.Lake(target))


@pytest.mark.parametrize("point", POINTS)
def test_a_restore_killed_at_a_point_is_completed_by_the_next(lake, target, tmp_path, point):
    small(lake)
    backup(lake, target)
    die(target, tmp_path / "root", point, "restore")
    check_unfinished(tmp_path / "root")
    restore(target, tmp_path / "root")
    check_copy(lake, sl.Lake(tmp_path / "root"))
    with refused(sl.Invalid):
        restore(target, tmp_path / "root")


def test_a_copy_cut_off_after_any_of_its_writes_leaves_what_was_or_something_newer(lake, target, tmp_path):
    small(lake)
    before = dict(backup(lake, target).tables)
    history = recorded(lake)
    seen = set()
    writes = 0
    while True:
        partly = tmp_path / f"partly{writes}"
        shutil.copytree(target, partly)
        try:
            report = copy_lake(lake.storage, Cutting(str(partly), writes))
        except Cut:
            check_partly(partly, history, before)
            copy = sl.Lake(partly)
            seen.add(tuple(copy.table(name).head for name in copy.tables()))
            if writes % 5 == 0:
                backup(lake, partly)
                check_copy(lake, sl.Lake(partly))
        else:
            break
        shutil.rmtree(partly)
        writes += 1
    assert report.files_copied == writes - 1 > 20, "one more says that a copy is under way"
    assert len(seen) > 5, "the log advances commit by commit"
    check_copy(lake, sl.Lake(partly))


def test_a_first_copy_cut_off_after_any_of_its_writes_is_no_lake(lake, target, tmp_path):
    small(lake)
    lake.drop("events")
    lake.create_table("events", ITEMS, vnodes=1)
    whole = backup(lake, target).files_copied
    for writes in range(whole):
        partly = tmp_path / "partly"
        with pytest.raises(Cut):
            copy_lake(lake.storage, Cutting(str(partly), writes))
        check_unfinished(partly)
        # The lake goes on in between; what was copied is used.
        lake.table("items").upsert(rows(writes))
        backup(lake, partly)
        assert now(sl.Lake(partly)) == now(lake)
        shutil.rmtree(partly)


def test_rows_that_an_ingest_refused_are_there_before_those_that_it_took(lake, target, tmp_path):
    small(lake)
    backup(lake, target)
    file = tmp_path / "some.jsonl"
    file.write_text('{"id": 100}\n{"id": "bad"}\n')
    lake.ingest("items", [str(file)], rejects=True)
    taken = []
    for writes in range(10):
        partly = tmp_path / f"partly{writes}"
        shutil.copytree(target, partly)
        with suppress(Cut):
            copy_lake(lake.storage, Cutting(str(partly), writes))
        table = sl.Lake(partly).table("items")
        refused_rows = Rejects(table.log.storage, table.entry).count()
        taken.append((refused_rows, table.head == lake.table("items").head))
    assert sorted(set(taken)) == [(0, False), (1, False), (1, True)]


def test_a_damaged_commit_file_is_not_copied(lake, target):
    small(lake)
    file = Path(lake.storage.uri) / lake.table("items").log.folder / "_delta_log" / f"{1:020d}.json"
    file.write_text("{")
    with refused(sl.Corrupt):
        backup(lake, target)
    assert not target.exists()


def test_a_file_that_the_target_lost_or_has_in_part_is_copied_again(lake, target):
    small(lake)
    backup(lake, target)
    copy = sl.Lake(target).table("items")
    first, second = (target / copy.entry.folder / name for name in sorted(claimed_files(copy))[:2])
    first.unlink()
    second.write_bytes(b"half")
    assert backup(lake, target).files_copied == 2
    check_copy(lake, sl.Lake(target))
