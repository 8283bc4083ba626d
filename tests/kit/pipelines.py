"""Rows for a sink's table, and what a Parquet sink has delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def rows(*ids: int, name: str = "n") -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{name}{id}"} for id in ids]


def delivered(place: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found = [row for path in place.glob("data/**/*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: (row["_seq"], row["id"]))
