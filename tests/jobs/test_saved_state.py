"""A backup takes the state along; a restored one sends nothing before a person has adopted it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.jobs.backup import restore
from strandline.jobs.backup.saved_state import FILE, RESTORING
from strandline.model.change import RefusedRows
from strandline.sinks.parquet import ParquetSink
from strandline.storage.local import LocalStorage


@pytest.fixture
def full(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> sl.Lake:
    """A lake with a sink on record that has sent three rows, a paused one, a dead letter and a token."""
    items.upsert(rows(1, 2, 3))
    lake.add_sink(lake.sink("archive", "items", to=ParquetSink(tmp_path / "out")))
    lake.add_sink(lake.sink("quiet", "items", to=ParquetSink(tmp_path / "quiet"), mask={"name": "hash"}, salt="env:S"))
    lake.pause_sink("quiet")
    assert lake.tick().rows == 3
    lake.state.letters.save(lake.state.registry.get("archive"), "x", [RefusedRows((0, 1, 0), 1, b"\x00key", "no")])
    lake.add_token("reader", "reader")
    return sl.Lake(lake.storage.uri)


def test_a_backup_takes_sinks_marks_letters_and_tokens_and_says_what_it_leaves_out(full, tmp_path):
    report = full.backup(tmp_path / "backup")
    taken = report.state
    assert (taken.sinks, taken.marks, taken.letters, taken.tokens) == (2, 4, 1, 1)
    assert any("secrets" in what for what in taken.left_out)
    assert stat.S_IMODE(os.stat(tmp_path / "backup" / FILE).st_mode) == 0o600
    assert report.to_dict()["state"]["sinks"] == 2


def test_the_copy_itself_has_no_sinks_and_stays_an_incremental_backup(full, tmp_path, items):
    full.backup(tmp_path / "backup")
    copy = sl.Lake(tmp_path / "backup")
    assert copy.tick().rows == 0 and not copy.status().sinks and not copy.has_state
    items.upsert(rows(4))
    assert full.tick().rows == 1
    again = full.backup(tmp_path / "backup")
    assert again.files_skipped and again.state.sinks == 2
    sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    assert sl.Lake(tmp_path / "new").state.marks.consumer_states()["archive"].marks == dict.fromkeys(range(4), 2)


def test_a_restored_lake_sends_nothing_until_it_is_adopted_and_then_goes_on_where_the_destination_is(full, tmp_path):
    full.backup(tmp_path / "backup")
    full.table("items").upsert(rows(4))
    report = sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    assert report.state.is_fenced and report.state.sinks == 2
    new = sl.Lake(tmp_path / "new")
    new.table("items").upsert(rows(5))
    with pytest.raises(sl.Conflict) as failed:
        new.tick()
    assert "--adopt-state" in str(failed.value.hint)
    assert len(delivered(tmp_path / "out")) == 3
    new.adopt_state()
    assert [(token.name, token.role) for token in new.tokens().all()] == [("reader", "reader")]
    (letter,) = new.state.letters.all()
    assert letter.keys == b"\x00key"
    report = new.tick()
    assert (report.rows, report.paused, report.is_well) == (1, ("quiet",), True)
    assert [row["id"] for row in delivered(tmp_path / "out")] == [1, 2, 3, 5]
    assert new.tick().is_idle
    assert not (tmp_path / "new" / RESTORING).exists()


def test_a_destination_that_is_ahead_of_the_backup_waits_for_a_person(full, tmp_path):
    full.backup(tmp_path / "backup")
    full.table("items").upsert(rows(4))
    assert full.tick().rows == 1
    sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    new = sl.Lake(tmp_path / "new")
    found = {each.name: each for each in new.adopt_state()}
    assert found["archive"].is_undecided
    new.table("items").upsert(rows(5))
    assert not new.tick().rows
    assert len(delivered(tmp_path / "out")) == 4


def test_a_lake_with_tokens_alone_is_served_at_once(lake, items, tmp_path):
    lake.add_token("writer", "writer")
    assert lake.backup(tmp_path / "backup").state.left_out == ()
    report = sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    assert not report.state.is_fenced
    new = sl.Lake(tmp_path / "new")
    assert [token.name for token in new.tokens().all()] == ["writer"]
    new.add_token("reader", "reader")


def test_a_lake_without_a_state_has_nothing_beside_its_backup(lake, items, tmp_path):
    report = lake.backup(tmp_path / "backup")
    assert (report.state.sinks, report.state.left_out) == (0, ())
    assert not (tmp_path / "backup" / FILE).exists()
    sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    assert not sl.Lake(tmp_path / "new").has_state


def test_a_state_that_does_not_belong_to_the_lake_is_left_out_and_an_earlier_one_is_kept(full, tmp_path):
    full.backup(tmp_path / "backup")
    kept = (tmp_path / "backup" / FILE).read_bytes()
    for path in Path(full.storage.uri).glob("state.db*"):
        path.unlink()
    report = sl.Lake(full.storage.uri).backup(tmp_path / "backup")
    assert report.state.sinks == 0 and "sinks, marks and tokens" in report.state.left_out[0]
    assert (tmp_path / "backup" / FILE).read_bytes() == kept


def test_a_restore_that_was_killed_before_the_catalog_is_run_again(full, tmp_path, monkeypatch):
    full.backup(tmp_path / "backup")
    from strandline.jobs import backup

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backup, "copy_catalog", die)
        with pytest.raises(KeyboardInterrupt):
            restore(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "new" / "state.db").exists() and (tmp_path / "new" / RESTORING).exists()
    assert restore(tmp_path / "backup", tmp_path / "new").state.sinks == 2
    assert len(sl.Lake(tmp_path / "new").consumer_states()) == 2


def test_a_state_in_the_target_that_no_restore_wrote_is_not_replaced(full, tmp_path):
    full.backup(tmp_path / "backup")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "state.db").write_bytes(b"mine")
    with pytest.raises(sl.Invalid):
        restore(tmp_path / "backup", tmp_path / "new")
    assert (tmp_path / "new" / "state.db").read_bytes() == b"mine"
    for _ in range(2):
        with pytest.raises(sl.Conflict):
            restore(tmp_path / "backup", tmp_path / "other", state=Path(full.storage.uri) / "state.db")
    assert not sl.Lake(tmp_path / "other").exists and sl.Lake(full.storage.uri).tick().is_well


def test_a_state_on_postgres_goes_there_and_back(lake, items, tmp_path, postgres_url):
    there = sl.Lake(lake.storage.uri, state=postgres_url)
    items.upsert(rows(1, 2))
    there.add_sink(there.sink("archive", "items", to=ParquetSink(tmp_path / "out")))
    assert there.tick().rows == 2
    there.state.letters.save(there.state.registry.get("archive"), "x", [RefusedRows((0, 1, 0), 1, b"\x00key", "no")])
    assert there.backup(tmp_path / "backup").state.sinks == 1
    sl.Lake.restore_backup(tmp_path / "backup", tmp_path / "new")
    new = sl.Lake(tmp_path / "new")
    new.adopt_state()
    assert new.tick().is_idle and new.state.letters.all()[0].keys == b"\x00key"


def test_a_damaged_file_of_a_state_is_named(full, tmp_path):
    full.backup(tmp_path / "backup")
    for wrong in (b"{", b"{}", b"[]"):
        (tmp_path / "backup" / FILE).write_bytes(wrong)
        with pytest.raises(sl.Corrupt):
            restore(tmp_path / "backup", tmp_path / "new")
    assert not list(LocalStorage(str(tmp_path / "new")).list(""))
