"""What to copy: the state of each table at nearly one moment, whatever others do meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copies
import strandline as sl
from copies import (
    Meddled,
    check_copy,
    check_table,
    check_unfinished,
    grown,
    now,
    once,
    rows,
    small,
    state,
    states,
    wrong,
)
from strandline.jobs.backup import backup, copy_lake
from strandline.jobs.backup import plan as backups
from strandline.storage import delta
from strandline.storage.open import LocalStorage
from strandline.tables.pins import Pin, Pins
from support import (
    answer_of,
    claimed_files,
    data_files,
    files_below,
    refused,
    rows_of,
    start_python,
    trim,
)

target = copies.target


WRITER = """
import itertools, json, pathlib, sys, time
import strandline as sl
lake = sl.Lake(sys.argv[1])
items, events = lake.table("items"), lake.table("events")
for n in itertools.count():
    items.upsert([{"id": n % 50, "name": str(n)}, {"id": -1, "name": str(n)}], missing="null")
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
