"""The settings of a Spark session: those of our own, and those that a block of ours needs in a caller's session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
# Arrow tables up to this size are rows of the plan.
_IN_PLAN = "spark.sql.execution.arrow.localRelationThreshold"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
# With more paths than this, a read starts a job that lists files; the commit already names them.
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A limit on the bytes of Arrow batches: without one, wide rows took over a gigabyte a worker.
    _BATCH_BYTES: "16m",
    _LISTING: "100000",
    "spark.io.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": "8",
}
# The size of a batch in Spark's own Parquet reader, whose default is 4,096 rows of any size.
_READ_BYTES = 16 << 20
_MOST_IN_PLAN = 4096
_SENT_ROWS = 65_536
_setting = threading.Lock()


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def small_batches(spark: SparkSession, row_bytes: int) -> AbstractContextManager[None]:
    """Around a job over rows of about this size: batches stay small for wide rows."""
    rows = max(16, min(4096, _READ_BYTES // max(1, row_bytes)))
    wanted = {_BATCH_BYTES: SETTINGS[_BATCH_BYTES], "spark.sql.parquet.columnarReaderBatchSize": str(rows)}
    return _override_settings(spark, wanted)


@contextmanager
def planning(spark: SparkSession, paths: int) -> Iterator[None]:
    """Around `spark.read` of so many paths: it starts no job, in a caller's session either. A remote session plans when
    the DataFrame runs, with its own settings."""
    if is_connect(spark) or paths <= int(spark.conf.get(_LISTING) or 0):
        yield
    else:
        with _override_settings(spark, {_LISTING: SETTINGS[_LISTING]}):
            yield


@contextmanager
def sending_rows(spark: SparkSession, rows: int) -> Iterator[None]:
    """Around `createDataFrame` of an Arrow table of so many rows. Many rows stay Arrow batches, one a task: in the
    plan, the optimizer would go through all of them for every read, and a broadcast would send each as an object."""
    if is_connect(spark) or rows <= _MOST_IN_PLAN:
        yield
    else:
        with _override_settings(spark, {_IN_PLAN: "0", _BATCH_ROWS: str(_SENT_ROWS)}):
            yield


@contextmanager
def _override_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings for a block. Several threads may use one session: the first one saves the old values, the last
    one restores them."""
    with _setting:
        users, before = getattr(spark, "_strandline_set", (0, {}))
        before = {**{name: spark.conf.get(name) for name in wanted}, **before}
        spark._strandline_set = (users + 1, before)
        for name, value in wanted.items():
            spark.conf.set(name, value)
    try:
        yield
    finally:
        with _setting:
            users, before = spark._strandline_set
            spark._strandline_set = (users - 1, before if users > 1 else {})
            for name, value in before.items() if users == 1 else ():
                spark.conf.set(name, value)
