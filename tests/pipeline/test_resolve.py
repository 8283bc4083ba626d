"""Which consumers a lake has: those with marks in the state, and two for each table."""

from __future__ import annotations

import datetime as dt

import pytest

import strandline as sl
from strandline.pipeline.resolve import split_names, table_plans


def test_names_are_of_the_state_or_of_tables() -> None:
    assert split_names(None) == (None, None)
    assert split_names([]) == ([], [])
    names = ["archive", "compaction/t", "retention/t", "compaction", "archive", "compaction/t"]
    assert split_names(names) == (["archive", "compaction"], ["compaction/t", "retention/t"])


def test_expired_rows_go_before_a_fold(lake: sl.Lake) -> None:
    schema = "id:int64, at:timestamp"
    table = lake.create_table("events", schema, key=["id"], time="at", vnodes=1, compact_files=2, retention="1d")
    for n in range(5):
        table.upsert([{"id": n, "at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}])
    plans, broken = table_plans(lake)
    assert [plan.name for _, plan in plans] == ["retention/events", "compaction/events"]
    assert not broken
    assert [plan.name for _, plan in table_plans(lake, ["compaction/events"])[0]] == ["compaction/events"]


def test_a_tick_of_a_tables_compaction_folds_that_table_alone(lake: sl.Lake) -> None:
    for name in ("events", "others"):
        table = lake.create_table(name, "id:int64, n:int64", key=["id"], vnodes=1, compact_files=2)
        for n in range(5):
            table.upsert([{"id": 1, "n": n}])
    # Five files are folded; packing them first would be of no use.
    [planned] = lake.plan(only=["compaction/events", "compaction/events"]).consumers
    assert (planned.name, planned.table) == ("compaction/events", "events")
    report = lake.tick(only=[planned.name])
    assert [(each.name, each.upto) for each in report.compacted] == [("compaction/events", 5)]
    assert lake.plan().compact == ("others",)
    assert lake.tick(only=["retention/others"]).is_idle
    for wrong in ("compaction/none", "compaction", "events"):
        with pytest.raises(sl.NotFound) as refused:
            lake.tick(only=[wrong])
        assert wrong.rpartition("/")[2] in refused.value.message
