"""The rows that changed between two seqs, as they were and as they are."""

from __future__ import annotations

import datetime as dt
import random

import pytest

import strandline as sl
from strandline.tables.difference import difference
from support import refused


def rows(table):
    return sorted((row["id"], row["name"]) for row in table.to_pylist())


@pytest.mark.parametrize("seed", range(8))
def test_before_and_after_are_the_rows_of_the_changed_keys(lake, seed):
    chance = random.Random(seed)
    table = lake.create_table("t", "id:int64, name:string, more:int64", key=["id"], vnodes=2)
    seqs, changed = [0], []
    for number in range(8):
        ids = chance.sample(range(20), 5)
        if chance.random() < 0.3 and number:
            table.delete(ids)
        else:
            table.upsert([{"id": id, "name": f"{number}", "more": 1} for id in ids])
        seqs.append(table.head)
        changed.append(set(ids))
        if chance.random() < 0.3:
            table.compact(full=True)
    for at in range(len(seqs) - 1):
        for end in range(at + 1, len(seqs)):
            found = difference(table, seqs[at], seqs[end], ["name", "id"])
            keys = set().union(*changed[at:end])
            for part, seq in ((found.before, seqs[at]), (found.after, seqs[end])):
                then = table.to_arrow(at=seq, columns=["id", "name"])
                assert rows(part) == [each for each in rows(then) if each[0] in keys]


def test_rows_of_a_table_without_a_key_are_only_added(lake):
    table = lake.create_table("t", "id:int64, name:string", vnodes=2)
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    found = difference(table, 1, 2, ["id", "name"])
    assert found.before.num_rows == 0 and rows(found.after) == [(1, "a"), (2, "b")]


def test_rows_that_lose_against_a_higher_version_are_not_there(lake):
    table = lake.create_table("t", "id:int64, name:string, at:int64", key=["id"], vnodes=2, version="at")
    table.upsert([{"id": 1, "name": "a", "at": 10}])
    table.upsert([{"id": 1, "name": "b", "at": 5}, {"id": 2, "name": "c", "at": 1}])
    found = difference(table, 1, 2, ["id", "name"])
    assert rows(found.before) == [(1, "a")] and rows(found.after) == [(1, "a"), (2, "c")]


@pytest.mark.parametrize("key", [["id"], []], ids=["keyed", "keyless"])
def test_rows_that_expired_before_they_came_are_not_there(lake, key):
    table = lake.create_table("t", "id:int64, name:string, at:timestamp", key=key, vnodes=2, time="at")

    def put(id, year):
        made = [{"id": id, "name": "n", "at": dt.datetime(year, 1, 1, tzinfo=dt.UTC)}]
        (table.upsert if key else table.append)(made)

    put(1, 2020)
    put(2, 2024)
    table.expire(dt.datetime(2022, 1, 1, tzinfo=dt.UTC))
    after = table.head
    put(3, 2021)
    put(4, 2025)
    assert rows(difference(table, after, table.head, ["id", "name"]).after) == [(4, "n")]


def test_a_past_that_is_gone_is_an_error(lake):
    table = lake.create_table("t", "id:int64, name:string", key=["id"], vnodes=2)
    for name in "abc":
        table.upsert([{"id": 1, "name": name}])
    table.compact(full=True)
    table.vacuum(keep=0, grace=0)
    with refused(sl.NotRetained):
        difference(table, 1, 3, ["id"])
