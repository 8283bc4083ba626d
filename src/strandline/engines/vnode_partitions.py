"""Bring rows of one vnode into one partition, with as many tasks as the rows need.

Spark joins small neighbouring partitions of a shuffle when it was not told their number (adaptive execution): a few
rows are then one task and one file, not one for each vnode. But then Spark also chooses the partition, by its own hash
of a column, and several vnodes would fall into one partition while others stay empty. So rows are partitioned by a
number whose hash leads to the partition where the vnode belongs: vnodes are spread evenly, and neighbours stay
neighbours. Were that hash another one, vnodes would be spread unevenly, and nothing else would change.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ADAPTIVE = "spark.sql.adaptive.enabled"
_PARTITIONS = "spark.sql.shuffle.partitions"
_FIRST_PARTITIONS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_SEED = 42
_BITS = 0xFFFFFFFF


def by_vnode(frame: DataFrame, vnode: Column, vnodes: int) -> DataFrame:
    """`frame` with the rows of each vnode, a number from 0, in one partition."""
    from pyspark.sql import functions as F

    conf = frame.sparkSession.conf
    partitions = int(conf.get(_FIRST_PARTITIONS, None) or conf.get(_PARTITIONS) or 1)
    lanes = min(vnodes, partitions)
    lane = F.shiftright(vnode * lanes, vnodes.bit_length() - 1).cast("int")
    if conf.get(_ADAPTIVE) != "true":
        return frame.repartitionById(lanes, lane)
    numbers = F.array(*map(F.lit, partition_keys(partitions)[:lanes]))
    return frame.repartition(F.element_at(numbers, lane + 1))


@cache
def partition_keys(partitions: int) -> list[int]:
    """For each partition of a shuffle by hash, an integer that Spark brings there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(spark_hash_of(number) % partitions, number)
        number += 1
    return [found[partition] for partition in range(partitions)]


def spark_hash_of(number: int) -> int:
    """Spark's `hash` of an int: Murmur3 in 32 bits, as a signed number."""
    mixed = _rotate(number * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS
    hashed = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _BITS
    hashed ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> shift) * factor & _BITS
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotate(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & _BITS
