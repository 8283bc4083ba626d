"""The doctor tells commit files that were lost from those that a vacuum has cleaned away, and repairs behind either."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gaps
import strandline as sl
from gaps import NOW, delta_log, wrong
from strandline.jobs.doctor.delta_tables import DeltaExam
from strandline.storage import checkpoints
from strandline.storage import delta as deltas
from support import ITEMS, by_id, files_below, refused

whole = gaps.whole
cleaned = gaps.cleaned
root = gaps.root


@pytest.mark.parametrize(("part", "under"), [("log", 4), ("baseline", 2)])
@pytest.mark.parametrize("lost", [[0], [0, 1], [1]])
def test_commits_lost_under_a_checkpoint_are_one_finding_and_stay_so(
    root: Path, part: str, under: int, lost: list[int]
) -> None:
    expected = by_id(sl.Lake(root).table("items"))
    for version in lost:
        (delta_log(root, part) / f"{version:020d}.json").unlink()
    before = files_below(root)
    for repair in (False, True):
        (finding,) = wrong(root, repair=repair)
        assert finding.where == str(delta_log(root, part) / f"{lost[0]:020d}.json")
        assert f"under checkpoint {under}" in finding.what and "backup" in finding.what
        assert finding.repair is None
    assert files_below(root) == before
    assert by_id(sl.Lake(root).table("items")) == expected


@pytest.mark.parametrize("lost", [[0], [0, 1], [1]])
def test_versions_that_are_kept_and_lost_are_corrupt_and_a_vacuum_changes_nothing(root: Path, lost: list[int]) -> None:
    for version in lost:
        (delta_log(root, "baseline") / f"{version:020d}.json").unlink()
    before = files_below(root)
    for grace in (None, 0):
        with refused(sl.Corrupt) as caught:
            sl.Lake(root).table("items").vacuum(grace=grace)
        assert "baseline/_delta_log/" in caught.value.fields["path"]
    if 0 in lost:
        with refused(sl.Corrupt):
            sl.Lake(root).table("items").to_arrow(at=1)
    assert files_below(root) == before


def test_what_nobody_wants_any_more_is_not_missed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
    for part in ("log", "baseline"):
        (delta_log(root, part) / f"{0:020d}.json").unlink()
    expected = by_id(sl.Lake(root).table("items"))
    for _ in range(2):
        sl.Lake(root).table("items").vacuum(**NOW)
    assert wrong(root) == []
    assert by_id(sl.Lake(root).table("items")) == expected


@pytest.mark.parametrize("part", ["log", "baseline"])
def test_a_checkpoint_that_nothing_proves_and_no_commits_lead_to_is_wrong(
    cleaned: Path, tmp_path: Path, part: str
) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    file = min(delta_log(root, part).glob("*.checkpoint.digest"))
    data = file.read_bytes()
    for change in (lambda: file.write_bytes(data[:-9]), file.unlink):
        change()
        (found,) = wrong(root)
        assert found.where == str(file) and found.repair is None and "backup" in found.what
    before = files_below(root)
    assert wrong(root, repair=True) and files_below(root) == before
    file.write_bytes(data)
    assert wrong(root) == []


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_lost_checkpoint_that_stood_alone_is_one_finding(
    cleaned: Path, tmp_path: Path, part: str, is_last: bool
) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    file, *later = sorted(delta_log(root, part).glob("*.checkpoint.parquet"))
    file.unlink()
    for each in [*later, file.parent / "_last_checkpoint"] if is_last else []:
        each.unlink()
        each.with_suffix(".digest").unlink(missing_ok=True)
    before = files_below(root)
    for repair in (False, True):
        (found,) = wrong(root, repair=repair)
        assert found.where == str(file) and found.repair is None and "backup" in found.what
    assert files_below(root) == before


def test_a_vacuum_in_the_middle_of_an_examination_is_no_disagreement(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
    table = sl.Lake(root).table("items")
    storage, folder = table.log.storage, table.log.delta.folder
    exam = DeltaExam(storage, "items", folder, {info.path: info for info in storage.list(folder)})
    assert 0 in exam.commits
    table.vacuum(**NOW)
    assert not table.log.delta.chain.commits.exists(0)
    assert exam.snapshot is not None and exam.snapshot.version == table.log.delta.refresh().version
    exam.check_checkpoints()
    assert exam.findings == []


def test_a_file_written_in_the_middle_of_an_examination_is_not_missing(root: Path) -> None:
    table = sl.Lake(root).table("items")
    storage, folder = table.log.storage, table.log.delta.folder
    exam = DeltaExam(storage, "items", folder, {info.path: info for info in storage.list(folder)})
    before = set(table.log.delta.refresh().files)
    table.upsert([{"id": 1, "name": "late"}])
    (late,) = set(table.log.delta.refresh().files) - before
    assert late in dict(exam.check_files())
    assert exam.findings == []


def test_a_checkpoint_that_is_written_again_without_expired_tokens_still_stands_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sl.Lake(root).table("items")
    table.upsert([{"id": 9, "name": "n9"}], token="t")
    delta = table.log.delta
    delta.checkpoint()
    delta.chain.checkpoints.set_alone(table.head)
    digest = delta_log(root, "log") / f"{table.head:020d}.checkpoint.digest"
    before = digest.read_bytes()
    monkeypatch.setattr(checkpoints, "_SURE_MS", -1)  # as if the token were about to expire
    delta.checkpoint()
    assert digest.read_bytes() != before
    found = delta.chain.checkpoints.read(table.head)
    assert found is not None and found.is_verified and found.is_alone


def test_a_log_without_commit_files_does_not_end_with_commit_0(root: Path) -> None:
    for file in delta_log(root, "log").glob("*.json"):
        file.unlink()
    said = [finding.what for finding in wrong(root) if "commit" in finding.what]
    assert any("there are no commit files" in what for what in said)
    assert not any("end with" in what for what in said)


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("version", [1, -1])
def test_a_damaged_commit_file_is_one_finding(root: Path, part: str, version: int) -> None:
    file = sorted(delta_log(root, part).glob("*[0-9].json"))[version]
    file.write_bytes(b"")
    (found,) = wrong(root)
    assert found.where == str(file) and "it is empty" in found.what


def test_a_log_that_ends_before_its_folds_is_one_finding(tmp_path: Path) -> None:
    table = sl.Lake(tmp_path).create_table("items", ITEMS, key=["id"], vnodes=4)
    for at in range(10):
        table.upsert([{"id": at, "name": f"n{at}"}])
    table.compact(full=True)
    file = max(delta_log(tmp_path, "log").glob("*.json"))
    file.unlink()
    (found,) = wrong(tmp_path)
    assert found.where == str(file) and "after 9" in found.what and "up to 10" in found.what
