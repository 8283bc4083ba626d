"""A copy of a lake is that lake: taken while others write it, again and again, and after every kind of crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.jobs.backup import BackupReport, backup, copy_lake, restore
from strandline.jobs.backup import plan as backups
from strandline.jobs.doctor import examine
from strandline.storage import delta
from strandline.storage.delta_files import Chain
from strandline.storage.open import LocalStorage, open_storage
from strandline.tables.baseline import Baseline
from strandline.tables.log import Log
from strandline.tables.pins import Pin, Pins
from strandline.tables.rejects import Rejects
from support import (
    BUCKET,
    ITEMS,
    answer_of,
    by_id,
    claimed_files,
    data_files,
    files_below,
    options_for,
    python,
    refused,
    rows_of,
    start_python,
    trim,
)

MORE = pa.schema([("colour", pa.string())])


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": i, "name": f"{name}{i}", "qty": i % 5} for i in ids]


def small(lake: sl.Lake) -> None:
    """Two tables with a little history."""
    items = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    items.upsert(rows(*range(10)))
    items.delete([3])
    items.compact(full=True)
    items.upsert(rows(20))
    lake.create_table("events", ITEMS, vnodes=2).append(rows(1, 1))


def more(lake: sl.Lake) -> None:
    """What comes after `small`: commits, folds, new columns, a trimmed log; tables that come, go and come again."""
    items, events = lake.table("items"), lake.table("events")
    items.evolve(MORE)
    items.upsert([{"id": 4, "colour": "red"}, {"id": 30, "name": "b"}])
    items.compact(full=True)
    trim(items, items.head)
    items.upsert(rows(40))
    items.compact(full=True)
    trim(items, items.head)
    items.delete([40])
    events.append(rows(2))
    events.compact(full=True)
    lake.create_table("new", ITEMS, key=["id"], vnodes=1).upsert(rows(1))
    lake.create_table("gone", ITEMS, vnodes=1).append(rows(1))
    lake.drop("gone")
    lake.create_table("twice", ITEMS, vnodes=1).append(rows(1))
    lake.drop("twice")
    lake.create_table("twice", ITEMS, vnodes=1).append(rows(2))
    lake.rename("new", "newer")


def states(lake: sl.Lake) -> dict[str, list[Any]]:
    """Everything that can be read: each table's rows at each seq, None where they are not kept."""
    return {name: [state(lake.table(name), seq) for seq in range(lake.table(name).head + 1)] for name in lake.tables()}


def now(lake: sl.Lake) -> dict[str, Any]:
    return {name: (lake.table(name).head, state(lake.table(name))) for name in lake.tables()}


def state(table: sl.Table, seq: int | None = None) -> Any:
    """Rows with the column that `more` adds, so that reads from before and after compare."""
    try:
        found = table.to_arrow(at=seq)
    except sl.NotRetained:
        return None
    if "colour" not in found.column_names:
        found = found.append_column("colour", pa.nulls(found.num_rows, pa.string()))
    return rows_of(found)


def check_copy(lake: sl.Lake, copy: sl.Lake) -> None:
    """The copy is the lake: same id, tables, seqs, rows at each seq, refused rows; other engines open it."""
    assert copy.catalog.refresh() == lake.catalog.refresh()
    assert states(copy) == states(lake)
    for name in lake.tables():
        check_table(copy.table(name))
        ours, theirs = (Rejects(each.storage, each.table(name).entry).latest(100) for each in (lake, copy))
        assert theirs == ours
    assert wrong(copy, deep=True) == []


def wrong(lake: sl.Lake, **options: Any) -> list[str]:
    return [finding.what for finding in examine(lake.storage, **options).findings if finding.severity == "wrong"]


def check_table(table: sl.Table) -> None:
    """Whole in itself, for us and for other engines."""
    storage = table.log.storage
    assert max(table.baseline.refresh().marks) <= table.head
    if storage.is_local:
        assert claimed_files(table) <= data_files(table)
    for part, version in ((table.log, table.head), (table.baseline, table.baseline.refresh().version)):
        opened = DeltaTable(storage.url(part.folder), storage_options=dict(storage.delta_options) or None)
        assert opened.version() == version
        if opened.file_uris():
            opened.to_pyarrow_table()
    table.to_arrow()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy"


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


