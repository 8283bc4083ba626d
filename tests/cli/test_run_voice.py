"""What `strandline run` prints about failures that go on."""

from __future__ import annotations

import json

import pytest

import strandline as sl
from strandline.cli.run import _Voice
from strandline.cli.verb import Call
from strandline.consumers.contract import ConsumerReport

AWAY = sl.Unavailable("the destination is away")


def ran(*errors: sl.StrandlineError, rows: int = 0) -> sl.TickReport:
    found = ConsumerReport(name="a", table="t", kind="parquet", destination="out", errors=list(errors), rows=rows)
    if rows:
        found.reach(0, 1)
    return sl.TickReport((found,))


def test_a_failure_that_goes_on_is_printed_once_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    voice = _Voice(Call("./lake", is_json=False, is_debug=False))
    for heard in (ran(AWAY), ran(AWAY), ran(AWAY), ran(sl.Invalid("bad")), ran(rows=1), sl.TickReport(())):
        voice.tell(heard)
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["a: Unavailable: the destination is away", "a: Invalid: bad"]
    assert lines[2].startswith("a: works again; a: 1 row")
    assert lines[3:] == ["Up to date"]


def test_a_known_failure_is_left_out_of_the_documents_too(capsys: pytest.CaptureFixture[str]) -> None:
    voice = _Voice(Call("./lake", is_json=True, is_debug=False))
    for heard in (ran(AWAY), ran(AWAY), sl.Conflict("not this state"), sl.Conflict("not this state"), ran(rows=1)):
        voice.tell(heard)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("error" in each, len(each.get("consumers", ()))) for each in documents] == [
        (False, 1), (True, 0), (False, 1),
    ]  # fmt: skip
