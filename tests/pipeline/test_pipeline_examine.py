"""The part of an examination that asks the state."""

from __future__ import annotations

from pathlib import Path

import strandline as sl
from strandline.errors import NotFound
from strandline.jobs.doctor import examine
from strandline.pipeline.examine import add_state


def test_a_lake_without_sinks_has_no_findings_of_its_state(items: sl.Table, lake: sl.Lake) -> None:
    report = examine(lake.storage)
    assert add_state(report, lambda: lake) == report
    assert not lake.has_state


def test_a_state_that_was_lost_is_a_finding_with_the_command(items: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    items.upsert([{"id": 1, "name": "a"}])
    lake.add_sink(lake.sink("out", "items", to=sl.ParquetSink(tmp_path / "out")))
    lake.tick()
    (tmp_path / "lake/state.db").unlink()
    report = add_state(examine(lake.storage), lambda: sl.Lake(tmp_path / "lake"))
    [finding] = [each for each in report.findings if each.severity == "wrong"]
    assert finding.command == "doctor --adopt-state"
    assert not report.is_sound


def test_a_sink_that_failed_is_a_finding(items: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    items.upsert([{"id": 1, "name": "a"}])
    lake.add_sink(lake.sink("out", "items", to=sl.HttpSink("http://127.0.0.1:9/ingest/items")))
    lake.tick()
    [finding] = [each for each in add_state(examine(lake.storage), lambda: lake).findings if "out" in each.what]
    assert (finding.severity, finding.command) == ("note", "tick out"), "the next tick tries again"


def test_a_lake_that_cannot_be_opened_is_a_finding(items: sl.Table, lake: sl.Lake) -> None:
    def fail() -> sl.Lake:
        raise NotFound("gone")

    [finding] = add_state(examine(lake.storage), fail).findings
    assert (finding.severity, finding.what, finding.command) == ("wrong", "gone", None)
