"""`format("strandline")` inside Spark: its processes, Connect, pipelines, S3, and queries that are killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.spark_source import register
from support import SRC, environment, one_connect_server, options_for, python, rows_of

ROOT = Path(__file__).parents[2]


def source(reader, table, **options):
    return reader.format("strandline").options(lake=table.log.storage.uri, table=table.name, **options)


def test_a_session_reads_writes_and_streams(spark, items, lake):
    register(spark)
    rows = spark.range(100).selectExpr("id", "concat('n', id) AS name").repartition(3)
    source(rows.write, items).mode("append").save()
    assert items.head == 1
    loaded = source(spark.read, items).load()
    items.delete([5])
    assert (loaded.count(), source(spark.read, items).load().where("id < 10 AND name LIKE 'n%'").count()) == (100, 9)
    options = f"lake '{lake.storage.uri}', table 'items', at '1'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW items_then USING strandline OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM items_then WHERE id < 10").first()[0] == 10
    with pytest.raises(Exception, match=r"holds the key \{'id': 1\} more than once"):
        source(rows.union(rows.where("id = 1")).write, items).mode("append").save()
    assert items.head == 2
    copy = lake.create_table("copy", items.schema, key=["id"])
    changes = source(spark.readStream, items, start="0", maxRowsPerTrigger="100").load()
    target = source(changes.writeStream, copy, orderBy="_seq")
    query = target.option("checkpointLocation", f"{lake.storage.uri}-ck").trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert rows_of(copy.to_arrow()) == rows_of(items.to_arrow())
    assert [each.rows for each in copy.history()] == [0, 100, 1]


def test_a_lake_in_a_bucket_takes_its_settings_from_options(spark, s3_lake, seaweed, tmp_path):
    lake = s3_lake()
    table = lake.create_table("t", "id:int64,name:string", key=["id"], vnodes=2)
    register(spark)
    settings = {f"storage.{name}": value for name, value in options_for(seaweed).items()}
    rows = spark.range(50).selectExpr("id", "concat('n', id) AS name")
    source(rows.write, table, **settings).mode("append").save()
    found = source(spark.read, table, **settings).load()
    assert rows_of(found.toArrow()) == rows_of(table.to_arrow()) and table.head == 1
    copy = lake.create_table("copy", table.schema, key=["id"], vnodes=2)
    table.delete([3])
    for _ in range(2):
        changes = source(spark.readStream, table, start="backfill", **settings).load()
        target = source(changes.writeStream, copy, orderBy="_seq", **settings)
        query = target.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert query.exception() is None
        assert rows_of(copy.to_arrow()) == rows_of(table.to_arrow())
        table.upsert([{"id": 3, "name": "again"}])
    assert (copy.head, copy.count()) == (2, 50)


CONNECT = """
import json, os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("example.lake", sys.argv[1]).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
import strandline as sl
from strandline.spark_source import register
lake = sl.Lake(sys.argv[1])
columns = "id:int64,text:string,is_error:bool"
messages = lake.create_table("messages", columns, key=["id"], vnodes=2)
lake.create_table("errors", columns, key=["id"], vnodes=2)
register(spark)
spark.conf.set("example.lake", sys.argv[1])

def source(reader, table):
    return reader.format("strandline").option("lake", sys.argv[1]).option("table", table)

answers = {}
rows = spark.range(40).selectExpr("id", "'t' AS text", "id % 4 = 0 AS is_error")
source(rows.write, "messages").mode("append").save()
answers["read"] = source(spark.read, "messages").load().where("is_error").count()

import importlib.util
from pyspark.errors import PySparkValueError
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run

def run():
    # What `spark-pipelines run` does with a specification.
    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    registry = SparkConnectGraphElementRegistry(spark, graph)
    with graph_element_registration_context(registry):
        spec = importlib.util.spec_from_file_location("pipeline", sys.argv[2])
        module = importlib.util.module_from_spec(spec)
        with add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None):
            with block_session_mutations():
                spec.loader.exec_module(module)
    storage = "file://" + sys.argv[1] + "-pipeline"
    try:
        handle_pipeline_events(
            start_run(spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False, storage=storage)
        )
    except PySparkValueError as error:
        # After a run with any Python worker, the client of Spark 4.3 does not know the last answer of its server.
        if "__python_accumulator__" not in str(error):
            raise

