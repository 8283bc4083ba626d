"""`format("strandline")`: a table as a source and a target of Spark's own readers and writers.

Spark runs a data source in Python processes of its own, on the driver and on the executors. Each of them opens the
lake; nothing of the calling process is shared with them but the options.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from strandline.engines.spark import look_at_workers, session
from strandline.engines.spark_settings import is_connect
from strandline.engines.workers import DUCKDB
from strandline.spark_source.source import StrandlineSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["StrandlineSource", "register"]

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SET_BY_STREAMS = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_LOCAL_DIRS", "SPARK_PYTHON_RUNTIME")
"""Variables that a stream, as it starts, sets in the map that all tasks of a registered source are sent with."""


def register(spark: SparkSession | None = None) -> SparkSession:
    """Make `format("strandline")` known to a session, by default the running one or a new one; returns the session.

    The package is sent to the session's executors, whose Python is looked at once: `Unavailable` says what it lacks.
    Filters reach the table only with a setting of Spark, which this sets unless the session has it."""
    spark = session(spark)
    look_at_workers(spark, [DUCKDB])
    if spark.conf.get(_PUSHDOWN) != "true":
        spark.conf.set(_PUSHDOWN, "true")
    with _variables(spark):
        spark.dataSource.register(StrandlineSource)
    return spark


@contextlib.contextmanager
def _variables(spark: SparkSession) -> Iterator[None]:
    """Name the variables before the first stream does: a map that grows while a task of another stream is being
    sent arrives damaged (`OptionalDataException`), and that stream fails."""
    if is_connect(spark):
        yield
        return
    variables = spark.sparkContext.environment
    missing = {name: "" for name in _SET_BY_STREAMS if name not in variables}
    variables.update(missing)
    try:
        yield
    finally:
        for name in missing:
            variables.pop(name, None)
