"""Files to load, and what is loaded of them.

A test module takes the fixtures that it needs by assignment, as in `events = ingested.events`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from support import ITEMS


def lines(*ids: int, name: str = "n") -> str:
    return "".join(json.dumps({"id": i, "name": f"{name}{i}", "qty": i % 7}) + "\n" for i in ids)


def rows_in(table: sl.Table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist())


def actions(report: Any) -> list[str]:
    return [file.action for file in report.files]


@pytest.fixture
def events(lake: sl.Lake) -> sl.Table:
    """An append-only table, where a row that is loaded twice shows."""
    return lake.create_table("events", ITEMS)


@pytest.fixture(params=["events", "items"])
def table(request: pytest.FixtureRequest) -> sl.Table:
    return request.getfixturevalue(request.param)


@pytest.fixture
def load(lake: sl.Lake, tmp_path: Path) -> Callable[..., Any]:
    def call(table: sl.Table, *files: str, **options: Any) -> Any:
        return lake.ingest(table.name, [str(tmp_path / file) for file in files], **options)

    return call
