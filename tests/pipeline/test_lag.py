"""How far marks are behind a table."""

from __future__ import annotations

import pytest

import strandline as sl
from folding import keys_in, put
from pipelines import rows
from strandline.pipeline.lag import Lag, lag_of, lag_of_plan
from strandline.sinks.parquet import ParquetSink


@pytest.fixture
def table(lake: sl.Lake) -> sl.Table:
    """Three commits: one of all vnodes, and one each of two vnodes."""
    made = lake.create_table("t", "id:int64, name:string", key=["id"], vnodes=4)
    put(made, [key for vnode in range(4) for key in keys_in(vnode, 2)])
    put(made, keys_in(0, 1), "later")
    put(made, keys_in(3, 1), "later")
    return made


def lag(table, marks, start="backfill"):
    log = table.log.refresh()
    now_s = log.files(log.trimmed_to, table.head)[-1][1].oldest_ms / 1000 + 5 if log.trimmed_to < log.head else 0.0
    return lag_of(marks, start, table.merge(), now_s)


def test_nothing_is_behind_at_the_head(table):
    assert lag(table, dict.fromkeys(range(4), 3)) == Lag(0, 0, None)
    assert lag(table, {}, start="head").is_none
    assert lag(table, {}, start=3).to_dict() == {"commits": 0, "rows": 0, "seconds": None}


def test_a_consumer_that_never_ran_lacks_the_whole_table(table):
    found = lag(table, {})
    assert (found.commits, found.rows) == (3, 10) and found.seconds is not None and found.seconds >= 5
    table.compact(full=True)
    assert lag(table, {}).rows == 8


def test_only_the_vnodes_that_are_behind_count(table):
    assert lag(table, {0: 3, 1: 3, 2: 3, 3: 2}).commits == 1
    # The change of vnode 3 alone is missing, and the seqs of the others do not count.
    assert lag(table, {0: 1, 1: 3, 2: 3, 3: 3}).commits == 1
    assert lag(table, {0: 3, 1: 1, 2: 3, 3: 3}).commits == 0


def test_a_mark_below_the_trimmed_log_counts_what_is_there(table):
    table.compact(full=True)
    table.vacuum(keep=0, grace=0)
    put(table, keys_in(1, 1), "new")
    assert lag(table, dict.fromkeys(range(4), 1)).commits == 1


def test_a_sink_that_cannot_be_planned_has_a_lag_while_its_table_is_there(lake, tmp_path):
    items = lake.create_table("items", "id:int64, name:string, qty:int64", key=["id"], vnodes=2)
    items.upsert(rows(1, 2))
    lake.sink("out", "items", to=ParquetSink(str(tmp_path / "out")), where="qty > 1")
    lake.tick().raise_for_errors()
    items.upsert(rows(3))
    (plan,) = [each for each in lake.plan().consumers if each.name == "out"]
    assert lag_of_plan(lake, plan).commits == 1
    lake.drop("items")
    (plan,) = [each for each in lake.plan().consumers if each.name == "out"]
    assert lag_of_plan(lake, plan) == Lag(0, 0, None)