def large(lake: sl.Lake) -> sl.Table:
    table = lake.create_table("blobs", pa.schema([("id", pa.int64()), ("blob", pa.binary())]), key=["id"], vnodes=1)
    table.upsert([{"id": n, "blob": os.urandom(1 << 20)} for n in range(20)])
    return table


def test_a_file_larger_than_a_chunk_arrives_whole_and_progress_adds_up(lake, target):
    table = large(lake)
    said: list[tuple[int, int, str]] = []
    report = backup(lake, target, progress=lambda *step: said.append(step))
    copied = [step for step in said if step[1]]
    assert [done for done, _, _ in copied] == sorted(done for done, _, _ in copied)
    assert copied[-1][:2] == (report.bytes_copied, report.bytes_copied)
    assert len([step for step in copied if step[2] == "blobs"]) > 3
    assert sl.Lake(target).table("blobs").to_arrow().equals(table.to_arrow())


# --- while others write ----------------------------------------------------------------------------------------

WRITER = """
import itertools, json, pathlib, sys, time
import strandline as sl
lake = sl.Lake(sys.argv[1])
items, events = lake.table("items"), lake.table("events")
for n in itertools.count():
    items.upsert([{"id": n % 50, "name": str(n)}, {"id": -1, "name": str(n)}])
    events.append([{"id": n}])
    if n % 5 == 0:
        items.compact(full=True)
    if n % 20 == 7:
        lake.create_table(f"t{n}", items.schema, key=["id"], vnodes=1).upsert([{"id": n}])
    if n % 20 == 17:
        lake.drop(f"t{n - 10}")
    if n == 0:
        print("begun", flush=True)
    time.sleep(0.005)
    if pathlib.Path(sys.argv[2]).exists():
        break
print(json.dumps(n))
"""


