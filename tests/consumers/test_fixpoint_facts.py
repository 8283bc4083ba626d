"""The facts of a fixed point in the log of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

import strandline as sl
from strandline.consumers.fixpoint_facts import PROPERTY, Facts, read_facts, with_facts
from support import refused

FACTS = Facts({"g": 3}, {"step": "s"}, "f", True, 2, "cold")


@pytest.fixture
def table(lake: sl.Lake) -> sl.Table:
    return lake.create_table("t", "id:int64, name:string", key=["id"], vnodes=2)


def commit(table, facts, expected):
    return table.log.commit([], operation="FIXPOINT", amend=with_facts(facts, expected, "t", table.log.refresh())).seq


def test_facts_come_with_a_commit_and_know_its_seq(table):
    assert read_facts(table.log.refresh()) is None
    seq = commit(table, FACTS, None)
    assert read_facts(table.log.refresh()) == replace(FACTS, seq=seq)


def test_only_the_facts_that_a_run_began_with_are_replaced(table):
    commit(table, FACTS, None)
    first = read_facts(table.log.refresh())
    with refused(sl.Conflict):
        commit(table, replace(FACTS, rounds=9), None)
    assert read_facts(table.log.refresh()) == first
    commit(table, replace(FACTS, rounds=9), first)
    with refused(sl.Conflict):
        commit(table, FACTS, first)
    assert read_facts(table.log.refresh()).rounds == 9


def test_rows_that_came_since_are_a_conflict(table):
    seen = table.log.refresh()
    table.upsert([{"id": 1, "name": "a"}])
    with refused(sl.Conflict):
        table.log.commit([], operation="FIXPOINT", amend=with_facts(FACTS, None, "t", seen))
    commit(table, FACTS, None)


def test_facts_outlast_every_change_of_the_definition(table):
    commit(table, FACTS, None)
    before = read_facts(table.log.refresh())
    table.add_column("more", "int64")
    table.configure(keep="1h")
    table.rename_column("name", "title")
    table.drop_column("more")
    assert read_facts(table.log.refresh()) == before


def test_damaged_facts_are_named(table):
    def damage(snapshot, draft):
        configuration = {**snapshot.configuration, PROPERTY: "{"}
        return replace(draft, metadata={**snapshot.metadata, "configuration": configuration})

    table.log.commit([], operation="FIXPOINT", amend=damage)
    with refused(sl.Corrupt):
        read_facts(table.log.refresh())
