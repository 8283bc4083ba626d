"""The ranges from marks to the head of a log."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import strandline as sl
from folding import keys_in, put
from strandline.consumers import ranges
from strandline.consumers.ranges import Ranges
from strandline.consumers.work import LOG, NOTHING, SNAPSHOT, Work
from strandline.state.intents import Intent
from strandline.state.marks import ConsumerState
from support import refused


def works(
    table: sl.Table, known: ConsumerState | None = None, *, start: object = "backfill", lanes: int = 1
) -> tuple[Work, ...]:
    made = Ranges(table, name="c", title="consumer 'c'", start=start, lanes=lanes)
    return made.works(known or ConsumerState())


def at(seq: int, vnodes: int = 4) -> ConsumerState:
    return ConsumerState(marks=dict.fromkeys(range(vnodes), seq))


def begun(after: int, upto: int, *vnodes: int, id: str = "i", start: object = "backfill") -> Intent:
    return Intent(
        id=id, generation="g", lane=f"{vnodes[0]}-{vnodes[-1]}", vnodes=vnodes, after=after, upto=upto,
        definition={"start": start}, schema_id=0, cuts=None, created_s=0.0,
    )  # fmt: skip


def spans(found: tuple[Work, ...]) -> list[tuple[int, int, str]]:
    return [(work.after, work.upto, work.source) for work in found]


def test_an_empty_table_has_no_work(items: sl.Table) -> None:
    assert works(items) == ()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("backfill", [(0, 3, SNAPSHOT)]),
        ("head", [(0, 3, NOTHING)]),
        (0, [(0, 3, LOG)]),
        (2, [(0, 2, NOTHING), (2, 3, LOG)]),
    ],
)
def test_a_new_consumer_begins_where_its_start_says(items: sl.Table, start: object, expected: object) -> None:
    for number in range(3):
        put(items, [number])
    assert spans(works(items, start=start)) == expected


def test_a_start_beyond_the_head_is_refused(items: sl.Table) -> None:
    put(items, [1])
    with refused(sl.Invalid, seq=7):
        works(items, start=7)


def test_from_a_mark_the_log_is_taken_in_parts_that_end_with_a_commit(
    items: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(items, [0])
    for number in range(4):
        put(items, [number, number + 10])
    assert spans(works(items, at(1))) == [(1, 5, LOG)]
    monkeypatch.setattr(ranges, "BATCH_ROWS", 4)
    assert spans(works(items, at(1))) == [(1, 3, LOG), (3, 5, LOG)]
    assert [work.extent.rows for work in works(items, at(1))] == [4, 4]
    assert works(items, at(5)) == ()


def test_a_mark_beyond_the_head_is_a_lake_from_an_older_copy(items: sl.Table) -> None:
    put(items, [1])
    with refused(sl.Conflict, expected=2, found=1):
        works(items, at(2))


def test_what_was_begun_is_repeated_with_its_lanes_and_nothing_newer_for_its_vnodes(items: sl.Table) -> None:
    for _ in range(3):
        put(items, [key for vnode in range(4) for key in keys_in(vnode, 1)])
    intents = (begun(1, 2, 0, 1, id="a"), begun(1, 2, 2, id="b"))
    replay, new = works(items, replace(at(1), intents=intents))
    assert (replay.is_replay, replay.lanes, replay.intents) == (True, ((0, 1), (2,)), intents)
    assert (replay.after, replay.upto) == (1, 2)
    assert (new.is_replay, new.vnodes, new.after, new.upto) == (False, (3,), 1, 3)


def test_a_first_load_that_was_begun_is_read_at_its_seq(items: sl.Table) -> None:
    put(items, [1])
    put(items, [2])
    (replay,) = works(items, ConsumerState(intents=(begun(0, 1, 0, 1, 2, 3),)))
    assert (replay.source, replay.upto) == (SNAPSHOT, 1)


def test_vnodes_without_changes_move_with_the_others(items: sl.Table) -> None:
    put(items, [key for vnode in range(4) for key in keys_in(vnode, 1)])
    put(items, keys_in(2, 1))
    uneven = ConsumerState(marks={0: 1, 1: 1, 2: 2, 3: 1})
    assert [(work.source, work.vnodes, work.upto) for work in works(items, uneven)] == [(NOTHING, (0, 1, 3), 2)]
    (work,) = works(items, at(1))
    assert (work.vnodes, work.upto) == ((0, 1, 2, 3), 2)


def test_many_rows_are_spread_over_lanes_of_neighbouring_vnodes(lake: sl.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create_table("wide", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"], vnodes=16)
    put(table, range(40))
    assert len(works(table, lanes=4)[0].lanes) == 1
    monkeypatch.setattr(ranges, "LANE_ROWS", 10)
    (work,) = works(table, lanes=4)
    assert [len(lane) for lane in work.lanes] == [4, 4, 4, 4] and work.vnodes == tuple(range(16))
    assert [list(lane) for lane in work.lanes] == [list(range(n, n + 4)) for n in (0, 4, 8, 12)]
