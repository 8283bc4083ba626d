"""How far a round goes, how its size follows the time that rounds take, and how long a consumer waits for a rate."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

import strandline as sl
from folding import put
from strandline.consumers import rounds
from strandline.consumers.feed import RangeSize
from strandline.consumers.ranges import Ranges
from strandline.consumers.rounds import FIRST_ROWS, LEAST_ROWS, MOST_ROWS, TARGET_S, Rounds
from strandline.consumers.work import ROUND, Work
from strandline.engines.choice import DriverLimit
from strandline.model.key_order import encode_key
from strandline.state.key_positions import Position
from strandline.state.marks import ConsumerState
from strandline.state.rates import NO_RATE, Rate, Sent
from strandline.tables.key_cuts import key_types


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.consumers.ranges.SMALL", DriverLimit(10, 1 << 20))


@pytest.fixture
def work(items: sl.Table) -> Work:
    """The history of a table with the ids 0 to 99."""
    put(items, list(range(100)))
    return plan(items)


def plan(table: sl.Table, known: ConsumerState | None = None) -> Work:
    made = Ranges(table, name="c", title="consumer 'c'", start="backfill", lanes=1)
    (found,) = made.works(known or ConsumerState())
    assert found.source == ROUND
    return found


def key(work: Work, id: int) -> bytes:
    return encode_key([id], key_types(work.table.definition))


def end_of(work: Work) -> bytes | None:
    assert work.span is not None
    return work.span.end


def test_a_round_ends_at_the_key_of_its_last_row(work):
    made = Rounds(rows=30).cut(work)
    assert (end_of(made), made.extent.rows, round(made.share, 2)) == (key(work, 29), 30, 0.3)
    assert made.feed().nth_key(30) == key(work, 29) and made.feed().nth_key(31) is None


def test_a_round_with_room_for_all_rows_is_the_last_one(work):
    made = Rounds(rows=1000).cut(work)
    assert (end_of(made), made.extent.rows, made.share) == (None, 100, 1.0)


def test_the_rest_counts_as_the_rest_although_its_row_group_has_more(work, items):
    at = Position(round=1, key=key(work, 79), rows=80, share=0.8)
    known = ConsumerState(marks=dict.fromkeys(range(4), items.head), positions=dict.fromkeys(range(4), at))
    made = Rounds(rows=40).cut(plan(items, known))
    assert (end_of(made), made.extent.rows, made.share) == (None, 20, 1.0)


def test_a_round_with_the_last_row_is_the_last_one(work, items):
    at = Position(round=1, key=key(work, 49), rows=50, share=0.5)
    known = ConsumerState(marks=dict.fromkeys(range(4), items.head), positions=dict.fromkeys(range(4), at))
    assert end_of(Rounds(rows=50).cut(plan(items, known))) is None
    assert end_of(Rounds(rows=49).cut(plan(items, known))) == key(work, 98)


def test_the_share_is_counted_in_rows_read_not_in_rows_sent(work, items):
    at = Position(round=1, key=key(work, 49), rows=1, share=0.5)
    known = ConsumerState(marks=dict.fromkeys(range(4), items.head), positions=dict.fromkeys(range(4), at))
    made = Rounds(rows=20).cut(plan(items, known))
    assert (end_of(made), round(made.share, 2)) == (key(work, 69), 0.7)


def test_a_round_ends_where_vnodes_that_are_further_stand(work):
    made = Rounds(rows=1000).cut(work, {b"", key(work, 9), key(work, 59)})
    assert end_of(made) == key(work, 9)
    later = Rounds(rows=1000).cut(replace(work, span=replace(work.span, start=key(work, 9))), {key(work, 9)})
    assert end_of(later) is None


@pytest.mark.parametrize(
    ("rate", "rows"), [(NO_RATE, 50), (Rate(5, None), 10), (Rate(0.1, None), 1), (Rate(1000, None), 50)]
)
def test_a_rate_makes_rounds_as_small_as_it_sends_in_two_seconds(work, rate, rows):
    made = Rounds(rows=50)
    made.rate = rate
    assert end_of(made.cut(work)) == key(work, rows - 1)


def test_a_rate_in_bytes_goes_by_the_bytes_of_a_row(work):
    made = Rounds(rows=50)
    row_bytes = work.extent.bytes / work.extent.rows
    made.rate = Rate(None, 4 * row_bytes)
    assert end_of(made.cut(work)) == key(work, 7)


def test_rounds_grow_while_they_are_quick_and_shrink_when_they_are_slow(work):
    made = Rounds()
    whole = replace(work, extent=RangeSize(0, FIRST_ROWS, 1, 1))
    made.note(whole, FIRST_ROWS, 1, TARGET_S / 3)
    assert made.rows == 2 * FIRST_ROWS
    made.note(whole, FIRST_ROWS, 1, TARGET_S)
    assert made.rows == 2 * FIRST_ROWS
    made.note(whole, FIRST_ROWS, 1, TARGET_S / 10)
    assert made.rows == 8 * FIRST_ROWS
    for _ in range(20):
        made.note(whole, FIRST_ROWS, 1, 10 * TARGET_S)
    assert made.rows == LEAST_ROWS
    for _ in range(20):
        made.note(replace(whole, extent=RangeSize(0, MOST_ROWS, 1, 1)), MOST_ROWS, 1, TARGET_S / 10)
    assert made.rows == MOST_ROWS
    # A round that had fewer rows than it might have says nothing.
    made = Rounds()
    made.note(work, 100, 1, 0.01)
    assert made.rows == FIRST_ROWS


def test_the_pace_is_a_moving_one_and_not_above_the_rate(work):
    made = Rounds()
    made.note(work, 1000, 1, 1.0)
    assert made.pace == 1000
    made.note(work, 2000, 1, 1.0)
    assert 1000 < made.pace < 2000
    slow = Rounds()
    slow.rate = Rate(10, None)
    slow.note(work, 1000, 1, 1.0)
    assert slow.pace == 10
    slow.note(replace(work, source="log"), 5, 1, 0.001)
    assert slow.pace == 10


def test_rounds_grow_by_what_a_condition_leaves_out(work):
    made = Rounds(rows=1000, rate=Rate(5, None))
    assert end_of(made.cut(work)) == key(work, 9)
    for _ in range(30):
        made.note(work, work.extent.rows // 2, 1, 1.0)
    assert made.part == pytest.approx(0.5, abs=0.01)
    assert end_of(made.cut(work)) == key(work, 19)
    # A batch that failed says nothing of it, and nothing is known of one that sends no row.
    made.note(work, 0, 1, 1.0, is_whole=False)
    assert made.part == pytest.approx(0.5, abs=0.01)
    for _ in range(60):
        made.note(work, 0, 1, 1.0)
    assert made.part == pytest.approx(0.25)


def test_a_batch_counts_before_it_is_sent_and_by_what_was_sent_afterwards(work):
    kept: list[Sent] = []
    made = Rounds(rate=Rate(10, None), save=kept.append)
    made.begin(work)
    assert (kept[-1].rows, kept[-1].owed_s) == (100, 10.0)
    made.note(work, 40, 7, 1.0)
    assert (kept[-1].rows, kept[-1].bytes, kept[-1].owed_s) == (40, 7, 4.0) and made.last == kept[-1]
    free = Rounds(save=kept.append)
    free.begin(work)
    free.note(work, 40, 7, 1.0)
    assert len(kept) == 2


class Clock:
    """A clock that waits without waiting."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Stop(threading.Event):
    """An event that is never set, unless at a time of the clock."""

    def __init__(self, clock: Clock, at_s: float = float("inf")) -> None:
        super().__init__()
        self.clock, self.at_s = clock, at_s

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now_s += timeout or 0
        return self.clock.now_s >= self.at_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", made)
    return made


