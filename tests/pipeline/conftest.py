"""A sink that archives a table of items."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from pipelines import rows
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def archive(lake: sl.Lake, items: sl.Table, place: Path) -> SinkDef:
    """A sink that has delivered one commit."""
    items.upsert(rows(1, 2, 3))
    sink = lake.sink("archive", "items", to=ParquetSink(str(place)))
    assert lake.tick().is_well
    return sink
