"""Faults of backfills that others met, each with a test that would catch it. The numbers are those of the list of
lessons: 22 to 29."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from backfills import History, small_rounds
from destinations import ParquetPlace, Servers
from forks import Interrupted, at_crash_points
from strandline.consumers import ranges
from strandline.consumers.contract import LaneEnd, Receipt
from strandline.consumers.log_consumer import LogConsumer
from strandline.consumers.work import LOG, ROUND, Work
from strandline.pipeline import commands
from strandline.state.key_positions import Position
from strandline.tables.readers import NoReaders


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rounds(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> ParquetPlace:
    return ParquetPlace(Servers(tmp_path, str), tmp_path)


def finish(lake: sl.Lake, here: Callable[[str], None] = lambda point: None) -> int:
    """Tick until nothing is left; returns the rows that were sent."""
    rows = 0
    with at_crash_points(here):
        for _ in range(10):
            report = lake.tick()
            assert report.is_well, report.sinks
            if report.is_idle:
                return rows
            rows += report.rows
    raise AssertionError("it does not end")


def positions(lake: sl.Lake, name: str = "out") -> dict[int, Position]:
    return dict(lake.consumer_state(name).positions)


def at_advance(number: int, act: Callable[[], Any]) -> Callable[[str], None]:
    """Calls `act` when the marks have moved so many times."""
    count = itertools.count(1)

    def here(point: str) -> None:
        if point == "marks.advanced" and next(count) == number:
            act()

    return here


def test_lesson_22_a_change_ahead_of_a_position_is_not_lost_when_the_next_snapshot_is_older(
    lake: sl.Lake, place: ParquetPlace
) -> None:
    history = History(lake)
    history.put(*range(30))
    lake.sink("out", "items", to=place.sink())
    intents = itertools.count(1)

    def here(point: str) -> None:
        if point == "marks.intent_saved" and next(intents) == 3:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick()
    begun = {at.until for at in positions(lake).values()}
    history.put(*range(0, 30, 3))
    history.drop(*range(1, 30, 3))
    mark = lake.consumer_state("out").marks[0]
    seen = []
    finish(lake, at_advance(1, lambda: seen.append((lake.consumer_state("out").marks[0], positions(lake)[0].key))))
    # The round that was begun is read at its old seq, up to its old key; then its changes follow.
    assert seen == [(mark, *begun)]
    history.check(place)


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "signed": (pa.int64(), [-(1 << 63), -300, -2, -1, 0, 1, 255, 256, (1 << 63) - 1]),
    "short": (pa.int16(), [-(1 << 15), -129, -1, 0, 1, 127, 128, (1 << 15) - 1]),
    "text": (pa.string(), ["", "A", "Z", "a", "a\x00", "a\x01", "ab", "é", "\U0001f30a"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1969, 1970, 2024, 9999)],
    ),
}


@pytest.mark.parametrize("name", list(KEYS))
def test_lesson_23_every_kind_of_key_is_compared_alike_by_scan_filter_and_position(
    lake: sl.Lake, place: ParquetPlace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`model/test_key_order.py` and `engines/test_key_range.py` compare the orders of Python, DuckDB and Spark."""
    small_rounds(monkeypatch, rows=1)
    kind, values = KEYS[name]
    schema = pa.schema([pa.field("k", kind, False), pa.field("m", pa.int32(), False), pa.field("v", pa.int64())])
    table = lake.create_table("odd", schema, key=["k", "m"], vnodes=4, compact_ratio=1e9)
    rows = [{"k": value, "m": m, "v": 1} for value in values for m in (-1, 3)]
    table.upsert(pa.Table.from_pylist(rows[::-1], schema))
    lake.sink("out", "odd", to=place.sink())
    later = [row | {"v": 2} for row in rows[::3]]
    finish(lake, at_advance(4, lambda: table.upsert(pa.Table.from_pylist(later, schema))))
    expected = sorted((row["k"], row["m"], row["v"]) for row in table.to_arrow().to_pylist())
    found = place.current("k", "m")
    assert sorted((row["k"], row["m"], row["v"]) for row in found.values()) == expected
    sent = [(row["k"], row["m"], row["_seq"]) for row in place.changes()]
    assert len(sent) == len(set(sent))
    assert max(at.round for at in positions(lake).values()) > 3


@pytest.mark.parametrize("is_folded", [True, False])
def test_lesson_24_a_long_range_of_deleted_keys_costs_no_rounds(
    lake: sl.Lake, place: ParquetPlace, is_folded: bool
) -> None:
    history = History(lake)
    history.put(*range(400))
    history.drop(*range(15, 385))
    if is_folded:
        history.fold()
    lake.sink("out", "items", to=place.sink())
    assert finish(lake) == 30
    history.check(place)
    assert max(at.round for at in positions(lake).values()) <= 30 // 4 + 3


class Counting(LogConsumer):
    """Counts the rows that it reads of each vnode, by source; a vnode may fail."""

    kind, destination, lanes = "counting", "memory", 4

    def __init__(self) -> None:
        super().__init__("out", "items")
        self.read: list[tuple[str, int]] = []
        self.fails: int | None = None

    def run(self, work: Work) -> Receipt:
        receipt = Receipt()
        with work.batches() as batches:
            rows = [row for batch in batches for row in batch.to_pylist()]
        for lane in work.lanes:
            if self.fails in lane:
                receipt.ends[lane] = LaneEnd(error=sl.Unavailable("not now"))
            else:
                self.read += [(work.source, row["_vnode"]) for row in rows if row["_vnode"] in lane]
        return receipt


