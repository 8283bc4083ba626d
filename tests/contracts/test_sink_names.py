"""Every sink sends columns with names of every kind."""

from __future__ import annotations

import pytest

from odd_names import KEY, NUMBER, SCHEMA, in_order, odd_rows
from strandline.consumers import work
from strandline.engines.choice import DriverLimit


def test_columns_of_every_name_arrive_with_their_values(lake, near):
    table = lake.create_table("t", SCHEMA, key=KEY, vnodes=2, cluster_by=["c,d"])
    near.expect(SCHEMA, *KEY)
    lake.sink("out", "t", to=near.sink())
    table.upsert(odd_rows(0, 3))
    assert [each.error for each in lake.tick().sinks] == [None]
    table.upsert(odd_rows(3, 5))
    table.delete([{name: row[name] for name in KEY} for row in odd_rows(0, 1)])
    assert [each.error for each in lake.tick().sinks] == [None]
    current = near.current(*KEY)
    found = [{name: row[name] for name in SCHEMA.names} for row in current.values()]
    assert in_order(found) == odd_rows(1, 5)
    assert all(row[NUMBER] is not None for row in near.changes())


@pytest.mark.parametrize("kind", ["parquet", "delta", "foreign"])
def test_spark_sends_columns_of_every_name(lake, place_of, spark, monkeypatch, kind):
    monkeypatch.setattr(work, "DELIVERY", DriverLimit(0, 0))
    place = place_of(kind)
    table = lake.create_table("t", SCHEMA, key=KEY, vnodes=2, cluster_by=["c,d"])
    place.expect(SCHEMA, *KEY)
    lake.sink("out", "t", to=place.sink(), where='"a.b" <> \'9\' AND "back`tick" IS NOT NULL')
    table.upsert(odd_rows(0, 3))
    assert [each.error for each in lake.tick().sinks] == [None]
    table.upsert(odd_rows(2, 4))
    assert [each.error for each in lake.tick().sinks] == [None]
    found = [{name: row[name] for name in SCHEMA.names} for row in place.current(*KEY).values()]
    assert in_order(found) == odd_rows(0, 4)