# As in a process of its own, where the pipeline's file is the first to look at the workers' Python.
del spark._strandline_workers
run()
assert spark._strandline_workers
errors = lake.table("errors")
answers["errors"] = [errors.count(), errors.head]
messages.delete([0])
messages.upsert([{"id": 41, "text": "late", "is_error": True}])
run()
answers["later"] = sorted(errors.to_arrow().column("id").to_pylist())
print(json.dumps(answers))
"""


def test_connect_and_a_declarative_pipeline(tmp_path):
    example = str(ROOT / "examples" / "pipeline.py")
    with one_connect_server():
        done = python(CONNECT, str(tmp_path / "lake"), example, timeout_s=290, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["read"] == 10
    assert answers["errors"] == [10, 1]
    assert answers["later"] == [*range(4, 40, 4), 41]


QUERY = """
import sys
from strandline.spark_source import register
spark = register()
spark.conf.set("spark.sql.shuffle.partitions", "2")
rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(sys.argv[2])
query = rows.repartition(2).writeStream.format("strandline").option("lake", sys.argv[1]).option("table", "t")
query = query.option("checkpointLocation", sys.argv[3])
query = query.trigger(availableNow=True) if sys.argv[4] == "last" else query.trigger(processingTime="0 seconds")
query = query.start()
print("started", flush=True)
query.awaitTermination()
assert query.exception() is None
"""


@contextlib.contextmanager
def killed_at_end(code, *arguments, **more):
    """A process of its own group, which is killed if it still runs at the end."""
    query = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment(**more),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield query
    finally:
        if query.poll() is None:
            os.killpg(query.pid, signal.SIGKILL)


@pytest.fixture
def bare_python(tmp_path):
    """A Python for Spark's workers that has the libraries and not this package."""
    site = next(path for path in sys.path if path.endswith("site-packages"))
    script = tmp_path / "python"
    others = f"$(echo \"$PYTHONPATH\" | sed 's#{SRC}:##')"
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH={site}:{others}\nexec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.chaos)])
def test_a_killed_query_writes_each_batch_once(tmp_path, lake, bare_python, kills):
    table = lake.create_table("t", "n:int64", vnodes=2)
    folder = tmp_path / "in"
    folder.mkdir()
    files = 5 + 3 * kills
    for number in range(files):
        (folder / f"{number:03}.json").write_text("".join(f'{{"n": {number * 10 + at}}}\n' for at in range(10)))
    arguments = [lake.storage.uri, str(folder), str(tmp_path / "ck")]
    chance = random.Random(0)
    for life in [*range(kills), "last"]:
        with killed_at_end(QUERY, *arguments, str(life), PYSPARK_PYTHON=bare_python) as query:
            if life != "last":
                seen = table.head
                while table.head < min(seen + 2, files) and query.poll() is None:
                    time.sleep(0.02)
                time.sleep(chance.random())
                os.killpg(query.pid, signal.SIGKILL)
            _, said = query.communicate(timeout=250)
        assert (query.returncode == 0) == (life == "last"), said[-2000:]
    # A query killed after it planned a file and before it began the batch takes two files in the next one.
    batches = [path for path in (tmp_path / "ck" / "offsets").iterdir() if path.name.isdigit()]
    assert table.head == len(batches) >= files - kills
    assert sorted(table.to_arrow().column("n").to_pylist()) == list(range(10 * files))