def test_lesson_25_finished_vnodes_are_not_read_again_after_a_failure(
    lake: sl.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "LANE_ROWS", 1)
    history, consumer = History(lake), Counting()
    history.put(*range(60))
    lake.consumer(consumer)
    consumer.fails = 2
    assert not lake.tick().is_well
    assert [positions(lake)[vnode].is_done for vnode in range(4)] == [True, True, False, True]
    assert len(consumer.read) == sum(vnode != 2 for _, vnode in consumer.read)
    before, consumer.read = len(consumer.read), []
    again = sl.Lake(lake.storage.uri)
    again.consumer(consumer)
    consumer.fails = None
    history.put(*range(60, 80))
    finish(again)
    assert {vnode for source, vnode in consumer.read if source == ROUND} == {2}
    assert before + len(consumer.read) == 60 + 20
    assert {source for source, vnode in consumer.read if vnode != 2} == {LOG}


def test_lesson_26_a_key_that_moves_across_the_position_arrives_as_a_delete_and_an_insert(
    lake: sl.Lake, place: ParquetPlace
) -> None:
    history = History(lake)
    history.put(*range(30))
    lake.sink("out", "items", to=place.sink())

    def move() -> None:
        history.drop(0, 28)
        history.put(29, 31, 2, -5)

    finish(lake, at_advance(3, move))
    history.check(place)
    assert {0, 28}.isdisjoint(place.current()) and {31, -5} <= set(place.current())
    assert [row["_op"] for row in place.changes() if row["id"] == 28] == []


@pytest.mark.parametrize("what", ["empty", "one row", "all deleted", "beyond the last key"])
def test_lesson_27_the_smallest_histories_end_done_and_equal(
    lake: sl.Lake, place: ParquetPlace, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    small_rounds(monkeypatch, rows=1, table=0)
    history = History(lake)
    if what != "empty":
        history.put(*([1] if what == "one row" else range(5)))
    if what == "all deleted":
        history.drop(*range(5))
    lake.sink("out", "items", to=place.sink())
    left = iter([[100], [200, 201], [300]])

    def here(point: str) -> None:
        if what == "beyond the last key" and point == "loop.lanes_done" and max_round() >= 4:
            history.put(*next(left, [1]))

    def max_round() -> int:
        return max((at.round for at in positions(lake).values()), default=0) if lake.has_state else 0

    for _ in range(3):
        with at_crash_points(here):
            assert lake.tick().is_well
    finish(lake)
    history.check(place)
    assert all(at.is_done for at in positions(lake).values())
    history.put(7)
    assert lake.tick().rows == 1
    history.check(place)


def test_lesson_28_progress_never_goes_back(lake: sl.Lake, place: ParquetPlace) -> None:
    history = History(lake)
    history.put(*range(40))
    lake.sink("out", "items", to=place.sink())
    seen: list[tuple[int, int, float]] = []
    passes = itertools.count(1)

    def note() -> None:
        if found := positions(lake).get(0):
            seen.append((found.round, found.rows, found.share))

    for number in range(8):

        def here(point: str, number: int = number) -> None:
            if point == "marks.advanced":
                note()
            if point in ("loop.finished", "sink.published") and next(passes) % 7 == 0:
                raise Interrupted

        with at_crash_points(here):
            try:
                lake.tick()
            except Interrupted:
                history.put(number, 40 + 3 * number)
                history.fold()
        note()
        lake = sl.Lake(lake.storage.uri)
        lake.sink("out", "items", to=place.sink())
    finish(lake)
    note()
    assert seen == sorted(seen) and [each[2] for each in seen] == sorted(each[2] for each in seen)
    assert len({each[0] for each in seen}) > 4 and seen[-1][2] == 1.0
    history.check(place)


def test_lesson_29_the_log_is_not_trimmed_past_a_history_and_a_lost_past_is_a_loud_error(
    lake: sl.Lake, place: ParquetPlace
) -> None:
    history = History(lake)
    history.put(*range(30))
    lake.sink("out", "items", to=place.sink())
    with at_crash_points(at_advance(2, lambda: lake.state.rates.set_stopped("out", True))):
        assert lake.tick().is_well
    mark = lake.consumer_state("out").marks[0]
    lake.state.pauses.add("out")
    history.put(1, 29)
    history.fold()
    history.clean()
    assert history.table.log.refresh().trimmed_to <= mark
    # Now as another tool would: without asking anybody.
    readers, history.table.readers = history.table.readers, NoReaders()
    history.put(2, 28)
    history.fold()
    history.clean()
    history.table.readers = readers
    assert history.table.log.refresh().trimmed_to > mark
    lake.state.pauses.end("out")
    lake.state.rates.set_stopped("out", False)
    again = sl.Lake(lake.storage.uri)
    again.sink("out", "items", to=place.sink())
    before = len(place.changes())
    (report,) = again.tick().sinks
    assert isinstance(report.error, sl.NotRetained) and "backfill restart out" in (report.error.hint or "")
    assert not report.rows and len(place.changes()) == before
    commands.reset(again, "out")
    finish(again)
    assert all(at.is_done for at in positions(again).values())