def waited_s(made: Rounds, clock: Clock, later: Rate, *, at_s: float = 0.0, stop: Stop | None = None) -> float:
    """How long it waits when another rate is set at a time."""
    began_s, before = clock.now_s, made.rate
    made.wait(lambda: later if clock.now_s >= began_s + at_s else before, stop or Stop(clock))
    return clock.now_s - began_s


def test_the_next_batch_waits_until_the_rate_allows_it(work, clock):
    made = Rounds()
    assert waited_s(made, clock, NO_RATE) == 0
    made.rate = Rate(10, None)
    # 100 rows that took four seconds leave six to wait.
    made.note(work, 100, 1, 4.0)
    assert waited_s(made, clock, made.rate) == pytest.approx(6.0)
    made.note(work, 100, 1, 11.0)
    assert waited_s(made, clock, made.rate) == 0


def test_a_rate_that_is_set_during_a_wait_holds_at_once(work, clock):
    made = Rounds()
    made.rate = Rate(1, None)
    made.note(work, 100, 1, 0.0)
    assert waited_s(made, clock, Rate(10, None), at_s=3) == pytest.approx(10.0, abs=0.6)
    assert made.rate == Rate(10, None)
    made.rate = Rate(1, None)
    made.note(work, 100, 1, 0.0)
    assert waited_s(made, clock, NO_RATE, at_s=3) == pytest.approx(3.0, abs=0.6)


def test_what_was_sent_without_a_rate_is_not_waited_for_under_a_later_one(work, clock):
    made = Rounds()
    made.note(work, 1_000_000, 1, 1.0)
    made.rate = Rate(10, None)
    assert waited_s(made, clock, made.rate) == 0
    made.note(work, 100, 1, 0.0)
    made.rate = Rate(1, None)
    assert waited_s(made, clock, made.rate) == pytest.approx(10.0)


def test_a_wait_ends_when_the_run_is_to_stop(work, clock):
    made = Rounds()
    made.rate = Rate(1, None)
    made.note(work, 1000, 1, 0.0)
    assert waited_s(made, clock, made.rate, stop=Stop(clock, clock.now_s + 7)) == pytest.approx(7.0, abs=0.6)


def test_the_clock_of_these_tests_is_not_the_one_of_others():
    assert rounds.time is time
