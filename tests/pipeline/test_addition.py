"""Adding a sink by command: what it would change, and what it did."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline.errors import Invalid
from strandline.sinks.definition import SinkDef
from strandline.sinks.parquet import ParquetSink


def test_a_new_sink_is_planned_and_added_with_the_rows_that_it_sends(items: sl.Table, lake: sl.Lake, tmp_path: Path):
    items.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    sink = lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out"))
    planned = lake.plan_sink(sink)
    assert (planned.before, planned.after.is_new, planned.is_change) == (None, True, False)
    assert not lake.has_state, "a plan writes nothing"
    added = lake.add_sink(sink)
    assert added.has_rows
    facts = added.to_dict()
    assert (facts["name"], facts["is_new"], facts["rows"], facts["shared_with"]) == ("out", True, 2, [])
    assert "out" in sl.Lake(lake.storage.uri).consumer_states(), "also without the program that declares it"


def test_another_condition_is_a_change_and_another_place_a_new_life(items: sl.Table, lake: sl.Lake, tmp_path: Path):
    lake.add_sink(lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out")))
    same = lake.plan_sink(lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out")))
    assert not same.is_change
    narrow = lake.plan_sink(lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out"), where="id > 1"))
    assert narrow.is_change and not narrow.after.is_new
    moved = lake.plan_sink(lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "other")))
    assert moved.is_change and moved.after.is_new


def test_sinks_with_one_destination_are_named(items: sl.Table, lake: sl.Lake, tmp_path: Path):
    lake.add_sink(lake.sink("a", "items", to=sl.ParquetSink(tmp_path / "out")))
    added = lake.add_sink(lake.sink("b", "items", to=sl.ParquetSink(tmp_path / "out"), start="head"))
    assert added.change.shared_with == ["a"]
    assert not added.has_rows


def test_files_and_a_mirror_in_one_folder_are_named_too(items: sl.Table, lake: sl.Lake, tmp_path: Path):
    lake.add_sink(lake.sink("files", "items", to=sl.ParquetSink(tmp_path / "out")))
    added = lake.add_sink(lake.sink("mirror", "items", to=sl.DeltaSink(tmp_path / "out")))
    assert added.change.shared_with == ["files"]


def test_a_start_after_the_head_is_refused(items: sl.Table, lake: sl.Lake, tmp_path: Path):
    sink = lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out"), start=9)
    with pytest.raises(Invalid) as error:
        lake.plan_sink(sink)
    assert (error.value.fields["consumer"], error.value.fields["seq"]) == ("out", 9)


def test_a_sink_whose_place_became_a_file_keeps_no_other_from_being_added(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    items.upsert([{"id": 1, "name": "a"}])
    lake.add_sink(SinkDef.declare("bad", "items", ParquetSink(str(tmp_path / "bad"))))
    (tmp_path / "bad").write_text("no folder")
    other = sl.Lake(lake.storage.uri)
    added = other.add_sink(SinkDef.declare("good", "items", ParquetSink(str(tmp_path / "good"))))
    assert added.change.shared_with == [] and added.plan.rows == 1
    bad, _ = other.status().sinks
    assert bad.error is not None and bad.lag.rows == 1, "what cannot be planned is behind all the same"
