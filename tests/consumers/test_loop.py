"""The loop of a sink: what it costs in the state, and what it leaves there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.sinks.parquet import ParquetSink
from strandline.state.database import Database


@contextmanager
def counted_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """The write transactions of every state while the block runs."""
    writes: list[None] = []
    real = Database.transaction

    @contextmanager
    def counting(self: Database) -> Iterator[Any]:
        writes.append(None)
        with real(self) as connection:
            yield connection

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", counting)
        yield writes


def test_a_small_batch_costs_four_write_transactions(
    lake: sl.Lake, items: sl.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease; the intents and the epoch to come; the epoch that the lake was told; marks, receipt and the lease."""
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert([{"id": 1, "name": "a"}])
    lake.tick(only=["archive"])
    items.upsert([{"id": n, "name": "b"} for n in range(40)])
    with counted_writes(monkeypatch) as writes:
        (report,) = lake.tick(only=["archive"]).sinks
    assert (report.rows, report.error) == (40, None)
    assert len(writes) == 4


def test_the_last_batch_keeps_the_receipt_and_gives_the_lease_back(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert([{"id": 1, "name": "a"}])
    (report,) = lake.tick(only=["archive"]).sinks
    consumer = lake.state.registry.get("archive")
    (receipt,) = lake.state.marks.receipts(consumer)
    told = {name: receipt.body[name] for name in ("rows", "after", "upto", "error")}
    assert told == {"rows": report.rows, "after": report.after, "upto": report.upto, "error": None}
    assert lake.state.leases.find(consumer.lease) is None
    items.upsert([{"id": 2, "name": "b"}])
    assert [sink.rows for sink in lake.tick(only=["archive"]).sinks] == [1]
    assert len(lake.state.marks.receipts(consumer)) == 2


def test_a_failed_batch_leaves_a_receipt_and_no_lease(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert([{"id": 1, "name": "a"}])
    (tmp_path / "out").write_text("a file where a folder has to be")
    (report,) = lake.tick(only=["archive"]).sinks
    assert report.error is not None
    consumer = lake.state.registry.get("archive")
    assert [receipt.body["error"]["kind"] for receipt in lake.state.marks.receipts(consumer)] == [report.error.kind]
    assert lake.state.leases.find(consumer.lease) is None
