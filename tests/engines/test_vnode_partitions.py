"""Rows of one vnode go to one partition, and few rows make few tasks."""

import pytest
from pyspark.sql import functions as F

from strandline.engines.vnode_partitions import by_vnode, partition_keys, spark_hash_of


def places(frame):
    """The vnodes of each partition, in the order of partitions."""
    found = frame.select(F.spark_partition_id().alias("at"), "vnode").distinct().collect()
    by_partition = {}
    for row in sorted(found):
        by_partition.setdefault(row["at"], []).append(row["vnode"])
    return list(by_partition.values())


@pytest.fixture
def conf(spark):
    names = {}

    def set_(name, value):
        names.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_
    for name, value in names.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def frame_of(spark, vnodes, rows=1000):
    return spark.range(rows).select((F.col("id") % vnodes).cast("int").alias("vnode"))


def test_the_hash_is_sparks(spark):
    numbers = [0, 1, 2, 7, 1000, 123_456_789]
    rows = spark.createDataFrame([(number,) for number in numbers], "n int").select(F.hash("n")).collect()
    assert [spark_hash_of(number) for number in numbers] == [row[0] for row in rows]
    assert [spark_hash_of(key) % 200 for key in partition_keys(200)] == list(range(200))


@pytest.mark.parametrize(
    ("vnodes", "partitions", "expected"),
    [
        (8, "200", [[vnode] for vnode in range(8)]),
        (8, "4", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (8, "3", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (1, "8", [[0]]),
    ],
)
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_vnodes_are_spread_evenly_and_in_order(spark, conf, vnodes, partitions, expected, adaptive):
    conf("spark.sql.adaptive.enabled", adaptive)
    conf("spark.sql.adaptive.coalescePartitions.enabled", "false")
    conf("spark.sql.shuffle.partitions", partitions)
    assert places(by_vnode(frame_of(spark, vnodes), F.col("vnode"), vnodes)) == expected


def test_few_rows_are_one_task(spark, conf):
    conf("spark.sql.adaptive.enabled", "true")
    assert places(by_vnode(frame_of(spark, 8), F.col("vnode"), 8)) == [list(range(8))]
