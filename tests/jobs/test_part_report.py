"""Reports of tasks keep what they say, and only whole ones count."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.part_report import (
    NamesAsked,
    PartReport,
    PieceReport,
    RecordingMatcher,
    Reports,
    choose_attempt,
)
from strandline.model.definition import TableDef
from strandline.storage.snapshot import DataFile
from support import ITEMS, refused

PIECE = PieceReport(3, 10, 2, 99, 12, True, "abc", "{}", ["id"], [NamesAsked(True, ["Id", "\ud800"], ["id", "x"])])
FILE = DataFile("0000-a.parquet", 5, {"_seq": "1"}, 0, '{"numRecords": 2}', 7, 8)


@pytest.mark.parametrize(
    "error", [None, sl.Invalid("line 3 is bad", hint="correct it", line=3, column="id"), sl.Conflict("moved")]
)
def test_a_report_is_read_as_it_was_written(sl_lake: sl.Lake, error: sl.StrandlineError | None) -> None:
    reports, others = Reports(sl_lake.storage, "there"), Reports(sl_lake.storage, "there")
    reports.write(PartReport(7, [PIECE], [FILE], error))
    others.write(PartReport(0))
    ((found,),) = reports.read()
    assert (found.number, found.pieces, found.rejects) == (7, [PIECE], [FILE])
    assert type(found.error) is type(error) and vars(found.error or object) == vars(error or object)
    assert reports.failed_before(8) == (error is not None)
    assert not reports.failed_before(7)
    reports.delete()
    assert reports.read() == [] and len(others.read()) == 1


@pytest.fixture
def sl_lake(lake: sl.Lake) -> sl.Lake:
    lake.create_table("items", ITEMS)
    return lake


def test_a_whole_attempt_counts_before_a_failed_one() -> None:
    failed, whole = PartReport(0, error=sl.Unavailable("gone")), PartReport(0, [PIECE])
    assert choose_attempt([failed, whole]) is whole
    assert choose_attempt([failed]) is failed
    with refused(sl.Conflict):
        choose_attempt([whole, PartReport(0, [PieceReport(3)])])


def test_a_matcher_records_its_answers() -> None:
    definition = TableDef.declare(ITEMS)
    recording, plain = RecordingMatcher(definition), ColumnMatcher(definition)
    asked = recording.start_file()
    assert recording.match(["ID", "Name"]) == plain.match(["ID", "Name"])
    give, other = recording.one_by_one(), plain.one_by_one()
    assert [give(name) for name in ("qty", "QTY")] == [other(name) for name in ("qty", "QTY")]
    assert asked == [
        NamesAsked(False, ["ID", "Name"], ["id", "name"]),
        NamesAsked(True, ["qty", "QTY"], ["qty", "qty_2"]),
    ]
