"""The report of a tick, and the error that it raises when it is asked to."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.consumers.contract import ConsumerReport
from strandline.pipeline.report import TickReport
from strandline.tables.broken import BrokenTable
from support import refused


def ran(name: str, *errors: sl.StrandlineError, dead: int = 0) -> ConsumerReport:
    return ConsumerReport(name=name, table="items", kind="parquet", destination="out", errors=list(errors), dead=dead)


def test_a_tick_that_went_well_raises_nothing() -> None:
    TickReport((ran("a"), ran("b"))).raise_for_errors()


def test_the_one_error_of_a_tick_is_raised_as_it_is() -> None:
    away = sl.Unavailable("the destination is away", hint="Wait.")
    with pytest.raises(sl.Unavailable) as found:
        TickReport((ran("a"), ran("b", away))).raise_for_errors()
    assert found.value is away


def test_several_errors_are_one_that_names_all_and_has_the_gravest_kind() -> None:
    report = TickReport((ran("a", sl.Unavailable("away", hint="Wait.")), ran("b", sl.Invalid("bad"))))
    with pytest.raises(sl.Invalid) as found:
        report.raise_for_errors()
    assert found.value.fields == {"failed": ["a", "b"]}
    assert "a: Unavailable: away; b: Invalid: bad" in found.value.message
    assert found.value.hint == "Wait."


def test_errors_that_pass_by_themselves_are_unavailable() -> None:
    with pytest.raises(sl.Unavailable):
        TickReport((ran("a", sl.Unavailable("away")), ran("b", sl.Unavailable("away")))).raise_for_errors()


def test_refused_rows_and_broken_tables_are_raised_too() -> None:
    with refused(sl.Invalid, consumer="a", rows=3) as found:
        TickReport((ran("a", dead=3),)).raise_for_errors()
    assert found.value.hint == "See: strandline deadletter list a"
    with refused(sl.Corrupt, table="items"):
        TickReport((), (BrokenTable("items", "Corrupt", "a commit file is cut"),)).raise_for_errors()
