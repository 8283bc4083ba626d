"""One piece of work, and its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

import strandline as sl
from folding import put
from strandline.consumers.feed import RangeSize
from strandline.consumers.work import LOG, NOTHING, SNAPSHOT, Work, engine_for
from strandline.state.intents import Intent


def work_of(table: sl.Table, after: int, upto: int, source: str = LOG) -> Work:
    lanes = (tuple(range(table.definition.vnodes)),)
    return Work(table, after, upto, source, lanes, RangeSize(0, 0, 0, 0), table.definition.schema_id, "driver")


def rows_of(work: Work) -> list[tuple[str, int, int]]:
    with work.batches() as batches:
        return sorted((row["_op"], row["_seq"], row["id"]) for batch in batches for row in batch.to_pylist())


def test_its_rows_are_the_changes_of_its_range(items: sl.Table) -> None:
    put(items, [1, 2])
    put(items, [2, 3])
    items.delete([1])
    assert rows_of(work_of(items, 1, 3)) == [("delete", 3, 1), ("upsert", 2, 2), ("upsert", 2, 3)]
    assert rows_of(work_of(items, 0, 2, SNAPSHOT)) == [("upsert", 2, 1), ("upsert", 2, 2), ("upsert", 2, 3)]
    assert rows_of(work_of(items, 0, 3, NOTHING)) == []


def test_rows_come_in_the_order_of_vnode_and_seq(items: sl.Table) -> None:
    for number in range(3):
        put(items, range(number, number + 20))
    with work_of(items, 0, 3).batches() as batches:
        order = [(row["_vnode"], row["_seq"], row["id"]) for batch in batches for row in batch.to_pylist()]
    assert len(order) == 60 and order == sorted(order)


def test_hidden_columns_stand_before_the_tables_own(items: sl.Table) -> None:
    put(items, [1])
    planned = work_of(items, 0, 1)
    names = planned.feed().schema.names
    assert names[:3] == ["_op", "_vnode", "_seq"] and names[3:] == items.schema.names


def test_its_token_is_the_id_of_its_one_intent(items: sl.Table) -> None:
    intent = Intent(
        id="abc", generation="g", lane="0-3", vnodes=(0, 1, 2, 3), after=0, upto=1, definition={}, schema_id=0,
        cuts=None, created_s=0.0,
    )  # fmt: skip
    assert replace(work_of(items, 0, 1), intents=(intent,)).token == "abc"
    with pytest.raises(ValueError):
        work_of(items, 0, 1).token  # noqa: B018


def test_few_rows_are_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_for(RangeSize(1, 10, 100, 100)) == "driver"
    assert engine_for(RangeSize(1, 10, 100, 1 << 40)) == "spark"
    assert engine_for(RangeSize(1, 1 << 40, 100, 100)) == "spark"
