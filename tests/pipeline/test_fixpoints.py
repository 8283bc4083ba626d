"""The fixed points of a lake as a person sees them: their state, whether they are right, and a new computation."""

from __future__ import annotations

import pytest

import strandline as sl
from strandline.pipeline.fixpoints import list_fixpoints, rebuild_fixpoint, show_fixpoint, verify_fixpoint
from support import refused


@pytest.fixture
def lake(lake: sl.Lake) -> sl.Lake:
    edges = lake.create_table("edges", "id:int64, src:int64, dst:int64", key=["id"], vnodes=2)
    edges.upsert([{"id": 1, "src": 1, "dst": 2}, {"id": 2, "src": 8, "dst": 9}])
    sl.graph.connected_components(lake, "parts", edges="edges")
    return lake


def test_the_state_of_a_fixed_point_from_its_declaration_on(lake):
    (before,) = list_fixpoints(lake)
    assert (before.rows, before.seq, before.why, before.is_converged) == (0, 0, "first run", False)
    lake.tick(only=["fixpoint/parts"]).raise_for_errors()
    after = show_fixpoint(lake, "parts")
    assert (after.rows, after.start, after.why, after.is_converged, after.inputs) == (4, "cold", "", True, {"edges": 1})
    assert after.definition["algorithm"] == "connected_components" and after.to_dict()["error"] is None
    lake.table("edges").delete([1])
    assert show_fixpoint(lake, "parts").why == "edges: 1 changes"
    other = sl.Lake(lake.storage.uri)
    (elsewhere,) = list_fixpoints(other)
    assert not elsewhere.is_declared and elsewhere.definition == after.definition and elsewhere.why == ""
    lake.rename("edges", "lines")
    assert show_fixpoint(other, "parts").inputs == {"lines": 1}


def test_verify_finds_what_is_wrong_and_rebuild_mends_it(lake):
    with refused(sl.NotFound):
        verify_fixpoint(lake, "parts")
    lake.tick(only=["fixpoint/parts"]).raise_for_errors()
    assert verify_fixpoint(lake, "parts").is_right
    # Changes since the last run do not count: the rows are those of the seqs in its facts.
    lake.table("edges").upsert([{"id": 3, "src": 2, "dst": 8}])
    assert verify_fixpoint(lake, "parts").is_right
    lake.table("parts").upsert([{"node": 9, "component": 1, "parent": None}, {"node": 5, "component": 5}])
    found = verify_fixpoint(lake, "parts")
    assert not found.is_right and found.wrong == 2
    assert sorted(key["node"] for key in found.keys) == [5, 9] and found.to_dict()["is_right"] is False
    done = rebuild_fixpoint(lake, "parts")
    assert done.facts["start"] == "cold"
    assert verify_fixpoint(lake, "parts").is_right
    rebuild_fixpoint(lake, "parts")
    assert verify_fixpoint(lake, "parts").rows == 4


def test_what_a_program_does_not_declare_it_cannot_compute(lake):
    lake.tick(only=["fixpoint/parts"]).raise_for_errors()
    other = sl.Lake(lake.storage.uri)
    for act in (verify_fixpoint, rebuild_fixpoint):
        with refused(sl.NotFound) as caught:
            act(other, "parts")
        assert "--app" in caught.value.hint
    for name in ("none", "edges"):
        with refused(sl.NotFound) as caught:
            show_fixpoint(other, name)
        assert "parts" in caught.value.hint


def test_a_dropped_input_is_named(lake):
    lake.tick(only=["fixpoint/parts"]).raise_for_errors()
    lake.drop("edges")
    with refused(sl.NotFound):
        verify_fixpoint(lake, "parts")
    assert isinstance(show_fixpoint(lake, "parts").error, sl.NotFound)
