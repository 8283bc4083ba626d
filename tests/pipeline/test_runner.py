"""A tick, and ticks for ever: consumers side by side, then the tables."""

from __future__ import annotations

import datetime as dt
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from pipelines import delivered, rows
from strandline.consumers import loop, retention
from strandline.engines.choice import DriverLimit
from strandline.pipeline import runner
from strandline.pipeline.status import TableStatus
from strandline.sinks.parquet import ParquetSink


@pytest.mark.parametrize("where", ["lease_of", "this_worker"])
def test_a_fault_of_one_sink_that_nobody_foresaw_stops_no_other(
    lake: sl.Lake, items: sl.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    items.upsert(rows(1))
    for number in range(3):
        lake.sink(f"s{number}", "items", to=ParquetSink(str(tmp_path / f"s{number}")))
    real, calls = getattr(loop, where), iter(range(99))

    def broken(*words: object) -> object:
        if not next(calls):
            raise RuntimeError("what is this?")
        return real(*words)

    monkeypatch.setattr(loop, where, broken)
    reports = lake.tick().sinks
    [failed] = [report for report in reports if report.error is not None]
    assert isinstance(failed.error, sl.Internal) and "what is this?" in failed.error.message
    assert sorted(report.rows for report in reports) == [0, 1, 1]


def timed(id: int, days: float) -> dict[str, Any]:
    return {"id": id, "at": dt.datetime.now(dt.UTC) - dt.timedelta(days=days)}


def test_a_late_row_is_sent_before_it_expires(lake: sl.Lake, place: Path) -> None:
    """Lesson 21."""
    table = lake.create_table("timed", TIMED, key=["id"], vnodes=2, time="at", retention="90d")
    lake.sink("archive", "timed", to=ParquetSink(str(place)))
    table.upsert([timed(1, 0)])
    lake.tick()
    table.upsert([timed(2, 200), timed(3, 1)])
    assert retention.due_horizon(table) is None
    found = lake.status().tables[0]
    assert isinstance(found, TableStatus) and found.waits_for is not None and "archive" in found.waits_for
    with pytest.raises(sl.Conflict) as caught:
        table.expire(dt.datetime.now(dt.UTC) - dt.timedelta(days=100))
    assert caught.value.fields["consumer"] == "archive"
    report = lake.tick()
    assert (report.rows, report.expired) == (2, ("timed",))
    assert {row["id"] for row in delivered(place)} == {1, 2, 3}
    assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 3]
    assert lake.tick().is_idle


def test_rows_of_a_table_that_nobody_reads_expire_in_a_tick(lake: sl.Lake) -> None:
    table = lake.create_table("timed", TIMED, key=["id"], vnodes=2, time="at", retention="90d")
    table.upsert([timed(1, 200), timed(2, 1)])
    assert lake.plan().expire == ("timed",)
    assert lake.tick().expired == ("timed",)
    assert table.to_arrow().column("id").to_pylist() == [2]


def test_a_destination_that_never_answers_holds_no_other_sink_up(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    items.upsert(rows(1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        lake.sink("archive", "items", to=ParquetSink(str(place)))
        lake.sink("hung", "items", to=sl.HttpSink(url, receiver="any", timeout="4s", patience="1s"))
        stop = threading.Event()
        running = threading.Thread(target=runner.run, args=(lake, 0.1), kwargs={"stop": stop})
        running.start()
        try:
            for number in (2, 3, 4):
                items.upsert(rows(number))
                deadline_s = time.monotonic() + 3
                while len(delivered(place)) < number:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.05)
        finally:
            stop.set()
            running.join(60)
    assert not running.is_alive()


TIMED = pa.schema([pa.field("id", pa.int64(), False), ("at", pa.timestamp("us", tz="UTC"))])


@pytest.mark.parametrize("most_rows", [-1, 100], ids=["alone", "beside each other"])
def test_tables_are_folded_beside_each_other_when_they_are_small(
    lake: sl.Lake, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    monkeypatch.setattr(runner, "BESIDE", DriverLimit(most_rows, 1 << 20))
    names = [f"t{n}" for n in range(6)]
    for name in names:
        table = lake.create_table(name, pa.schema([("id", pa.int64())]), key=["id"], vnodes=2)
        table.upsert([{"id": n} for n in range(10)])
    planned = [each.name for each in lake.plan().consumers]
    seen: set[str] = set()
    real = runner._run_guarded

    def note(*args: Any) -> Any:
        seen.add(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(runner, "_run_guarded", note)
    report = lake.tick()
    assert [each.name for each in report.consumers] == [name for name in planned if name.startswith("compaction/")]
    assert (len(seen) > 1) is (most_rows > 0)
    assert all(lake.table(name).baseline.refresh().files() for name in names)
