"""Spark runs a task again, or twice at once: rows land once, in one commit, and nobody sees an error.

A worker is killed, or hangs, after it has written a file and before it has told Spark so. The event log of Spark proves
that the attempt failed, or that a second one ran beside it.
"""

import contextlib
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

import strandline as sl
from support import claimed_files, data_files, free_ports, python, rows_of, serving

# Short runs: what the JVM saves later costs more now.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
POINT = "parquet.file_written"
ROWS = 4000
# Each call, and how Spark's UI names its jobs.
CALLS = {
    "upsert": "strandline: upsert into upserted",
    "save": None,
    # A query's jobs have its own name.
    "stream": "streaming",
    "ingest": "strandline: ingest 4 files into ingested",
    "sift": "strandline: ingest 1 file into sifted",
    "fold": "strandline: compact saved, 4 vnodes",
    "export": "strandline: export upserted",
    "send": "strandline: send upserted to out",
}

TABLES = {"upsert": "upserted", "save": "saved", "stream": "streamed", "ingest": "ingested"}
FOLDERS = {"export": "export", "send": "sent"}

CHILD = """
import json, os, sys
folder, master, kind, settings, *calls = sys.argv[1:]
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(master)
for name, value in json.loads(settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
import strandline as sl
from strandline.spark_source import register
register(spark)

def source(reader, name, **options):
    return reader.format("strandline").options(lake=folder + "/lake", table=name, **options)

def stream():
    changes = source(spark.readStream, "saved", start="0").load().repartition(4, "id")
    target = source(changes.writeStream.queryName("streaming"), "streamed", orderBy="_seq")
    query = target.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None

lake = sl.Lake(folder + "/lake", spark=spark)
table = lake.table("upserted")
lake.sink("out", "upserted", to=sl.ParquetSink(folder + "/sent"), start="backfill")
frame = spark.range(ROWS).selectExpr("id", "concat('n', id) AS name", "CAST(1 AS int) AS qty").repartition(4)
work = {
    "upsert": lambda: table.upsert(frame),
    "save": source(frame.write, "saved").mode("append").save,
    "stream": stream,
    "ingest": lambda: lake.ingest("ingested", folder + "/files/*.jsonl", key=["id"], engine="spark"),
    "fold": lambda: lake.table("saved").compact(full=True, engine="spark"),
    "sift": lambda: lake.ingest("sifted", folder + "/sift.jsonl", key=["id"], rejects=True, engine="spark"),
    "send": lambda: lake.tick(only=["out"]).raise_for_errors(),
    "export": lambda: table.export(folder + "/export", engine="spark"),
}
armed = os.environ["STRANDLINE_CRASH"].split("@")[1]
for name in calls:
    with open(armed, "w") as file:
        file.write(kind)
    work[name]()
    assert not os.path.exists(armed), name + ": no worker has met the crash point"
spark.stop()
""".replace("ROWS", str(ROWS))


