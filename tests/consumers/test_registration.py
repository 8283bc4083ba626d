"""A consumer as it is declared and as the state has it."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from pipelines import rows
from strandline.consumers.registration import resolve
from strandline.pipeline import commands
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink
from strandline.state.epoch import read_record
from support import ITEMS


def test_every_sink_is_told_to_the_lake_before_anything_of_it_leaves(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    items.upsert(rows(1))
    for number in range(3):
        lake.sink(f"s{number}", "items", to=ParquetSink(str(tmp_path / f"out{number}")))
    lake.tick()
    record = read_record(lake.storage)
    assert record is not None and [consumer.name for consumer in record.consumers] == ["s0", "s1", "s2"]


def test_a_sink_that_only_the_state_knows_begins_anew_in_a_table_that_was_recreated(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    items.upsert(rows(1))
    commands.add(lake, SinkDef.declare("archive", "items", ParquetSink(str(tmp_path / "out"))))
    lake.tick()
    lake.drop("items")
    with pytest.raises(sl.NotFound):
        commands.reset(lake, "archive")
    lake.create_table("items", ITEMS, key=["id"], vnodes=4).upsert(rows(7, 8))
    plan = lake.plan().sinks[0]
    assert plan.is_new and "recreated" in plan.why
    assert lake.tick().rows == 2
    assert lake.tick().is_idle


def test_a_declared_sink_that_never_ran_is_new(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")), start="head")
    items.upsert(rows(1))
    found = resolve(lake, "archive", lake.consumer_state("archive"))
    assert (found.table.name, found.registration.is_new, found.known.consumer) == ("items", True, None)
    assert found.consumer.start == items.head, "what comes next is meant as seen from here"
    assert lake.declared["archive"].start == "head"


def test_a_sink_goes_on_from_where_it_began_whatever_is_declared_later(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    to = ParquetSink(str(tmp_path / "out"))
    lake.sink("archive", "items", to=to)
    items.upsert(rows(1))
    lake.tick()
    lake.sink("archive", "items", to=to, start="head")
    found = resolve(lake, "archive", lake.consumer_state("archive"))
    assert (found.registration.is_new, found.registration.why, found.consumer.start) == (False, "", "backfill")
    assert found.marks.marks == lake.state.marks.load(found.registration.consumer)


def test_another_destination_is_another_life(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert(rows(1))
    lake.tick()
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "elsewhere")))
    found = resolve(lake, "archive", lake.consumer_state("archive"))
    assert found.registration.is_new and "destination changed" in found.registration.why
    assert found.marks.marks == {}, "a new life inherits no position"


def test_a_sink_of_the_state_alone_is_as_it_was_registered(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")), where="id > 3")
    items.upsert(rows(1))
    lake.tick()
    lake.rename("items", "things")
    other = sl.Lake(lake.storage.uri)
    found = resolve(other, "archive", other.consumer_state("archive"))
    assert (found.facts, found.registration.is_new, found.table.name) == (None, False, "things")
    assert found.consumer.to_dict()["where"] == "id > 3"


def test_a_sink_whose_table_was_dropped_says_so(lake: sl.Lake, items: sl.Table, tmp_path: Path) -> None:
    lake.sink("archive", "items", to=ParquetSink(str(tmp_path / "out")))
    items.upsert(rows(1))
    lake.tick()
    lake.drop("items")
    other = sl.Lake(lake.storage.uri)
    with pytest.raises(sl.NotFound, match="dropped"):
        resolve(other, "archive", other.consumer_state("archive"))
