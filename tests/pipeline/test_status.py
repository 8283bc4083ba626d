"""How far the consumers of a lake are."""

from __future__ import annotations

from pathlib import Path

import strandline as sl
from pipelines import rows
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
