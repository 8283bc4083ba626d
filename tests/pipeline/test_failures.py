"""A failure that goes on is news once, when it changes, and when it is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import strandline as sl
from strandline.consumers.contract import ConsumerReport
from strandline.pipeline.failures import Failures, News, log_tick
from strandline.pipeline.report import TickReport
from strandline.tables.broken import BrokenTable

LOGGER = "strandline.pipeline"


def ran(name: str, error: sl.StrandlineError | None = None, *, is_busy: bool = False) -> ConsumerReport:
    found = ConsumerReport(name=name, table="items", kind="parquet", destination="out", is_busy=is_busy)
    found.errors += [error] if error else []
    return found


def tick(*reports: ConsumerReport, broken: tuple[BrokenTable, ...] = ()) -> TickReport:
    return TickReport(reports, broken)


def test_a_failure_is_repeated_until_it_changes_and_over_when_its_consumer_works() -> None:
    failures = Failures()
    assert failures.note(tick(ran("a", sl.Unavailable("away")))) == News()
    assert failures.note(tick(ran("a", sl.Unavailable("away")))).repeated == {"a"}
    assert failures.note(tick(ran("a", sl.Invalid("bad")))) == News()
    assert failures.note(tick()) == News(), "a consumer that did nothing is neither failing nor fine"
    assert failures.note(tick(ran("a", is_busy=True))) == News()
    assert failures.note(tick(ran("a", sl.Invalid("bad")))).repeated == {"a"}
    assert failures.note(tick(ran("a"))).recovered == ("a",)
    assert failures.note(tick(ran("a"))) == News()


def test_the_number_of_attempts_is_no_change() -> None:
    failures = Failures()
    failures.note(tick(ran("a", sl.Unavailable("http://x was asked once and did not answer"))))
    again = failures.note(tick(ran("a", sl.Unavailable("http://x was asked 12 times and did not answer"))))
    assert again.repeated == {"a"}


def test_tables_and_whole_ticks_fail_and_recover_too() -> None:
    failures = Failures()
    cut = BrokenTable("items", "Corrupt", "a commit file is cut")
    assert failures.note(tick(broken=(cut,))) == News()
    assert failures.note(sl.Conflict("not this state")) == News()
    assert failures.note(sl.Conflict("not this state")).repeated == {"tick"}
    found = failures.note(tick(broken=(cut,)))
    assert (found.repeated, found.recovered) == ({"table items"}, ("tick",))
    assert failures.note(tick()).recovered == ("table items",)


def test_errors_are_logged_with_their_hints_and_known_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    heard = tick(ran("a", sl.Unavailable("away", hint="Wait.")))
    with caplog.at_level(logging.INFO, LOGGER):
        log_tick(heard, News())
        log_tick(heard, News(repeated=frozenset({"a"})))
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == ("ERROR", "a failed: Unavailable: away. Wait.")
    assert (vars(line)["consumer"], vars(line)["error"]) == ("a", "Unavailable")


def test_a_tick_from_python_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", "id:int64, name:string", key=["id"]).upsert([{"id": 1, "name": "a"}])
    lake.sink("good", "items", to=sl.ParquetSink(str(tmp_path / "out")))
    lake.sink("bad", "items", to=sl.ParquetSink(str(tmp_path / "other")))
    (tmp_path / "other").touch()
    with caplog.at_level(logging.INFO, "strandline"):
        report = lake.tick()
    lines = {vars(line).get("consumer"): line for line in caplog.records if line.name == LOGGER}
    assert (lines["good"].levelname, vars(lines["good"])["rows"]) == ("INFO", 1)
    assert lines["bad"].levelname == "ERROR"
    with pytest.raises(sl.StrandlineError):
        report.raise_for_errors()


def test_the_random_name_of_a_new_file_does_not_make_a_failure_another_one() -> None:
    failures = Failures()

    def full(name: str) -> TickReport:
        return tick(ran("a", sl.Unavailable(f"baseline/0000-{name}.parquet is on a read-only file system")))

    assert failures.note(full("2c59fff05ff24062ae971d985489e97f")) == News()
    assert failures.note(full("521e36b9961e45a78729949888c72bcc")).repeated == {"a"}
    for name in ("2c59fff05ff24062ae971d985489e97f", "521e36b9961e45a78729949888c72bcc"):
        assert failures.note(tick(ran("b", sl.Corrupt(f"{name}.parquet is damaged")))) == News()