@pytest.fixture
def place(tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    for name in ("upserted", "saved", "streamed", "sifted"):
        lake.create_table(name, "id:int64,name:string,qty:int32", key=["id"], vnodes=4)
    for folder in ("files", "events"):
        (tmp_path / folder).mkdir()
    sifted = (json.dumps({"id": n if n % 100 else "bad", "name": f"n{n}"}) for n in range(ROWS))
    (tmp_path / "sift.jsonl").write_text("\n".join(sifted) + "\n")
    for part in range(4):
        lines = (json.dumps({"id": n, "name": f"n{n}", "qty": 1}) for n in range(part, ROWS, 4))
        (tmp_path / "files" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(place, master, calls, *, kind="", **settings):
    """Run the calls while each has a worker that is killed, or stopped; the ends of all tasks by the names of jobs."""
    known = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        # Four tasks for each call, although its rows would fit one.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        **settings,
    }
    crash = f"{POINT}@{place / 'armed'}"
    more = {"PYSPARK_PYTHON": sys.executable, "STRANDLINE_ENGINE": "spark"}
    done = python(CHILD, str(place), master, kind, json.dumps(known), *calls, timeout_s=240, crash=crash, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = (place / "events").iterdir()
    return task_ends([json.loads(line) for line in log.read_text().splitlines()])


def task_ends(events):
    """The ends of tasks, as (reason, whether the attempt was speculative), by the description of their job."""
    names, ends = {}, {}
    for event in events:
        if event["Event"] == "SparkListenerJobStart":
            name = event["Properties"].get("spark.job.description")
            name = name and name.partition("\n")[0]
            names |= dict.fromkeys(event["Stage IDs"], name)
        if event["Event"] == "SparkListenerTaskEnd":
            end = (event["Task End Reason"]["Reason"], event["Task Info"]["Speculative"])
            ends.setdefault(names[event["Stage ID"]], []).append(end)
    return ends


def check(place, calls):
    """Every call had its effect once; the file of the lost attempt counts nowhere, and a vacuum removes it."""
    lake = sl.Lake(place / "lake")
    expected = [(n, f"n{n}", 1) for n in range(ROWS)]
    for name in TABLES.keys() & set(calls):
        table = lake.table(TABLES[name])
        assert rows_of(table.to_arrow()) == sorted(expected, key=repr), name
        assert (table.head, [each.rows for each in table.history()][-1]) == (1, ROWS), name
        assert claimed_files(table) < data_files(table), f"{name}: an attempt has written a file that nobody claims"
        table.vacuum(grace=0)
        unfinished = {path for path in data_files(table) if "/.tmp-" in path}
        assert claimed_files(table) == data_files(table) - unfinished, name
        assert rows_of(table.to_arrow()) == sorted(expected, key=repr), name
    if "sift" in calls:
        table = lake.table("sifted")
        assert (table.count(), table.head) == (ROWS - ROWS // 100, 1)
        assert sum(kept.rows.num_rows for kept in table.rejects().kept()) == ROWS // 100
    if "fold" in calls:
        assert set(lake.table("saved").baseline.refresh().marks) == {1}
    for name in FOLDERS.keys() & set(calls):
        ids = [
            n
            for path in sorted((place / FOLDERS[name]).rglob("*.parquet"))
            for n in pq.read_table(path)["id"].to_pylist()
        ]
        assert sorted(ids) == list(range(ROWS)), name


def test_a_worker_that_is_killed_in_a_task_changes_nothing(place):
    ends = run(place, "local[2,4]", CALLS)
    for call, name in CALLS.items():
        failed = [reason for reason, _ in ends[name] if reason != "Success"]
        assert failed == ["ExceptionFailure"], (call, ends)
    check(place, CALLS)


@contextlib.contextmanager
def machines(folder, monkeypatch):
    """A standalone cluster of two machines with one core each, in Spark's eyes: it never runs two attempts of a task
    on one machine."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    ports = free_ports(3)

    def start(role, host, port, *more):
        command = [str(spark_class), f"org.apache.spark.deploy.{role}.{role.title()}", "--host", host]
        command += ["--port", str(port), "--webui-port", "0", *more]
        return serving(command, f"http://{host}:{port}", folder / f"{role}-{port}.log")

    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", QUICK)

    master = f"spark://127.0.0.1:{ports[0]}"
    with start("master", "127.0.0.1", ports[0]), contextlib.ExitStack() as workers:
        for host, port in zip(("127.0.0.2", "127.0.0.3"), ports[1:], strict=True):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"))
            workers.enter_context(start("worker", host, port, *size, master))
        yield master


def test_a_second_attempt_beside_one_that_hangs_changes_nothing(place, monkeypatch):
    calls = ["save", "stream", "ingest", "fold"]
    settings = {
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executorEnv.STRANDLINE_CRASH": f"{POINT}@{place / 'armed'}",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.2",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.task.duration.threshold": "2s",
    }
    with machines(place, monkeypatch) as master:
        ends = run(place, master, calls, kind="SIGSTOP", **settings)
    for call in calls:
        assert ("Success", True) in ends[CALLS[call]], (call, ends)
    check(place, calls)
