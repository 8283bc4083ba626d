"""`format("strandline")`: a table as a source and a target of Spark's own readers and writers.

Spark runs a data source in Python processes of its own, on the driver and on the executors. Each of them opens the
lake; nothing of the calling process is shared with them but the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.engines.spark import look_at_workers, session
from strandline.engines.workers import DUCKDB
from strandline.spark_source.source import StrandlineSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StrandlineSource", "register"]

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession | None = None) -> SparkSession:
    """Make `format("strandline")` known to a session, by default the running one or a new one; returns the session.

    The package is sent to the session's executors, whose Python is looked at once: `Unavailable` says what it lacks.
    Filters reach the table only with a setting of Spark, which this sets unless the session has it."""
    spark = session(spark)
    look_at_workers(spark, [DUCKDB])
    if spark.conf.get(_PUSHDOWN) != "true":
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(StrandlineSource)
    return spark