FOLLOW = """
import sys
from strandline.spark_source import register
spark = register()
spark.conf.set("spark.sql.shuffle.partitions", "2")
lake, place, life = sys.argv[1:]

def source(reader, name, **options):
    return reader.format("strandline").options(lake=lake, table=name, **options)

def start(frame, name, **options):
    query = source(frame.writeStream, name, **options).option("checkpointLocation", f"{place}/{name}")
    query = query.trigger(availableNow=True) if life == "last" else query.trigger(processingTime="0 seconds")
    return query.start()

# Whoever cares for the table holds its log.
changes = source(spark.readStream, "items", start="0", maxRowsPerTrigger="60", pin="0s").load()
changes = changes.withColumn("seq", changes["_seq"])
rows = changes.selectExpr("seq", "_op AS op", "id", "name").repartition(2)
queries = [start(changes, "copy", orderBy="_seq"), start(rows, "journal")]
for query in queries:
    query.awaitTermination()
    assert query.exception() is None
"""


class Followed:
    """A table that is written, packed, folded and trimmed while two queries follow it."""

    def __init__(self, lake, table):
        self.table = table
        table.configure(compact_files=2)
        columns = pa.schema([("seq", pa.int64()), *table.schema])
        self.copy = lake.create_table("copy", columns, key=["id"], vnodes=2)
        self.journal = lake.create_table("journal", "seq:int64, op:string, id:int64, name:string", vnodes=2)
        self.chance = random.Random(0)
        self.changes, self.extra = [], {}
        self.number = self.held = 0
        self.places = {each.name: [0, 0] for each in (self.copy, self.journal)}

    def work(self):
        self.number += 1
        number, table = self.number, self.table
        if number % 5 == 4:
            seq = table.delete([self.chance.randrange(90) for _ in range(9)]).seq
        else:
            row = {"name": str(number), "qty": number, **self.extra}
            seq = table.upsert([{"id": self.chance.randrange(90), **row} for _ in range(40)]).seq
        self.changes.append(table.changes(after=seq - 1, upto=seq))
        if number % 3 == 0:
            (self.copy if number % 9 == 0 else table).compact(full=number % 2 == 0)
        self.hold()
        if number % 4 == 0:
            table.vacuum(keep=0, grace=0)

    def hold(self):
        """Keep what a batch that is repeated needs: the changes after the batch before it."""
        for each in (self.copy, self.journal):
            seen = max(each.to_arrow(columns=["seq"])["seq"].to_pylist(), default=0)
            if seen != self.places[each.name][-1]:
                self.places[each.name].append(seen)
        self.held = max(self.held, min(places[-2] for places in self.places.values()))
        self.table.pin(self.held, name="queries")

    def add_column(self):
        name = f"extra_{self.number}"
        for each in (self.copy, self.table):
            each.add_column(name, "int64")
        self.extra[name] = self.number

    @property
    def is_trimmed(self):
        return self.table.log.refresh().trimmed_to > 0

    def check(self):
        assert self.is_trimmed and self.table.log.refresh().snapshot.txns["pack"]
        assert rows_of(self.copy.to_arrow(columns=self.table.schema.names)) == rows_of(self.table.to_arrow())
        every = pa.concat_tables([each.select(["_seq", "_op", "id", "name"]) for each in self.changes])
        assert rows_of(self.journal.to_arrow(columns=["seq", "op", "id", "name"])) == rows_of(every)


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.chaos)])
def test_a_killed_query_follows_a_table_in_any_care(tmp_path, lake, items, bare_python, kills):
    followed = Followed(lake, items)
    arguments = [lake.storage.uri, str(tmp_path)]
    for life in [*range(kills), "last"]:
        with killed_at_end(FOLLOW, *arguments, str(life), PYSPARK_PYTHON=bare_python) as query:
            if life != "last":
                seen = followed.journal.head
                while (followed.journal.head < seen + 4 or not followed.is_trimmed) and query.poll() is None:
                    followed.work()
                    time.sleep(followed.chance.random() / 2)
                time.sleep(followed.chance.random() / 2)
                os.killpg(query.pid, signal.SIGKILL)
            _, said = query.communicate(timeout=250)
        assert (query.returncode == 0) == (life == "last"), said[-2000:]
        if life != "last":
            followed.add_column()
    followed.check()
