"""The verbs of a lake that concern sinks: each does what its module does, for the lake's own state."""

from __future__ import annotations

import strandline as sl
from pipelines import delivered, rows
from strandline.pipeline.sink_verbs import SinkVerbs
from strandline.sinks.parquet import ParquetSink
from support import refused


def test_a_sink_from_its_declaration_to_its_end(lake: sl.Lake, items: sl.Table, place) -> None:
    assert isinstance(lake, SinkVerbs)
    items.upsert(rows(1, 2))
    made = lake.sink("out", "items", to=ParquetSink(str(place)))
    other = sl.Lake(lake.storage.uri)
    assert other.plan_sink(made).after.is_new
    assert other.add_sink(made).has_rows
    assert other.pause_sink("out").is_changed and other.tick(only=["out"]).paused == ("out",)
    assert other.resume_sink("out").is_changed
    other.tick(only=["out"]).raise_for_errors()
    assert len(delivered(place)) == 2
    assert other.backfill("out").status().condition == "none"
    assert other.reset_sink("out", "head", dry_run=True).start == "head"
    assert other.sinks_needing("items", "name") == []
    assert other.retire_sink("out", dry_run=True).name == "out"
    assert other.remove_sink("out").name == "out"
    with refused(sl.NotFound):
        other.pause_sink("out")
    assert other.replay([]) == []
    with refused(sl.Invalid):
        other.adopt_state()
