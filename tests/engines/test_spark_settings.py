"""Settings that a block of ours needs in a caller's session are there for that block alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.engines.spark_settings import SETTINGS, planning, sending_rows, small_batches

LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
IN_PLAN = "spark.sql.execution.arrow.localRelationThreshold"
BATCH_ROWS = "spark.sql.parquet.columnarReaderBatchSize"


def plan_of(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize(("rows", "is_in_plan"), [(10, True), (4096, True), (4097, False), (150_000, False)])
def test_many_rows_are_no_rows_of_the_plan(spark, rows, is_in_plan):
    before = spark.conf.get(IN_PLAN)
    with sending_rows(spark, rows):
        frame = spark.createDataFrame(pa.table({"id": range(rows)}))
    assert ("LocalTableScan" in plan_of(frame)) is is_in_plan
    assert spark.conf.get(IN_PLAN) == before
    assert frame.selectExpr("sum(id)").first()[0] == rows * (rows - 1) // 2
    if not is_in_plan:
        assert frame.rdd.getNumPartitions() == -(-rows // 65_536)


def test_settings_are_restored_when_the_last_block_ends(spark):
    before = {name: spark.conf.get(name) for name in (BATCH_ROWS, IN_PLAN)}
    with small_batches(spark, 1 << 20):
        assert spark.conf.get(BATCH_ROWS) == "16"
        with sending_rows(spark, 1 << 20):
            assert spark.conf.get(IN_PLAN) == "0"
        assert spark.conf.get(BATCH_ROWS) == "16"
    assert {name: spark.conf.get(name) for name in before} == before


def test_settings_are_restored_after_an_error(spark):
    before = spark.conf.get(IN_PLAN)
    with pytest.raises(ZeroDivisionError), sending_rows(spark, 1 << 20):
        raise ZeroDivisionError
    assert spark.conf.get(IN_PLAN) == before


def test_few_paths_need_no_other_setting(spark):
    before = spark.conf.get(LISTING)
    spark.conf.set(LISTING, "32")
    try:
        with planning(spark, 32):
            assert spark.conf.get(LISTING) == "32"
        with planning(spark, 33):
            assert spark.conf.get(LISTING) == SETTINGS[LISTING]
        assert spark.conf.get(LISTING) == "32"
    finally:
        spark.conf.set(LISTING, before)
