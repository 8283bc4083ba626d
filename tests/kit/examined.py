"""A lake to examine, and what an examination finds.

A test module takes the fixtures that it needs by assignment, as in `folder = examined.folder`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.jobs.doctor import Report, examine
from strandline.storage.open import LocalStorage
from support import ITEMS


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": i, "name": f"{name}{i}", "qty": i % 5} for i in ids]


@pytest.fixture
def folder(items: sl.Table) -> Path:
    """The folder of a table with some history: commits, a delete, two folds, an append-only neighbour."""
    lake = sl.Lake(items.log.storage.uri)
    table = lake.table("items")
    table.upsert(rows(*range(100)))
    table.compact(full=True)
    table.upsert(rows(*range(50, 150), name="m"))
    table.delete([1, 2, 3])
    table.compact(full=True)
    table.upsert(rows(200))
    events = lake.create_table("events", ITEMS)
    events.append(rows(1, 2))
    events.compact(full=True)
    events.append(rows(3))
    return Path(lake.storage.uri) / table.entry.folder


@pytest.fixture
def check(lake: sl.Lake) -> Callable[..., Report]:
    def run(**options: Any) -> Report:
        return examine(LocalStorage(lake.storage.uri), **options)

    return run


def wrong(report: Report) -> list[tuple[str | None, str]]:
    return [(f.table, f.what) for f in report.findings if f.severity == "wrong"]


def notes(report: Report) -> list[str | None]:
    """The commands that notes name, without those about folding."""
    return [f.command for f in report.findings if not (f.command or "").startswith("compact ")]


def aged(path: Path, seconds: float = 7200) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def live_file(folder: Path, part: str) -> Path:
    snapshot = sl.Lake(folder.parents[2]).table("items")
    files = (snapshot.log if part == "log" else snapshot.baseline).refresh().snapshot.files
    # The largest, with rows enough to be in a wrong order.
    return folder / part / max(files, key=lambda path: (files[path].size, path))
