"""Rows of files become commits: small files share one, and each row is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bad_rows
import ingested
import strandline as sl
from bad_rows import GOOD
from ingested import actions, lines, rows_in
from strandline.engines.choice import DriverLimit
from strandline.jobs.ingest import load as loading
from strandline.jobs.ingest.loaded_files import Loaded
from support import answer_of, python, refused, start_python

events = ingested.events
load = ingested.load
things = bad_rows.things


def test_growing_leaves_one_memory_of_the_file(events: sl.Table, load: Callable[..., Any], tmp_path: Path) -> None:
    for number in range(1, 6):
        with open(tmp_path / "a.jsonl", "a") as file:
            file.write(lines(number))
        load(events, "a.jsonl")
    events.log.delta.checkpoint()
    fresh = sl.Lake(events.log.storage.uri).table("events")
    kept = [app for app in fresh.log.refresh().snapshot.txns if app.startswith("ingest/")]
    assert len(kept) == 1
    assert Loaded.parse(kept[0], 0).lines == 5
    assert actions(load(fresh, "a.jsonl")) == ["skip"]


def test_small_files_share_a_commit_and_large_ones_have_their_own(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "GROUP_BYTES", 1000)
    for number in range(6):
        count = 100 if number == 3 else 2
        (tmp_path / f"{number}.jsonl").write_text(lines(*range(number * 1000, number * 1000 + count)))
    report = load(events, "*.jsonl")
    assert [file.seq for file in report.files] == [1, 1, 1, 2, 3, 3]
    assert len(rows_in(events)) == report.rows == 110


def test_two_processes_load_the_same_files_once(events: sl.Table, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jsonl").write_text(lines(*range(number * 100, number * 100 + 100)))
    code = """
import sys, json, strandline as sl
from strandline.jobs.ingest import load
load.GROUP_BYTES = 5000
print(json.dumps(sl.Lake(sys.argv[1]).ingest("events", [sys.argv[2]]).rows))
"""
    started = [start_python(code, events.log.storage.uri, str(tmp_path / "*.jsonl")) for _ in range(3)]
    assert sum(answer_of(process) for process in started) == 800
    assert rows_in(events) == list(range(800))


def test_two_threads_load_a_growing_file_once(events: sl.Table, lake: sl.Lake, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines(0))
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            mine = sl.Lake(lake.storage.uri)
            while len(rows_in(mine.table("events"))) < 30:
                mine.ingest("events", [str(file)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        with file.open("a") as out:
            out.write(lines(number))
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_in(events) == list(range(30))


def test_a_file_too_large_for_the_driver_goes_through_spark_whole_and_once(
    events: sl.Table, load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: object
) -> None:
    monkeypatch.setitem(loading.write.__kwdefaults__, "limit", DriverLimit(0, 1000))
    (tmp_path / "a.jsonl").write_text(lines(*range(500)) + "bad\n" + lines(*range(500, 1000)))
    with refused(sl.Invalid, line=501):
        load(events, "a.jsonl")
    report = load(events, "a.jsonl", rejects=True)
    assert (report.rows, report.rejects) == (1000, 1)
    assert actions(load(events, "a.jsonl")) == ["skip"]
    assert rows_in(events) == list(range(1000))


_LOAD = """
import sys, strandline as sl
sl.Lake(sys.argv[1]).ingest("events", [sys.argv[2]], key=[], rejects=True)
"""


@pytest.mark.parametrize(
    "point",
    [
        "ingest.created", "ingest.file_read", "ingest.file_read:3", "log.file_written", "rejects.before_commit",
        "rejects.committed", "ingest.before_commit", "ingest.before_commit:2", "delta.before_commit",
        "delta.before_commit:2", "delta.committed:2", "log.committed", "log.committed:3", "ingest.committed",
        "ingest.committed:2",
    ],
)  # fmt: skip
def test_rows_and_rejects_are_there_once_after_a_kill_at(point: str, tmp_path: Path) -> None:
    for number in range(4):
        good = lines(*range(number * 10, number * 10 + 10))
        (tmp_path / f"{number}.jsonl").write_text(good + '{"id": bad}\n')
    uri, files = str(tmp_path / "lake"), str(tmp_path / "*.jsonl")
    code = "from strandline.jobs.ingest import load; load.GROUP_FILES = 2\n" + _LOAD
    killed = python(code, uri, files, crash=point)
    assert killed.returncode == -9, killed.stderr
    again = python(code, uri, files)
    assert again.returncode == 0, again.stderr
    lake = sl.Lake(uri)
    assert rows_in(lake.table("events")) == list(range(40))
    assert lake.status().tables[0].rejects == 4
    report = lake.ingest("events", [files])
    assert actions(report) == ["skip"] * 4


def test_earlier_groups_stay_when_a_later_file_is_bad(
    things: sl.Table, lake: sl.Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.jobs.ingest.load.GROUP_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(GOOD % number)
    (tmp_path / "3.jsonl").write_text("garbage\n")
    with refused(sl.Invalid, file=str(tmp_path / "3.jsonl"), line=1) as caught:
        lake.ingest("things", [str(tmp_path / "*.jsonl")])
    assert "2 earlier files are loaded" in str(caught.value)
    assert things.to_arrow(columns=["id"]).num_rows == 2
    (tmp_path / "3.jsonl").write_text(GOOD % 3)
    assert lake.ingest("things", [str(tmp_path / "*.jsonl")]).rows == 2
