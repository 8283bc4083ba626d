"""How far the consumers of a lake are."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from pipelines import rows
from strandline.pipeline import status
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink


def test_the_lag_of_a_sink_that_will_start_again_is_the_table(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, tmp_path: Path
) -> None:
    assert lake.status().sinks[0].lag.is_none
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "elsewhere")))
    assert lake.status().sinks[0].lag.rows == lake.plan().sinks[0].rows == 3


def test_lag_is_told_in_commits_rows_and_seconds(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    assert lake.status().sinks[0].lag.is_none
    items.upsert(rows(4, 5))
    items.delete([1])
    items.configure(keep="7d")
    lag = lake.status().sinks[0].lag
    assert (lag.commits, lag.rows) == (2, 3) and lag.seconds is not None


def test_a_consumer_of_every_kind_has_a_status(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    visits = lake.create_table("visits", schema, key=["id"], time="at", retention="7d")
    visits.upsert([{"id": 1, "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}])
    found = {each.name: each for each in lake.status().consumers}
    assert sorted(found) == ["archive", "compaction/items", "compaction/visits", "retention/visits"]
    assert (found["retention/visits"].lag.rows, found["compaction/visits"].lag.rows) == (1, 1)
    lake.tick()
    found = {each.name: each for each in lake.status().consumers}
    assert found["retention/visits"].lag.is_none and found["compaction/visits"].error is None
    assert set(found["compaction/items"].marks.values()) == {items.head}


def test_a_failure_whose_cause_is_gone_is_over_when_nothing_is_left_to_send(
    lake: sl.Lake, items: sl.Table, archive: SinkDef
) -> None:
    lake.drop("items")
    lake.tick()
    assert [each.cause for each in lake.status().attention] == ["failed"]
    lake.undrop("items")
    status = lake.status()
    assert status.sinks[0].error is None and status.sinks[0].lag.is_none and status.is_healthy


def test_a_failure_stays_while_its_rows_are_not_sent(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, tmp_path: Path
) -> None:
    lake.sink("archive", "items", to=ParquetSink("/proc/no"))
    lake.tick()
    assert [each.cause for each in lake.status().attention] == ["failed"]


def test_a_table_that_is_dropped_meanwhile_is_left_out(
    lake: sl.Lake, items: sl.Table, archive: SinkDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = status.table_status

    def dropping(table: sl.Table, **options: Any) -> object:
        found = real(table, **options)
        lake.drop("items")
        return found

    monkeypatch.setattr(status, "table_status", dropping)
    found = lake.status()
    assert found.state_fault is None and [each.name for each in found.consumers] == ["archive"]
    assert found.consumers[0].error is not None
