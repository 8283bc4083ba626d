"""When rows expire: as the setting says, or before a moment that a person gives."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.consumers.contract import ConsumerReport
from strandline.consumers.loop import run_own
from strandline.consumers.retention import Retention
from strandline.state.marks import ConsumerState
from support import refused

ZONED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
DATED = pa.schema([("id", pa.int64()), ("at", pa.date32())])


def ids(table: sl.Table) -> set[int]:
    return set(table.to_arrow().column("id").to_pylist())


def aged(*days: int) -> list[dict[str, object]]:
    now = dt.datetime.now(dt.UTC)
    return [{"id": each, "at": now - dt.timedelta(days=each)} for each in days]


def test_retention_says_before_when(make_table):
    table = make_table(ZONED, key=["id"], time="at", retention="7d")
    table.upsert(aged(1, 6, 8, 30))
    table.expire()
    assert ids(table) == {1, 6}
    table.configure(retention="none")
    with refused(sl.Invalid):
        table.expire()


def test_it_is_a_consumer_that_is_due_when_it_would_hide_a_row(lake):
    table = lake.create_table("visits", ZONED, key=["id"], time="at", retention="7d")
    consumer = Retention(table)
    assert consumer.plan(lake, ConsumerState()) == ()
    table.upsert(aged(1))
    assert consumer.plan(lake, ConsumerState()) == ()
    table.upsert(aged(8, 30))
    (work,) = consumer.plan(lake, ConsumerState())
    assert (work.extent.rows, work.engine, work.table.name) == (2, "driver", "visits")
    assert "before" in work.why
    report = ConsumerReport(name=consumer.name, table="visits", kind=consumer.kind, destination=consumer.destination)
    run_own(consumer, [work], lambda: consumer.plan(lake, ConsumerState()), report=report)
    assert (report.error, report.facts["seq"], report.upto) == (None, table.head, table.head)
    assert ids(table) == {1} and consumer.plan(lake, ConsumerState()) == ()


def test_a_table_without_retention_is_never_due(lake):
    table = lake.create_table("visits", ZONED, key=["id"], time="at")
    table.upsert(aged(8000))
    assert Retention(table).plan(lake, ConsumerState()) == ()


@pytest.mark.parametrize(
    "before",
    [
        "2026-01-01",
        7,
        True,
        dt.datetime(9999, 12, 31, 1),
        dt.datetime.max,
        dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-2))),
    ],
    ids=str,
)
def test_a_moment_that_no_read_could_hold_is_refused_and_the_table_stays_readable(make_table, before):
    """A day that begins after the last one, a time that has no UTC."""
    table = make_table(DATED, key=["id"], time="at")
    table.upsert([{"id": 1, "at": None}, {"id": 2, "at": dt.date.min}, {"id": 3, "at": dt.date.max}])
    with refused(sl.Invalid):
        table.expire(before)
    assert table.to_arrow().num_rows == 3


@pytest.mark.parametrize("retention", ["3000000d", 1e300])
def test_a_retention_longer_than_there_are_years_hides_nothing_or_is_refused(make_table, retention):
    table = make_table(DATED, key=["id"], time="at")
    table.upsert([{"id": 1, "at": None}, {"id": 2, "at": dt.date.min}, {"id": 3, "at": dt.date.max}])
    try:
        table.configure(retention=retention)
        table.expire()
    except sl.StrandlineError as error:
        assert isinstance(error, sl.Invalid)
    assert table.to_arrow().num_rows == 3


def test_a_moment_in_the_future_is_refused_before_anything_is_counted(make_table):
    table = make_table(ZONED, key=["id"], time="at")
    table.upsert(aged(1, 30))
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    for wrong in (soon, soon.date() + dt.timedelta(days=1), "2024-01-31"):
        for verb in (table.plan_expiry, table.expire):
            with refused(sl.Invalid):
                verb(wrong)
    assert table.plan_expiry(dt.date.today() - dt.timedelta(days=7)).rows == 1
