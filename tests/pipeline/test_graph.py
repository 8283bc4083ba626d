"""Graph algorithms as users declare them."""

from __future__ import annotations

import pytest

import strandline as sl
from support import refused


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"src": "from"}, "'from'"),
        ({"dst": "note"}, "one type"),
        ({"dst": "src"}, "both ends"),
        ({"edges": "none"}, "'none'"),
    ],
)
def test_a_wrong_declaration_is_refused(lake, columns, message):
    lake.create_table("edges", "src:int64, dst:int64, note:string")
    with refused(sl.NotFound if "edges" in columns else sl.Invalid) as caught:
        sl.graph.connected_components(lake, "parts", **{"edges": "edges", **columns})
    assert message in caught.value.message


def test_a_sink_sends_the_result_in_the_same_tick(lake, tmp_path):
    edges = lake.create_table("edges", "src:int64, dst:int64")
    edges.append([{"src": 2, "dst": 1}])
    sl.graph.connected_components(lake, "parts", edges="edges")
    lake.tick().raise_for_errors()
    lake.sink("out", "parts", to=sl.ParquetSink(str(tmp_path / "out")))
    edges.append([{"src": 3, "dst": 1}])
    report = lake.tick()
    report.raise_for_errors()
    assert [(each.name, each.rows) for each in report.consumers][:2] == [("fixpoint/parts", 1), ("out", 3)]
    found = lake.sql("SELECT component, count(*) AS n FROM parts GROUP BY component").to_pylist()
    assert found == [{"component": 1, "n": 3}]
