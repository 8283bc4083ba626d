"""Refused rows: kept beside their table once, shown newest last, and damage to them is noticed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import strandline as sl
from strandline.tables import rejects as module
from strandline.tables.rejects import Reject, RejectedRows, Rejects
from support import files_below, refused


@pytest.fixture
def rejects(lake, items):
    return Rejects(lake.storage, items.entry)


def reject(line, text="{}", **more):
    return Reject("a.jsonl", line, None, "is wrong", text, **more)


def keep(rejects, token, *kept):
    rows = RejectedRows(rejects)
    for each in kept:
        rows.add(token, each)
    rows.commit()
    rows.commit()  # a second call does nothing


def test_a_table_without_refused_rows_has_no_log_of_them(rejects):
    assert (rejects.state(), rejects.count(), rejects.latest(5), list(rejects.tokens())) == (None, 0, [], [])


def test_the_latest_rows_are_shown_oldest_first(rejects):
    keep(rejects, "file-1", *(reject(line) for line in range(3)))
    keep(rejects, "file-2", reject(9, names=["id"]), reject(10))
    assert rejects.count() == 5
    assert [row["line"] for row in rejects.latest(3)] == [2, 9, 10]
    assert rejects.latest(0) == []
    assert set(rejects.tokens()) >= {"file-1", "file-2"}
    assert "names" not in rejects.latest(1)[0]


def test_rows_that_another_process_has_kept_are_not_kept_twice(rejects):
    keep(rejects, "file-1", reject(1))
    again = RejectedRows(rejects)
    again.add("file-1", reject(1))
    with refused(sl.Conflict):
        again.commit()
    assert rejects.count() == 1


def test_rows_that_are_given_up_leave_no_file(rejects, lake, monkeypatch):
    monkeypatch.setattr(module, "_FLUSH_ROWS", 2)
    rejects.ensure()
    before = files_below(lake.storage.uri)
    rows = RejectedRows(rejects)
    for line in range(5):
        rows.add("file", reject(line))
    assert len(files_below(lake.storage.uri)) == len(before) + 2
    rows.discard()
    assert files_below(lake.storage.uri) == before
    rows.commit()
    assert rejects.count() == 0


def test_half_a_character_is_shown_as_its_escape():
    broken = Reject("\ud800.jsonl", 1, "\udc00", "why \ud800", "text \ud800").printable()
    assert broken == Reject("\\ud800.jsonl", 1, "\\udc00", "why \\ud800", "text \\ud800")
    assert reject(1).printable() == reject(1)


def test_the_log_is_made_once_whoever_asks(rejects, lake, items):
    rejects.ensure()
    rejects.ensure()
    Rejects(lake.storage, items.entry).ensure()
    assert rejects.state() is not None and rejects.count() == 0


@pytest.fixture
def refusing(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> Rejects:
    (tmp_path / "a.jsonl").write_text('{"id": 20, "name": "fine"}\n{"id": "no number"}\n')
    assert lake.ingest("items", [str(tmp_path / "a.jsonl")], rejects=True).rejects == 1
    return Rejects(lake.storage, items.entry)


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:], lambda data: data[:-30], lambda data: None],
)
def test_a_damaged_or_missing_file_of_refused_rows_is_corrupt_with_its_path(
    lake: sl.Lake, refusing: Rejects, change: Callable[[bytes], bytes | None]
) -> None:
    root = Path(lake.storage.uri)
    (file,) = (root / refusing.folder).glob("*.parquet")
    data = file.read_bytes()
    changed = change(data)
    file.unlink()
    if changed is not None:
        file.write_bytes(changed)
    with refused(sl.Corrupt, path=str(file.relative_to(root))) as caught:
        refusing.latest(10)
    assert "doctor --deep" in caught.value.hint
    file.write_bytes(data)
    assert [row["line"] for row in refusing.latest(10)] == [2]


def test_refused_rows_without_their_log_are_not_taken_for_none(
    lake: sl.Lake, refusing: Rejects, tmp_path: Path
) -> None:
    root = Path(lake.storage.uri)
    folder = root / refusing.folder / "_delta_log"
    shutil.move(folder, tmp_path / "aside")
    before = files_below(root)
    for call in (
        lambda: Rejects(lake.storage, lake.table("items").entry).count(),
        lambda: sl.Lake(root).table("items").vacuum(keep=0, grace=0),
        lambda: sl.Lake(root).backup(tmp_path / "backup"),
    ):
        with refused(sl.Corrupt, path=str(folder.relative_to(root))):
            call()
    assert files_below(root) == before
    shutil.move(tmp_path / "aside", folder)
    assert refusing.count() == 1
