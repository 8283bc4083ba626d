"""The components of an edge table, kept up to date by ticks: always those of a cold start."""

from __future__ import annotations

import random

import networkx
import pytest

import strandline as sl
from strandline import graph


def components(lake, name="parts"):
    rows = lake.table(name).to_arrow(columns=["node", "component"]).to_pylist()
    return {row["node"]: row["component"] for row in rows}


def expected(edges):
    made = networkx.Graph()
    made.add_edges_from((src, dst) for src, dst in edges if src is not None and dst is not None)
    return {node: min(part) for part in networkx.connected_components(made) for node in part}


def run(lake):
    report = lake.tick(only=["fixpoint/parts"])
    report.raise_for_errors()
    return report.consumers[0] if report.consumers else None


@pytest.fixture
def edges(lake: sl.Lake) -> sl.Table:
    return lake.create_table("edges", "id:int64, src:int64, dst:int64, note:string", key=["id"], vnodes=4)


def put(table, rows, note="n"):
    table.upsert([{"id": id, "src": src, "dst": dst, "note": note} for id, (src, dst) in rows.items()])


def test_a_tick_computes_moves_on_and_does_nothing_without_a_change(lake, edges):
    graph.connected_components(lake, "parts", edges="edges")
    put(edges, {1: (1, 2), 2: (2, 3), 3: (8, 9)})
    assert run(lake).facts["start"] == "cold"
    assert components(lake) == {1: 1, 2: 1, 3: 1, 8: 8, 9: 8}
    head = lake.table("parts").head
    assert run(lake) is None and lake.table("parts").head == head
    put(edges, {4: (3, 9)})
    assert run(lake).facts["start"] == "warm"
    assert components(lake) == {1: 1, 2: 1, 3: 1, 8: 1, 9: 1}
    edges.delete([2])
    report = run(lake)
    assert report.facts["start"] == "warm" and report.facts["is_converged"]
    assert components(lake) == {1: 1, 2: 1, 3: 3, 8: 3, 9: 3}
    edges.delete([1])
    assert run(lake).rows == 2
    assert components(lake) == {3: 3, 8: 3, 9: 3}


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_of_the_edges(lake, edges, seed):
    chance = random.Random(seed)
    graph.connected_components(lake, "parts", edges="edges")
    now: dict[int, tuple[int | None, int | None]] = {}
    for round_ in range(12):
        chosen = chance.sample(range(40), chance.choice([0, 1, 4, 20]))
        rows = {id: (chance.randrange(25) if chance.random() < 0.95 else None, chance.randrange(25)) for id in chosen}
        put(edges, rows, note=str(round_))
        now |= rows
        gone = [id for id in now if chance.random() < 0.15]
        if gone:
            edges.delete(gone)
            now = {id: ends for id, ends in now.items() if id not in gone}
        if chance.random() < 0.3:
            edges.compact(full=True)
        if chance.random() < 0.3 and "parts" in lake.tables():
            lake.table("parts").compact(full=True)
        if chance.random() < 0.2:
            edges.upsert([{"id": id, "src": src, "dst": dst, "note": "same"} for id, (src, dst) in now.items()])
        run(lake)
        assert components(lake) == expected(now.values())
    cold = sl.Lake(lake.storage.uri)
    graph.connected_components(cold, "cold", edges="edges")
    cold.tick(only=["fixpoint/cold"]).raise_for_errors()
    assert components(cold, "cold") == components(lake)


def test_nodes_may_be_texts_and_edges_have_no_key(lake):
    table = lake.create_table("edges", "src:string, dst:string", vnodes=2)
    graph.connected_components(lake, "parts", edges="edges")
    table.append([{"src": "b", "dst": "c"}, {"src": "é", "dst": "z"}])
    run(lake)
    assert components(lake) == {"b": "b", "c": "b", "é": "z", "z": "z"}
    table.append([{"src": "a", "dst": "c"}, {"src": "x", "dst": "x"}])
    assert run(lake).facts["start"] == "warm"
    assert components(lake) == {"a": "a", "b": "a", "c": "a", "é": "z", "z": "z", "x": "x"}


def test_a_change_that_is_not_known_is_a_cold_start(lake, edges):
    graph.connected_components(lake, "parts", edges="edges")
    put(edges, {1: (1, 2), 2: (2, 3)})
    run(lake)
    edges.delete([2])
    edges.compact(full=True)
    edges.vacuum(keep=0, grace=0)
    report = run(lake)
    assert report.facts["start"] == "cold" and "not known" in report.facts["why"]
    assert components(lake) == {1: 1, 2: 1}


def test_rows_that_someone_else_wrote_are_computed_again(lake, edges):
    graph.connected_components(lake, "parts", edges="edges")
    put(edges, {1: (1, 2)})
    run(lake)
    lake.table("parts").upsert([{"node": 7, "component": 7, "parent": None}])
    report = run(lake)
    assert report.facts["start"] == "cold" and "someone else" in report.facts["why"]
    assert components(lake) == {1: 1, 2: 1}


def test_compaction_alone_moves_the_mark_without_a_round(lake, edges):
    graph.connected_components(lake, "parts", edges="edges")
    put(edges, {1: (1, 2)})
    put(edges, {2: (2, 3)})
    run(lake)
    edges.compact(full=True)
    edges.vacuum(keep=0, grace=0)
    assert run(lake).facts == {"rounds": 0}
    assert components(lake) == {1: 1, 2: 1, 3: 1} and run(lake) is None