def test_backups_taken_while_a_process_writes_are_states_that_the_lake_had(lake, tmp_path):
    small(lake)
    writer = start_python(WRITER, lake.storage.uri, str(tmp_path / "stop"))
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        copies = []
        for number in range(6):
            # Three targets, each of them twice: first copies and later ones.
            to = tmp_path / f"copy{number % 3}"
            report = backup(lake, to)
            seqs = dict(report.tables)
            copy = sl.Lake(to)
            assert {name: copy.table(name).head for name in copy.tables()} == seqs
            for name in ("items", "events"):
                check_table(copy.table(name))
                assert rows_of(copy.table(name).to_arrow()) == rows_of(lake.table(name).to_arrow(at=seqs[name]))
            copies.append((to, seqs))
            time.sleep(0.1)
    finally:
        (tmp_path / "stop").touch()
    assert answer_of(writer) > 5
    assert copies[-1][1]["items"] > copies[0][1]["items"]
    for to, seqs in copies[3:]:
        copy = sl.Lake(to)
        for name, seq in seqs.items():
            if name in ("items", "events"):
                some = range(0, seq + 1, max(1, seq // 10))
                assert [state(copy.table(name), at) for at in some] == [state(lake.table(name), at) for at in some]
        assert wrong(copy) == []
    backup(lake, copies[-1][0])
    assert now(sl.Lake(copies[-1][0])) == now(lake)


class Meddled(LocalStorage):
    """A folder where something happens at a certain moment: `hook(verb, path)` is called before each read."""

    def __init__(self, root: str, hook: Callable[[str, str], None]) -> None:
        super().__init__(root)
        object.__setattr__(self, "hook", hook)

    def read(self, path):
        self.hook("read", path)
        return super().read(path)

    def list(self, prefix, *, after=""):
        self.hook("list", prefix)
        return super().list(prefix, after=after)

    def input(self, path):
        self.hook("input", path)
        return super().input(path)


def once(is_moment: Callable[[str, str], bool], act: Callable[[], Any]) -> Callable[[str, str], None]:
    """A hook that acts at the first moment of a kind; whoever else comes waits for it."""
    lock, acted = threading.Lock(), []

    def hook(verb: str, path: str) -> None:
        with lock:
            if not acted and is_moment(verb, path):
                acted.append(1)
                act()

    return hook


def test_a_fold_and_a_trim_between_the_looks_at_baseline_and_log_are_both_copied(lake, target):
    small(lake)
    table = lake.table("items")
    seen = []

    def is_moment(verb: str, path: str) -> bool:
        """The log is looked at after the baseline was."""
        seen.append(path)
        return table.log.folder in path and any(table.baseline.folder in earlier for earlier in seen)

    def meddle() -> None:
        table.compact(full=True)
        trim(table, table.head)

    copy_lake(Meddled(lake.storage.uri, once(is_moment, meddle)), LocalStorage(str(target)))
    assert table.log.refresh().trimmed_to > 0
    check_copy(lake, sl.Lake(target))


def test_a_table_dropped_between_catalog_and_table_is_not_copied(lake, target):
    small(lake)
    entry = lake.table("items").entry
    hook = once(lambda verb, path: entry.folder in path, lambda: lake.drop("items"))
    report = copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    assert dict(report.tables) == {"events": 1}
    assert sl.Lake(target).tables() == ["events"]
    check_copy(lake, sl.Lake(target))


def test_what_is_committed_after_the_state_was_fixed_is_left_for_the_next_copy(lake, target):
    small(lake)
    table = lake.table("items")
    head = table.head

    def meddle() -> None:
        # So many that a checkpoint comes, and with it a pointer behind the fixed state.
        for n in range(60):
            table.upsert(rows(n, name="later"))
        table.compact(full=True)

    hook = once(lambda verb, path: verb == "list" and path == table.entry.folder, meddle)
    report = copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    assert dict(report.tables)["items"] == head
    copy = sl.Lake(target).table("items")
    assert [state(copy, seq) for seq in range(copy.head + 1)] == [state(table, seq) for seq in range(head + 1)]
    assert not [name for name in files_below(target) if "checkpoint" in name]
    check_table(copy)
    backup(lake, target)
    check_copy(lake, sl.Lake(target))


def test_older_files_may_be_cleaned_away_during_a_copy_but_live_ones_may_not(lake, target):
    small(lake)
    table = lake.table("items")
    table.compact(full=True)
    old = [name for name in data_files(table) if name not in claimed_files(table)]
    assert old
    folder = Path(lake.storage.uri) / table.entry.folder

    def is_copying(verb: str, path: str) -> bool:
        return verb == "input" and "/_delta_log/" not in path

    def cleaning(name: str) -> Callable[[str, str], None]:
        return once(is_copying, (folder / name).unlink)

    for name in old:
        copy_lake(Meddled(lake.storage.uri, cleaning(name)), LocalStorage(str(target)))
        assert rows_of(sl.Lake(target).table("items").to_arrow()) == rows_of(table.to_arrow())
        shutil.rmtree(target)
    live = min(claimed_files(table))
    data = (folder / live).read_bytes()
    cutting = once(is_copying, lambda: (folder / live).write_bytes(data[:-1]))
    for hook in (cleaning(live), cutting):
        with refused(sl.Corrupt, table="items", path=f"{table.entry.folder}/{live}"):
            copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
        check_unfinished(target)
        assert f"{table.entry.folder}/{live}" not in files_below(target)
        (folder / live).write_bytes(data)


class HeldAtOnce(Pins):
    """Pins as they are when the work lasts."""

    def held(self, pin: Pin, **_: Any) -> Any:
        return super().held(pin, quiet_s=0)


def test_a_copy_that_lasts_keeps_vacuum_from_what_it_reads(lake, target, monkeypatch):
    monkeypatch.setattr(backups, "Pins", HeldAtOnce)
    monkeypatch.setattr(delta, "RESTED_S", -60.0)
    small(lake)
    table = grown(lake, 5)
    table.upsert(rows(1))
    before, root = states(lake), Path(lake.storage.uri)
    deleted = []

    def meddle() -> None:
        table.compact(full=True)
        deleted.append(table.vacuum(grace=0, keep=0).deleted_files)

    hook = once(lambda verb, path: verb == "list" and path == table.entry.folder, meddle)
    copy_lake(Meddled(lake.storage.uri, hook), LocalStorage(str(target)))
    assert states(sl.Lake(target)) == before
    assert deleted == [0]
    assert not [name for name in files_below(root) if name.startswith("pins/")]
    assert table.vacuum(grace=0, keep=0).deleted_files > 0
    backup(lake, target)
    assert now(sl.Lake(target)) == now(lake)


# --- logs whose beginning is gone ------------------------------------------------------------------------------


def clean(part: Any) -> None:
    """Delete what lies before the last checkpoint of a log or baseline, and say so before, as a vacuum does."""
    folder = Path(part.storage.uri) / part.folder / "_delta_log"
    last = json.loads((folder / "_last_checkpoint").read_text())["version"]
    if isinstance(part, Baseline):
        part.keep_from(lambda state: last)
    part.delta.chain.checkpoints.set_alone(last)
    for path in folder.glob("*"):
        if path.name[:20].isdigit() and int(path.name[:20]) < last:
            path.unlink()


def grown(lake: sl.Lake, count: int) -> sl.Table:
    table = lake.table("items")
    for n in range(count):
        table.upsert(rows(n % 7, name=str(n)))
    table.compact(full=True)
    return table


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
    pointers = [Chain(LocalStorage(str(root)), table.log.folder).checkpoints for root in (target, lake.storage.uri)]
    assert [each.pointed() for each in pointers] == [table.head, table.head]
    check_copy(lake, sl.Lake(target))


# --- crashes ---------------------------------------------------------------------------------------------------

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


def check_unfinished(target: Any, **options: Any) -> None:
    """A first copy that has not ended is no lake, and no empty place either: no lake is made over it."""
    try:
        assert not sl.Lake(target, **options).exists
    except (sl.Corrupt, sl.Conflict) as error:
        assert "did not end" in error.message or "not complete" in error.message


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


class Cut(Exception):
    """The machine stops here."""


class Cutting(LocalStorage):
    """A folder to which a process writes so many files and then no more."""

    def __init__(self, root: str, writes: int) -> None:
        super().__init__(root)
        object.__setattr__(self, "left", [writes])
        object.__setattr__(self, "lock", threading.Lock())

    def _write(self) -> None:
        with self.lock:
            self.left[0] -= 1
            if self.left[0] < 0:
                raise Cut

    def put_new(self, path, data):
        self._write()
        return super().put_new(path, data)

    @contextmanager
    def output(self, path):
        self._write()
        with super().output(path) as stream:
            yield stream


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


# --- what is refused -------------------------------------------------------------------------------------------


@contextmanager
def left_as_it_was(folder: Path):
    before = {name: (folder / name).stat().st_mtime_ns for name in files_below(folder)}
    yield
    assert {name: (folder / name).stat().st_mtime_ns for name in files_below(folder)} == before


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


def test_a_missing_or_cut_file_stops_the_backup_before_anything_is_written(lake, target):
    small(lake)
    table = lake.table("items")
    for part in ("log", "baseline"):
        path = next(name for name in sorted(claimed_files(table)) if name.startswith(part))
        file = Path(lake.storage.uri) / table.entry.folder / path
        data = file.read_bytes()
        for damage in (file.unlink, lambda file=file, data=data: file.write_bytes(data[:-1])):
            damage()
            with refused(sl.Corrupt, table="items", path=f"{table.entry.folder}/{path}"):
                backup(lake, target)
            assert not target.exists()
            file.write_bytes(data)
    shutil.rmtree(Path(lake.storage.uri) / table.baseline.folder)
    with refused(sl.Corrupt, path=table.baseline.folder):
        backup(lake, target)
    assert not target.exists()


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


def test_a_place_that_takes_no_folders_is_refused_by_name(lake):
    lake.create_table("items", ITEMS, key=["id"])
    with refused(sl.Unavailable) as caught:
        lake.backup("/proc/nothing/here")
    assert "/proc/nothing" in caught.value.message
