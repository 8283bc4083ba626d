"""`spark.read.format("strandline")` gives the rows of `to_arrow`, whatever a table is made of."""

import pyarrow as pa
import pytest

import strandline as sl
from shapes import OPTIONS, build, plain
from strandline.spark_source import register
from support import rows_of


def load(spark, table, **options):
    reader = register(spark).read.format("strandline").option("lake", table.log.storage.uri).option("table", table.name)
    return reader.options(**options).load()


@pytest.mark.parametrize("shape", OPTIONS)
def test_a_read_equals_the_drivers(spark, tmp_path, shape):
    table = build(tmp_path / "lake", shape)
    assert plain(load(spark, table).toArrow()) == plain(table.to_arrow())
    assert plain(load(spark, table, at=2).toArrow()) == plain(table.to_arrow(at=2))
    frame = load(spark, table)
    table.compact(full=True)
    assert plain(frame.toArrow()) == plain(table.to_arrow())


WHERE = [
    "id = 3", "part = 'p1' AND id = 4", "id > 5 AND id <= 8", "n IN (1, 8, -20)", "n IN (1, NULL)", "NOT n IN (1, 8)",
    "local IS NULL", "local IS NOT NULL", "part LIKE 'p1%'", "part LIKE '%1'", "doc LIKE '%rev\": 1%'",
    "f = double('nan')", "f > 1", "f < 0", "NOT f = double('nan')", "f IN (-0.5, double('nan'))", "f <=> NULL",
    "f <=> -0.5", "NOT f <=> -0.5", "p = 2.25", "p > 3", "flag", "NOT flag", "raw = X'05'", "raw IS NULL",
    "day = DATE'2026-01-20'", "day < DATE'0001-01-02'", "at > TIMESTAMP'2026-01-01 12:00:00.00002Z'",
    "local >= TIMESTAMP_NTZ'2026-01-01 20:00:00'", "point.x = 5", "tags IS NULL", "n = 3 OR id = 2", "n <> 1",
    "part = 'it''s \\\\ $'", "more = 'x'", "n > 100000", "id = id", "part >= 'p3'",
]  # fmt: skip


@pytest.mark.parametrize("shape", OPTIONS)
def test_filters_mean_the_same_as_in_spark(spark, tmp_path, shape):
    table = build(tmp_path / "lake", shape)
    frame = load(spark, table)
    held = frame.cache()
    held.count()
    try:
        for where in WHERE:
            found = load(spark, table).where(where).toArrow()
            assert plain(found) == plain(held.where(where).toArrow()), where
    finally:
        held.unpersist()
