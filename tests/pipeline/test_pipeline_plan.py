"""What a tick will do."""

from __future__ import annotations

from pathlib import Path

import strandline as sl
from pipelines import rows
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink


def test_a_sink_whose_condition_lost_its_column_says_so(lake: sl.Lake, items: sl.Table, place: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(place)), where="qty is null")
    items.upsert(rows(1))
    assert (lake.tick().sinks[0].rows, lake.plan().sinks[0].lost) == (1, ())
    items.drop_column("qty")
    items.upsert(rows(2))
    report = lake.tick().sinks[0]
    assert (report.rows, report.withheld, report.lost) == (0, 1, ("qty",)) == (0, 1, lake.plan().sinks[0].lost)


def test_a_commit_without_data_is_no_lag_and_no_work(lake: sl.Lake, items: sl.Table, archive: SinkDef) -> None:
    items.configure(keep="7d")
    assert lake.plan().is_idle and lake.status().sinks[0].lag.is_none
