"""Repairs of checkpoints: what is good stays, and nothing that only a checkpoint holds is forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

import examined
import gaps
import strandline as sl
from examined import notes
from gaps import NOW, delta_log, wrong
from strandline.cli import app
from strandline.jobs.doctor import Report, examine
from strandline.jobs.doctor import repair as repairs
from strandline.jobs.doctor.delta_tables import DeltaExam
from strandline.storage import delta as deltas
from strandline.storage.open import LocalStorage
from support import by_id

whole = gaps.whole
cleaned = gaps.cleaned
root = gaps.root
folder = examined.folder
check = examined.check


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("name", ["_last_checkpoint", "*.checkpoint.parquet", "*.checkpoint.digest"])
def test_a_later_checkpoint_is_repaired_behind_a_vacuum(cleaned: Path, tmp_path: Path, part: str, name: str) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    assert wrong(root) == []
    expected = by_id(sl.Lake(root).table("items"))
    file = max(delta_log(root, part).glob(name))
    file.write_bytes(file.read_bytes()[:-30])
    before = examine(LocalStorage(str(root)))
    assert {finding.repair for finding in before.findings if "checkpoint" in finding.what} == {"checkpoint"}
    said = CliRunner().invoke(app, ["--lake", str(root), "doctor"]).output
    assert "can be repaired" in said and "--repair" in said and "Everything holds" not in said
    assert examine(LocalStorage(str(root)), repair=True).is_sound
    assert not any("checkpoint" in finding.what for finding in examine(LocalStorage(str(root))).findings)
    assert by_id(sl.Lake(root).table("items")) == expected


@pytest.mark.parametrize("is_vacuumed", [False, True])
@pytest.mark.parametrize("damaged", ["parquet", "digest"])
def test_a_repair_keeps_good_checkpoints_also_when_a_vacuum_comes_between(
    root: Path, monkeypatch: pytest.MonkeyPatch, damaged: str, is_vacuumed: bool
) -> None:
    """After the vacuum checkpoint 7 alone leads to the head."""
    table = sl.Lake(root).table("items")
    expected = by_id(table)
    file = delta_log(root, "log") / f"{4:020d}.checkpoint.{damaged}"
    file.write_bytes(file.read_bytes()[:-30])
    good = max(delta_log(root, "log").glob("*.checkpoint.parquet"))
    before = good.read_bytes()
    look = repairs._new_exam

    def looked(storage: LocalStorage, folder: str) -> DeltaExam:
        found = look(storage, folder)
        if is_vacuumed and found.commits and table.log.delta.chain.commits.exists(0):
            table.vacuum(**NOW)
        return found

    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
    monkeypatch.setattr(repairs, "_new_exam", looked)
    table.pin(at=7)
    report = examine(LocalStorage(str(root)), repair=True)
    assert report.is_sound and any(finding.is_repaired for finding in report.findings)
    assert table.log.delta.chain.commits.exists(0) is not is_vacuumed
    assert table.log.delta.chain.checkpoints.says_alone(7) is is_vacuumed
    assert good.read_bytes() == before
    assert wrong(root) == []
    assert by_id(sl.Lake(root).table("items")) == expected


def test_a_repair_of_the_pointer_changes_nothing_else(cleaned: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    delta = sl.Lake(root).table("items").log.delta
    delta.checkpoint()
    before = {path: path.read_bytes() for path in delta_log(root, "log").iterdir()}
    for pointer in ("{", '{"version": 6, "size": 1}'):
        (delta_log(root, "log") / "_last_checkpoint").write_text(pointer)
        assert examine(LocalStorage(str(root)), repair=True).is_sound
        after = {path: path.read_bytes() for path in delta_log(root, "log").iterdir()}
        assert {path.name for path in after if after[path] != before.get(path)} == {"_last_checkpoint"}
        assert after.keys() == before.keys()
        assert delta.chain.checkpoints.pointed_version() == delta.refresh().version
        assert DeltaTable(str(root / delta.folder)).version() == delta.refresh().version


@pytest.mark.parametrize("has_others", [False, True])
def test_a_pointer_to_a_checkpoint_that_never_was_is_repaired(root: Path, has_others: bool) -> None:
    delta = sl.Lake(root).table("items").log.delta
    for file in [] if has_others else delta_log(root, "log").glob("*.checkpoint.*"):
        file.unlink()
    pointer = delta_log(root, "log") / "_last_checkpoint"
    pointer.write_text('{"version": 99, "size": 1}')
    (found,) = wrong(root)
    assert found.where == str(pointer) and found.repair == "checkpoint" and "end with 8" in found.what
    assert wrong(root, repair=True) == wrong(root) == []
    assert delta.chain.checkpoints.pointed_version() == DeltaTable(str(root / delta.folder)).version() == 8


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
