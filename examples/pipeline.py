"""Spark Declarative Pipelines over Strandline: the changes of `messages` become rows of `errors`.

Run it with `spark-pipelines run`. The specification gives the lake in its `configuration`, as `example.lake`."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from strandline.spark_source import register

spark = SparkSession.getActiveSession()
assert spark is not None
register(spark)
LAKE = spark.conf.get("example.lake")

dp.create_sink("errors", "strandline", {"lake": LAKE, "table": "errors", "orderBy": "_seq"})


@dp.append_flow(target="errors")
def keep_errors() -> DataFrame:
    """Every change of an error, in the table `errors` by its key."""
    changes = spark.readStream.format("strandline").option("lake", LAKE).option("table", "messages")
    return changes.option("start", "backfill").load().where("is_error OR _op = 'delete'")
