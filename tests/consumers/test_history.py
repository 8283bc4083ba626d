"""What happens to a table between the rounds of a backfill, and consumers that are no sinks."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

import strandline as sl
from strandline.consumers import ranges, rounds
from strandline.consumers.contract import Receipt
from strandline.consumers.loop import run_marked
from strandline.consumers.plan import plan_marked
from strandline.consumers.work import ROUND
from strandline.engines.choice import DriverLimit
from support import refused

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("at", pa.timestamp("us", "UTC")), pa.field("v", pa.int64())]
)
ROWS, ROUND_ROWS = 40, 9
OLD, NEW = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime.now(dt.UTC)


class Copy(sl.LogConsumer):
    """Keeps the rows that it gets, and how often it got each."""

    kind = "copy"
    destination = "memory"

    def __init__(self, name, table, **more):
        super().__init__(name, table, **more)
        self.rows, self.sources = {}, Counter()

    def run(self, work):
        with work.batches() as batches:
            found = [row for batch in batches for row in batch.to_pylist()]
        for row in found:
            if work.source == ROUND:
                assert row["id"] not in self.rows
            self.rows[row["id"]] = row["v"]
            if row["_op"] == "delete":
                del self.rows[row["id"]]
        self.sources[work.source] += 1
        return Receipt(rows=len(found))


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch):
    monkeypatch.setattr(ranges, "SMALL", DriverLimit(ROUND_ROWS, 1 << 40))
    for name in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(rounds, name, ROUND_ROWS)


@pytest.fixture
def table(lake):
    made = lake.create_table("items", SCHEMA, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    made.upsert([{"id": n, "at": OLD if n % 2 else NEW, "v": n} for n in range(ROWS)])
    return made


@pytest.fixture
def copy(lake):
    made = Copy("copy", "items")
    lake.consumer(made)
    return made


def deliver_rounds(lake, monkeypatch, count, name="copy"):
    """Run a consumer until so many rounds are delivered."""
    stop, left = threading.Event(), [count]
    plain = rounds.Rounds.note

    def note(self, work, *facts, **more):
        plain(self, work, *facts)
        left[0] -= work.source == ROUND
        if left[0] == 0:
            stop.set()

    with monkeypatch.context() as patch:
        patch.setattr(rounds.Rounds, "note", note)
        report = run_marked(lake, plan_marked(lake, name, lake.consumer_state(name)), stop=stop)
    assert not report.errors
    return report


def finish(lake, copy, table):
    lake.tick(only=[copy.name]).raise_for_errors()
    assert copy.rows == {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
    assert lake.tick(only=[copy.name]).sinks == ()


def test_a_consumer_of_any_kind_gets_history_in_rounds(lake, table, copy):
    finish(lake, copy, table)
    assert copy.sources[ROUND] >= ROWS // ROUND_ROWS and set(copy.sources) == {ROUND}
    at = lake.consumer_state("copy").positions
    assert all(each.is_done and each.share == 1 for each in at.values())
    assert sum(each.rows for each in at.values()) == ROWS
    table.upsert([{"id": 1, "at": NEW, "v": -1}])
    finish(lake, copy, table)
    assert copy.sources["log"] == 1


def test_a_small_table_is_one_batch(lake):
    table = lake.create_table("items", SCHEMA, key=["id"], vnodes=2)
    table.upsert([{"id": n, "at": NEW, "v": n} for n in range(ROUND_ROWS)])
    copy = Copy("copy", "items")
    lake.consumer(copy)
    finish(lake, copy, table)
    assert copy.sources == {"snapshot": 1} and not lake.consumer_state("copy").positions


def test_rows_do_not_expire_before_the_history_is_delivered(lake, table, copy, monkeypatch):
    deliver_rounds(lake, monkeypatch, 2)
    table.configure(retention="30d")
    assert table.readers.in_history() == {"copy"}
    with refused(sl.Conflict, consumer="copy"):
        table.expire(NEW - dt.timedelta(days=1))
    report = lake.tick()
    assert table.count() == ROWS // 2
    report.raise_for_errors()
    assert len(copy.rows) == ROWS and table.readers.in_history() == set()


def test_folds_vacuum_and_trims_between_rounds_change_nothing(lake, table, copy, monkeypatch):
    for number in range(3):
        deliver_rounds(lake, monkeypatch, 1)
        table.upsert([{"id": n, "at": NEW, "v": 100 + number} for n in (number, ROWS - 1 - number, ROWS + number)])
        table.delete([20 + number])
        table.compact(full=True)
        table.vacuum(keep=0, grace=0)
    assert table.log.refresh().trimmed_to > 0
    finish(lake, copy, table)


def test_a_renamed_table_goes_on_where_it_was(lake, table, copy, monkeypatch):
    deliver_rounds(lake, monkeypatch, 2)
    done = sum(each.rows for each in lake.consumer_state("copy").positions.values())
    lake.rename("items", "things")
    again = Copy("copy", "things")
    again.rows = copy.rows
    lake.consumer(again)
    finish(lake, again, lake.table("things"))
    assert sum(each.rows for each in lake.consumer_state("copy").positions.values()) == ROWS and done < ROWS


def test_a_dropped_table_ends_the_backfill_and_its_return_continues_it(lake, table, copy, monkeypatch):
    deliver_rounds(lake, monkeypatch, 2)
    lake.drop("items")
    assert [type(each.error) for each in lake.tick(only=["copy"]).consumers] == [sl.NotFound]
    lake.undrop("items")
    finish(lake, copy, lake.table("items"))


def test_a_stopped_history_waits_and_changes_of_delivered_rows_follow(lake, table, copy, monkeypatch):
    deliver_rounds(lake, monkeypatch, 2)
    lake.state.rates.set_stopped("copy", True)
    table.upsert([{"id": 0, "at": NEW, "v": -1}, {"id": ROWS - 1, "at": NEW, "v": -1}])
    before = copy.sources[ROUND]
    lake.tick(only=["copy"]).raise_for_errors()
    assert copy.rows[0] == -1 and ROWS - 1 not in copy.rows and copy.sources[ROUND] == before
    lake.state.rates.set_stopped("copy", False)
    finish(lake, copy, table)


def test_a_rate_or_a_pause_that_comes_during_a_plan_of_many_batches_is_seen(lake, table, copy, monkeypatch):
    finish(lake, copy, table)
    monkeypatch.setattr(ranges, "BATCH_ROWS", 1)
    for number in range(6):
        table.upsert([{"id": 1, "at": NEW, "v": number}])
    plain = Copy.run

    def run(self, work):
        lake.state.pauses.add("copy")
        return plain(self, work)

    before = copy.sources["log"]
    with monkeypatch.context() as patch:
        patch.setattr(Copy, "run", run)
        lake.tick(only=["copy"]).raise_for_errors()
    assert copy.sources["log"] == before + 1, "the batch under way is finished, and no other begins"
    lake.state.pauses.end("copy")
    seen = []

    def slow_down(self, work):
        lake.state.rates.set_rate("copy", 1000.0, None)
        seen.append(work.upto)
        return plain(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "run", slow_down)
        lake.tick(only=["copy"]).raise_for_errors()
    assert seen == sorted(set(seen)) and copy.rows[1] == 5


def test_a_rate_holds_from_one_tick_to_the_next(lake, table, copy):
    finish(lake, copy, table)
    lake.state.rates.set_rate("copy", 10.0, None)
    began_s = time.monotonic()
    for number in range(3):
        table.upsert([{"id": n, "at": NEW, "v": number} for n in range(2)])
        lake.tick(only=["copy"]).raise_for_errors()
    # Two batches of two rows are paid for before the third one is sent.
    assert time.monotonic() - began_s >= 0.39
