"""A lake with history, copies of it, and storages that meddle or break off.

A test module takes the fixtures that it needs by assignment, as in `target = copies.target`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.jobs.doctor import examine
from strandline.storage.open import LocalStorage
from strandline.tables.rejects import Rejects
from support import (
    ITEMS,
    claimed_files,
    data_files,
    files_below,
    rows_of,
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
    items.upsert([{"id": 4, "colour": "red"}, {"id": 30, "name": "b"}], missing="null")
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


def large(lake: sl.Lake) -> sl.Table:
    table = lake.create_table("blobs", pa.schema([("id", pa.int64()), ("blob", pa.binary())]), key=["id"], vnodes=1)
    table.upsert([{"id": n, "blob": os.urandom(1 << 20)} for n in range(20)])
    return table


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


def grown(lake: sl.Lake, count: int) -> sl.Table:
    table = lake.table("items")
    for n in range(count):
        table.upsert(rows(n % 7, name=str(n)))
    table.compact(full=True)
    return table


def check_unfinished(target: Any, **options: Any) -> None:
    """A first copy that has not ended is no lake, and no empty place either: no lake is made over it."""
    try:
        assert not sl.Lake(target, **options).exists
    except (sl.Corrupt, sl.Conflict) as error:
        assert "did not end" in error.message or "unfinished" in error.message


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


@contextmanager
def left_as_it_was(folder: Path):
    before = {name: (folder / name).stat().st_mtime_ns for name in files_below(folder)}
    yield
    assert {name: (folder / name).stat().st_mtime_ns for name in files_below(folder)} == before
