"""Rows on their way through lanes: on the driver and on Spark, the same rows for the same lanes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import strandline as sl
from folding import put
from strandline.consumers.delivery import LaneRun, deliver
from strandline.consumers.feed import RangeSize
from strandline.consumers.work import LOG, Work
from strandline.sinks.contract import Batch, Result


@dataclass(frozen=True)
class Count:
    """A lane that counts its rows, and fails as it is told."""

    failure: Exception | None = None

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Result]:
        count = 0
        for batch in rows:
            count += batch.num_rows
            if self.failure is not None:
                raise self.failure
        yield Result(rows=count)


def runs_of(table: sl.Table, lanes: list[tuple[int, ...]], lane: Count) -> list[LaneRun]:
    names, schema = table.definition.key, table.schema
    return [LaneRun(Batch(f"b{at}", vnodes, 0, table.head, schema, names), lane) for at, vnodes in enumerate(lanes)]


def feed_of(table: sl.Table):
    lanes = (tuple(range(table.definition.vnodes)),)
    return Work(table, 0, table.head, LOG, lanes, RangeSize(0, 0, 0, 0), 0, "driver").feed()


@pytest.mark.parametrize("engine", ["driver", pytest.param("spark", id="spark")])
def test_every_row_goes_to_the_lane_of_its_vnode(request, items: sl.Table, engine: str) -> None:
    if engine == "spark":
        items.spark = request.getfixturevalue("spark")
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
    put(items, range(50))
    put(items, range(10))
    lanes = [(0,), (1, 2), (3,)]
    expected = [sum(row["_vnode"] in lane for row in all_rows(items)) for lane in lanes]
    runs = runs_of(items, lanes, Count())
    results, jobs = deliver(feed_of(items), runs, is_ordered=True, is_on_spark=engine == "spark")
    assert [sum(each.rows for each in results[f"b{at}"]) for at in range(3)] == expected
    assert sum(expected) == 60 and (jobs > 0) == (engine == "spark")


def all_rows(table: sl.Table) -> list[dict[str, object]]:
    with feed_of(table).batches() as batches:
        return [row for batch in batches for row in batch.to_pylist()]


def test_a_lane_without_rows_still_runs(items: sl.Table) -> None:
    put(items, [1])
    results, _ = deliver(None, runs_of(items, [(0, 1, 2, 3)], Count()), is_ordered=True, is_on_spark=False)
    assert results == {"b0": [Result()]}


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(sl.Conflict("no"), sl.Conflict), (OSError("disk"), sl.Unavailable), (ZeroDivisionError("what"), sl.Internal)],
)
def test_what_a_lane_raises_is_in_its_result_and_stops_no_other(items, failure: Exception, kind: type) -> None:
    put(items, range(20))
    good, bad = runs_of(items, [(0, 1), (2, 3)], Count())
    results, _ = deliver(feed_of(items), [good, LaneRun(bad.batch, Count(failure))], is_ordered=True, is_on_spark=False)
    assert results["b0"][0].error is None and results["b0"][0].rows > 0
    assert type(results["b1"][-1].error) is kind and str(failure) in results["b1"][-1].error.message
