"""What a consumer reports."""

from __future__ import annotations

import json

import strandline as sl
from strandline.consumers.contract import ConsumerReport, LaneEnd, Receipt


def report() -> ConsumerReport:
    return ConsumerReport(name="archive", table="items", kind="parquet", destination="/out")


def test_runs_add_up() -> None:
    found = report()
    found.add(Receipt(rows=2, bytes=10, requests=1, facts={"engine": "driver"}))
    found.add(Receipt(rows=3, withheld=1, dead=4, facts={"vnodes": 2}, ends={(0,): LaneEnd(cuts=[1])}))
    assert (found.rows, found.bytes, found.requests, found.withheld, found.dead) == (5, 10, 1, 1, 4)
    assert found.facts == {"engine": "driver", "vnodes": 2} and found.ends == {}


def test_marks_that_moved_are_one_range() -> None:
    found = report()
    assert (found.after, found.upto) == (None, None)
    found.reach(3, 5)
    found.reach(1, 4)
    assert (found.after, found.upto) == (1, 5)


def test_a_report_is_well_unless_something_failed_or_rows_were_refused() -> None:
    found = report()
    assert found.is_well and found.error is None
    found.dead = 3
    assert found.is_all_refused and not found.is_well
    found.rows = 1
    assert not found.is_all_refused and not found.is_well
    found.dead = 0
    assert found.is_well
    found.errors += [sl.Unavailable("away"), sl.Invalid("bad")]
    assert not found.is_well and found.error is found.errors[0]


def test_a_report_and_its_receipt_are_plain_data() -> None:
    found = report()
    found.reach(0, 7)
    found.errors.append(sl.Unavailable("away", consumer="archive"))
    told = json.loads(json.dumps(found.to_dict()))
    assert (told["name"], told["kind"], told["upto"], told["error"]["kind"]) == ("archive", "parquet", 7, "Unavailable")
    kept = json.loads(json.dumps(found.receipt()))
    assert kept["error"]["message"] == "away" and "name" not in kept and "errors" not in kept


def test_two_reports_share_nothing() -> None:
    first, second = report(), report()
    first.errors.append(sl.Invalid("bad"))
    first.facts["a"] = 1
    assert second.errors == [] and second.facts == {}
