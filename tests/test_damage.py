"""Damage below `_delta_log/` and `catalog/` is noticed, by name, by all who read, write, fold, delete or copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import strandline as sl
from strandline.cli import app
from strandline.jobs.doctor import examine
from strandline.storage import delta as deltas
from strandline.storage.commits import CommitLog
from strandline.storage.delta import CHECKPOINT_EVERY, DeltaLog
from strandline.storage.open import LocalStorage
from support import ITEMS, by_id, files_below, refused

NOW = {"keep": 0, "grace": 0}


def name(version: int) -> str:
    return f"{version:020d}.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of two tables: commits with and without tokens, folds, a new column, and a delete."""
    root = tmp_path_factory.mktemp("whole")
    lake = sl.Lake(root)
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    lake.create_table("later", ITEMS)
    for at in range(3):
        table.upsert([{"id": at, "name": f"n{at}"}], token=f"token {at}")
    table.compact(full=True)
    table.evolve(pa.schema([*ITEMS, ("more", pa.int64())]))
    table.upsert([{"id": 3, "name": "n3", "more": 1}])
    table.delete([1])
    table.compact(full=True)
    table.upsert([{"id": 4, "name": "n4"}])
    return root


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose first commit files are cleaned away, so that a checkpoint alone holds what they said."""
    root = tmp_path_factory.mktemp("cleaned")
    table = sl.Lake(root).create_table("items", ITEMS, key=["id"], vnodes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "RESTED_S", -1.0)
        for at in range(CHECKPOINT_EVERY + 3):
            table.upsert([{"id": at, "name": f"n{at}"}], token=f"token {at}")
            if at == CHECKPOINT_EVERY:
                table.compact(full=True)
                table.vacuum(**NOW)
                table.vacuum(**NOW)
    assert not table.log.delta.chain.commits.exists(0)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "lake"))


def delta_log(root: Path, part: str = "log") -> Path:
    return next((root / "tables" / "items").iterdir()) / part / "_delta_log"


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def flip_in(text: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert text in data
        return flip(data, data.index(text) + len(text))

    return change


FOREIGN = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "delta-rs:1"}}
DAMAGES: dict[str, tuple[str, int, Callable[[bytes], bytes | None]]] = {
    "empty": ("log", 2, lambda data: b""),
    "empty head": ("log", 7, lambda data: b""),
    "cut after a line": ("log", 2, lambda data: data.split(b"\n")[0]),
    "cut head": ("log", 7, lambda data: data.rsplit(b"\n", 1)[0]),
    "cut in a line": ("log", 2, lambda data: data[:-20]),
    "{}": ("log", 2, lambda data: b"{}"),
    "no JSON": ("log", 2, lambda data: b"garbage"),
    "path of an add": ("log", 2, flip_in(b'"add":{"path":"0000')),
    "key of an add": ("log", 2, flip_in(b'{"')),
    "_seq": ("log", 2, flip_in(b'"_seq":"')),
    "time": ("log", 2, flip_in(b'"timestamp":')),
    "token": ("log", 2, flip_in(b"token/toke")),
    "columns": ("log", 4, flip_in(b'"schemaString":"{')),
    "fold mark": ("baseline", 1, flip_in(b"fold/0")),
    "digest": ("log", 2, flip_in(b'"digest":"')),
    "number of actions": ("log", 2, flip_in(b'"actions":')),
    "white space": ("log", 2, lambda data: data + b"\n"),
    "foreign": ("log", 2, lambda data: json.dumps(FOREIGN).encode()),
    "foreign head": ("log", 7, lambda data: json.dumps(FOREIGN).encode()),
    "missing": ("log", 2, lambda data: None),
    "missing in the baseline": ("baseline", 1, lambda data: None),
    "missing first": ("log", 0, lambda data: None),
    "missing before the head": ("log", 6, lambda data: None),
}

Operation = Callable[[Path, Path], object]
OPERATIONS: dict[str, Operation] = {
    "to_arrow": lambda root, other: sl.Lake(root).table("items").to_arrow(),
    "sql": lambda root, other: sl.Lake(root).sql("SELECT * FROM items"),
    "upsert": lambda root, other: sl.Lake(root).table("items").upsert([{"id": 9, "name": "n9"}]),
    "delete": lambda root, other: sl.Lake(root).table("items").delete([0]),
    "compact": lambda root, other: sl.Lake(root).table("items").compact(full=True),
    "vacuum": lambda root, other: sl.Lake(root).table("items").vacuum(**NOW),
    "changes": lambda root, other: sl.Lake(root).table("items").changes(after=0),
    "export": lambda root, other: sl.Lake(root).table("items").export(other / "export"),
    "backup": lambda root, other: sl.Lake(root).backup(other / "backup"),
}


def damage(file: Path, change: Callable[[bytes], bytes | None]) -> Callable[[], None]:
    """Change a file; returns what puts it back."""
    before = file.read_bytes() if file.exists() else None
    after = change(before or b"")
    if after is None:
        file.unlink()
    else:
        file.write_bytes(after)
    return lambda: file.unlink() if before is None else file.write_bytes(before) and None


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_commit_is_corrupt_for_everyone_and_putting_it_back_heals_all(
    whole: Path, root: Path, tmp_path: Path, case: str
) -> None:
    part, version, change = DAMAGES[case]
    file = delta_log(root, part) / name(version)
    heal = damage(file, change)
    before = files_below(root)
    for operation, run in OPERATIONS.items():
        if part == "baseline" and operation in ("upsert", "delete", "changes"):
            continue  # these need the log alone
        try:
            run(root, tmp_path)
        except sl.Corrupt as error:
            assert error.fields["path"] == str(file.relative_to(root)), operation
        else:
            pytest.fail(f"{operation} took the damaged commit")
    found = [finding for finding in examine(LocalStorage(str(root))).findings if finding.severity == "wrong"]
    assert any(finding.where == str(file) and "backup" in finding.what for finding in found)
    assert files_below(root) == before
    heal()
    assert by_id(sl.Lake(root).table("items")) == by_id(sl.Lake(whole).table("items"))
    assert examine(LocalStorage(str(root))).is_sound


def test_swapped_commits_are_corrupt(root: Path) -> None:
    one, two = (delta_log(root) / name(version) for version in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with refused(sl.Corrupt):
        sl.Lake(root).table("items").to_arrow()


def test_a_commit_of_another_history_does_not_follow(root: Path, tmp_path: Path) -> None:
    """A file of the right name and form, from a copy of the lake that was written to apart."""
    other = Path(shutil.copytree(root, tmp_path / "other"))
    for place, text in ((root, "here"), (other, "there")):
        for at in range(2):
            sl.Lake(place).table("items").upsert([{"id": at, "name": text}])
    head = sl.Lake(root).table("items").head
    shutil.copy(delta_log(other) / name(head - 1), delta_log(root) / name(head - 1))
    with refused(sl.Corrupt, path=str((delta_log(root) / name(head)).relative_to(root))):
        sl.Lake(root).table("items").to_arrow()


def test_every_flipped_bit_of_a_commit_is_noticed(whole: Path) -> None:
    file = delta_log(whole) / name(2)
    data = file.read_bytes()
    commits = CommitLog(LocalStorage(str(whole)), str(file.parent.relative_to(whole)))
    assert commits.check(2, data).actions
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(sl.Corrupt):
                commits.check(2, flip(data, at, bit))
        with pytest.raises(sl.Corrupt):
            commits.check(2, data[:at])


@pytest.mark.parametrize("gap", [1, 2])
def test_an_open_table_does_not_take_the_number_of_a_lost_commit(root: Path, gap: int) -> None:
    sleeper = sl.Lake(root).table("items")
    head = sleeper.head
    writer = sl.Lake(root).table("items")
    for at in range(gap + 1):
        writer.upsert([{"id": at, "name": "newer"}])
    heal = damage(delta_log(root) / name(head + 1), lambda data: None)
    for call in (sleeper.to_arrow, lambda: sleeper.upsert([{"id": 0, "name": "older"}])):
        with refused(sl.Corrupt, path=str((delta_log(root) / name(head + 1)).relative_to(root))):
            call()
    heal()
    assert by_id(sleeper)[0] == "newer"


def test_an_open_table_that_has_rested_does_not_take_the_number_of_the_first_of_several_lost_commits(
    root: Path, monkeypatch: Any
) -> None:
    sleeper = sl.Lake(root).table("items")
    head = sleeper.head
    writer = sl.Lake(root).table("items")
    for at in range(4):
        writer.upsert([{"id": at, "name": "newer"}], missing="null")
    heals = [damage(delta_log(root) / name(head + at), lambda data: None) for at in (1, 2, 3)]
    before = files_below(delta_log(root))
    monkeypatch.setattr(deltas, "_ASLEEP_S", -1.0)
    with refused(sl.Corrupt, path=str((delta_log(root) / name(head + 1)).relative_to(root))):
        sleeper.upsert([{"id": 0, "name": "older"}], missing="null")
    assert files_below(delta_log(root)) == before
    for heal in heals:
        heal()
    sleeper.upsert([{"id": 5, "name": "newest"}], missing="null")
    assert (sleeper.head, by_id(sleeper)[0]) == (head + 5, "newer")


def test_a_writer_lists_the_folder_of_its_commits_now_and_then_and_not_for_every_commit(
    root: Path, monkeypatch: Any
) -> None:
    listed: list[str] = []
    walk = LocalStorage._walk_files

    def counted(self: LocalStorage, prefix: str, after: str = "") -> Any:
        listed.append(prefix)
        return walk(self, prefix, after)

    table = sl.Lake(root).table("items")
    assert table.head
    monkeypatch.setattr(LocalStorage, "_walk_files", counted)
    monkeypatch.setattr(deltas, "_ASLEEP_S", 600.0)
    for at in range(5):
        table.upsert([{"id": at, "name": "again"}], missing="null")
    assert not any(prefix.endswith("log/_delta_log") for prefix in listed)


def test_a_commit_that_was_seen_and_is_gone_is_missed_by_those_who_saw_it(root: Path) -> None:
    table = sl.Lake(root).table("items")
    table.upsert([{"id": 9, "name": "n9"}])
    heal = damage(delta_log(root) / name(table.head), lambda data: None)
    for call in (table.to_arrow, lambda: table.upsert([{"id": 10, "name": "n10"}])):
        with refused(sl.Corrupt):
            call()
    heal()
    assert by_id(table)[9] == "n9"


def test_a_commit_that_was_seen_and_is_gone_from_a_bucket_is_missed(s3_lake: Callable[..., sl.Lake]) -> None:
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=1)
    table.upsert([{"id": 1, "name": "n1"}])
    table.log.storage.delete([table.log.delta.chain.commits.path(table.head)])
    for call in (table.to_arrow, lambda: table.upsert([{"id": 2, "name": "n2"}])):
        with refused(sl.Corrupt):
            call()


# --- checkpoints -----------------------------------------------------------------------------------------------


def checkpoint_of(root: Path) -> Path:
    return max(delta_log(root).glob("*.checkpoint.parquet"))


@pytest.mark.parametrize("cut", [0, 10, 0.5, -1])
def test_a_damaged_checkpoint_is_corrupt_when_nothing_else_holds_its_facts(
    cleaned: Path, tmp_path: Path, cut: float
) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    file = checkpoint_of(root)
    heal = damage(file, lambda data: data[: int(len(data) * cut) if isinstance(cut, float) else cut])
    before = files_below(root)
    for run in OPERATIONS.values():
        with refused(sl.Corrupt, path=str(file.relative_to(root))) as caught:
            run(root, tmp_path)
        assert "Do not delete it" in caught.value.hint
    found = examine(LocalStorage(str(root))).findings
    assert any(finding.where == str(file) and "Do not delete it" in finding.what for finding in found)
    assert files_below(root) == before
    heal()
    assert by_id(sl.Lake(root).table("items")) == by_id(sl.Lake(cleaned).table("items"))


@pytest.mark.parametrize("also", ["_last_checkpoint", "*.checkpoint.digest"])
def test_a_lost_checkpoint_that_stood_alone_is_named_instead_of_cleaned_commits(
    cleaned: Path, tmp_path: Path, also: str
) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    file = checkpoint_of(root)
    file.unlink()
    max(delta_log(root).glob(also)).unlink()
    before = files_below(root)
    for run in OPERATIONS.values():
        with refused(sl.Corrupt, path=str(file.relative_to(root))) as caught:
            run(root, tmp_path)
        assert "backup" in caught.value.hint
    assert files_below(root) == before


def test_a_flipped_bit_of_a_checkpoint_is_noticed_or_changes_nothing(cleaned: Path) -> None:
    delta = sl.Lake(cleaned).table("items").log.delta
    checkpoints = delta.chain.checkpoints
    file = checkpoint_of(cleaned)
    version = int(file.name[:20])
    data = file.read_bytes()
    said = checkpoints.read(version)
    try:
        noticed = 0
        for at in range(0, len(data), 53):
            file.write_bytes(flip(data, at, at % 8))
            try:
                assert checkpoints.read(version) == said
            except sl.Corrupt:
                noticed += 1
        assert noticed > 20
    finally:
        file.write_bytes(data)


def test_a_checkpoint_that_another_process_writes_again_is_as_good(cleaned: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    table = sl.Lake(root).table("items")
    table.log.delta.checkpoint()
    file = checkpoint_of(root)
    before = file.read_bytes()
    pq.write_table(pq.read_table(file), file)
    assert file.read_bytes() != before
    assert table.log.delta.chain.checkpoints.read(table.head).is_verified
    assert DeltaTable(str(file.parents[1])).version() == table.head


def test_a_checkpoint_without_its_digests_is_not_relied_on_while_commits_lead_there(root: Path) -> None:
    table = sl.Lake(root).table("items")
    table.log.delta.checkpoint()
    file = checkpoint_of(root)
    digest = file.with_name(file.name.replace(".parquet", ".digest"))
    for change in (lambda data: flip(data, 20), lambda data: None):
        damage(digest, change)
        assert by_id(sl.Lake(root).table("items")) == by_id(table)
        report = examine(LocalStorage(str(root)))
        assert report.is_sound
        assert any("the digest file of checkpoint" in finding.what for finding in report.findings)
    assert table.log.delta.base_checkpoint(table.head, table.head) is None
    assert examine(LocalStorage(str(root)), repair=True).is_sound
    assert not any("checkpoint" in finding.what for finding in examine(LocalStorage(str(root))).findings)


def test_a_checkpoint_that_disagrees_with_the_commits_gets_no_digests(root: Path, monkeypatch: Any) -> None:
    delta = DeltaLog(LocalStorage(str(root)), str(delta_log(root).parent.relative_to(root)))
    older = delta.at(2)
    monkeypatch.setattr(delta, "at", lambda version: older)
    delta.checkpoint()
    assert checkpoint_of(root).exists()
    assert not list(delta_log(root).glob("*.digest"))


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("gone", ["commit", "commit and checkpoint", "all but the pointer"])
def test_no_repair_forgets_a_commit_that_only_a_checkpoint_holds(root: Path, part: str, gone: str) -> None:
    """The commit file at a checkpoint is lost: the checkpoint is all that is left of it."""
    table = sl.Lake(root).table("items")
    expected = by_id(table)
    (table.log if part == "log" else table.baseline).delta.checkpoint()
    file = max(delta_log(root, part).glob("*[0-9].json"))
    kept = {"commit": ".checkpoint", "commit and checkpoint": ".digest", "all but the pointer": "_last_checkpoint"}
    for each in delta_log(root, part).glob(f"{file.name[:20]}*"):
        if kept[gone] not in each.name:
            each.unlink()
    before = files_below(root)
    for repair in (False, True):
        report = examine(LocalStorage(str(root)), repair=repair)
        assert not report.is_sound
        found = [finding for finding in report.findings if finding.severity == "wrong"]
        assert any(finding.where == str(file) and "backup" in finding.what for finding in found)
        assert not any(finding.repair or finding.is_repaired for finding in report.findings)
    assert files_below(root) == before
    if gone == "commit":
        assert by_id(sl.Lake(root).table("items")) == expected


def test_a_damaged_checkpoint_is_left_out_of_a_backup_and_of_cleaning_while_commits_lead_there(
    root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
    table = sl.Lake(root).table("items")
    table.log.delta.checkpoint()
    damage(checkpoint_of(root), lambda data: data[: len(data) // 2])
    before = {path.name for path in delta_log(root).iterdir()}
    sl.Lake(root).table("items").vacuum(**NOW)
    assert {path.name for path in delta_log(root).iterdir()} >= before
    sl.Lake(root).backup(tmp_path / "backup")
    copied = {path.name for path in delta_log(tmp_path / "backup").iterdir()}
    assert copied == {path.name for path in delta_log(root).glob("*.json")}
    assert by_id(sl.Lake(tmp_path / "backup").table("items")) == by_id(table)
    assert examine(LocalStorage(str(tmp_path / "backup")), deep=True).is_sound


def test_a_pointer_to_a_lost_checkpoint_does_not_end_checkpoints(cleaned: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(cleaned, tmp_path / "lake"))
    table = sl.Lake(root).table("items")
    table.log.delta.checkpoint()
    checkpoint_of(root).unlink()
    expected = by_id(sl.Lake(root).table("items"))
    table = sl.Lake(root).table("items")
    table.upsert([{"id": 1000, "name": "new"}])
    table.log.delta.checkpoint()
    assert table.log.delta.chain.checkpoints.pointed_version() == table.head
    assert table.log.delta.chain.checkpoints.read(table.head).is_verified
    assert DeltaTable(str(delta_log(root).parent)).version() == table.head
    assert by_id(sl.Lake(root).table("items")) == {**expected, 1000: "new"}


@pytest.mark.parametrize("part", ["log", "baseline"])
def test_a_table_whose_log_or_baseline_is_gone_is_corrupt(root: Path, tmp_path: Path, part: str) -> None:
    folder = delta_log(root, part).parent
    expected = by_id(sl.Lake(root).table("items"))
    opened = sl.Lake(root).table("items")
    assert by_id(opened) == expected
    shutil.move(folder, tmp_path / "aside")
    before = files_below(root)
    for call in (opened.to_arrow, opened.vacuum, lambda: opened.compact(full=True)):
        with refused(sl.Corrupt, path=str(folder.relative_to(root))):
            call()
    if part == "log":
        with refused(sl.Corrupt, path=str(folder.relative_to(root))):
            opened.upsert([{"id": 9, "name": "n9"}])
    for operation, run in OPERATIONS.items():
        if operation == "backup":
            with refused(sl.Corrupt):
                run(root, tmp_path)
            continue
        with refused(sl.Corrupt, path=str(folder.relative_to(root))) as caught:
            run(root, tmp_path)
        assert "backup" in caught.value.hint
    assert files_below(root) == before
    shutil.move(tmp_path / "aside", folder)
    assert by_id(sl.Lake(root).table("items")) == expected


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_of_a_lost_commit_that_was_folded_is_not_taken(root: Path, tmp_path: Path, count: int) -> None:
    table = sl.Lake(root).table("items")
    table.compact(full=True)
    expected, head = by_id(table), table.head
    lost = [delta_log(root) / f"{seq:020d}.json" for seq in range(head - count + 1, head + 1)]
    for path in lost:
        shutil.move(path, tmp_path)
    before = files_below(root)
    for operation, run in OPERATIONS.items():
        if operation != "backup":
            with refused(sl.Corrupt, path=str(lost[0].relative_to(root))) as caught:
                run(root, tmp_path)
            assert "backup" in caught.value.hint
    assert files_below(root) == before
    for path in lost:
        shutil.move(tmp_path / path.name, path)
    assert by_id(sl.Lake(root).table("items")) == expected


# --- any bit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["whole", "cleaned"])
def test_any_flipped_bit_gives_the_right_rows_or_corrupt(which: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(which)
    expected = by_id(sl.Lake(root).table("items"))
    files = sorted(path for path in root.rglob("*") if path.is_file() and {"_delta_log", "catalog"} & {*path.parts})

    @settings(max_examples=60)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(files))
        at = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
        heal = damage(file, lambda old: flip(old, at // 8, at % 8))
        try:
            with suppress(sl.Corrupt):
                assert by_id(sl.Lake(root).table("items")) == expected
        finally:
            heal()

    check()


# --- the catalog -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("change", [lambda data: None, lambda data: b"", lambda data: b"{}", lambda data: data[:-9]])
def test_a_damaged_or_missing_catalog_entry_hides_no_table(
    root: Path, tmp_path: Path, version: int, change: Callable[[bytes], bytes | None]
) -> None:
    file = root / "catalog" / name(version)
    heal = damage(file, change)
    before = files_below(root)
    wanted = {"path": str(file.relative_to(root))}
    for call in (
        lambda: sl.Lake(root).tables(),
        lambda: sl.Lake(root).table("later"),
        lambda: sl.Lake(root).create_table("new", ITEMS),
        lambda: sl.Lake(root).drop("later"),
        lambda: sl.Lake(root).vacuum(),
        lambda: sl.Lake(root).backup(tmp_path / "backup"),
    ):
        with refused(sl.Corrupt, **wanted):
            call()
    found = examine(LocalStorage(str(root))).findings
    assert any(finding.where == str(file) and "backup" in finding.what for finding in found)
    assert files_below(root) == before
    heal()
    assert sl.Lake(root).tables() == ["items", "later"]


def test_an_open_catalog_does_not_take_the_number_of_a_lost_entry(root: Path) -> None:
    lake, other = sl.Lake(root), sl.Lake(root)
    assert lake.tables() == ["items", "later"]
    other.create_table("third", ITEMS)
    other.create_table("fourth", ITEMS)
    heal = damage(root / "catalog" / name(3), lambda data: None)
    with refused(sl.Corrupt):
        lake.create_table("mine", ITEMS)
    heal()
    assert lake.tables() == ["fourth", "items", "later", "third"]


@pytest.fixture
def full(root: Path) -> Path:
    """A lake whose last catalog entry is that of a table with rows."""
    sl.Lake(root).create_table("last", ITEMS).append([{"id": 1, "name": "n1"}])
    return root


def test_a_lost_last_catalog_entry_is_noticed_before_the_catalog_changes(full: Path) -> None:
    opened = sl.Lake(full)
    assert opened.tables() == ["items", "last", "later"]
    heal = damage(full / "catalog" / name(3), lambda data: None)
    before = files_below(full)
    for call in (
        lambda: sl.Lake(full).create_table("new", ITEMS),
        lambda: sl.Lake(full).drop("later"),
        lambda: sl.Lake(full).rename("later", "earlier"),
        lambda: sl.Lake(full).backup(full.parent / "backup"),
        opened.tables,
        lambda: opened.create_table("new", ITEMS),
    ):
        with refused(sl.Corrupt):
            call()
    found = [finding for finding in examine(LocalStorage(str(full))).findings if finding.severity == "wrong"]
    assert [finding.table for finding in found] == ["last"]
    assert files_below(full) == before
    heal()
    assert opened.tables() == sl.Lake(full).tables() == ["items", "last", "later"]
    sl.Lake(full).create_table("new", ITEMS)


def test_an_entry_in_the_place_of_one_that_was_seen_is_noticed_before_a_change(full: Path) -> None:
    opened = sl.Lake(full)
    file = full / "catalog" / name(3)
    ours = file.read_bytes()
    file.unlink()
    shutil.move(full / "tables" / "last", full.parent / "aside")
    sl.Lake(full).create_table("other", ITEMS)
    assert file.read_bytes() != ours
    with refused(sl.Corrupt, path=f"catalog/{name(3)}"):
        opened.create_table("new", ITEMS)


def test_what_a_crashed_create_left_and_dropped_tables_keep_no_one_from_creating(root: Path) -> None:
    lake = sl.Lake(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake.catalog, "_change", lambda action: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.create_table("half", ITEMS)
    lake.drop("items")
    sl.Lake(root).create_table("half", ITEMS)
    assert sl.Lake(root).tables() == ["half", "later"]


def test_a_lost_catalog_is_not_a_place_without_a_lake(root: Path) -> None:
    shutil.move(root / "catalog", root.parent / "aside")
    before = files_below(root)
    with refused(sl.Corrupt, path="catalog"):
        sl.Lake(root)
    runner = CliRunner()
    for words in (["status"], ["doctor"], ["vacuum"], ["init"], ["tick"]):
        done = runner.invoke(app, ["--lake", str(root), *words])
        assert done.exit_code == 1 and "catalog" in done.output and "strandline init" not in done.output
    assert files_below(root) == before
    shutil.move(root.parent / "aside", root / "catalog")
    assert sl.Lake(root).tables() == ["items", "later"]
