"""Spark Connect: the same core through a client that has no JVM of its own."""

import json

from foreign_receiver import Endpoint, foreign_receiver
from support import one_connect_server, python

CODE = """
import json, os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
import pyarrow as pa
import strandline as sl
from strandline.engines.choice import DriverLimit
from strandline.tables import writing
from strandline.model.change import UPSERT
from strandline.consumers import compaction
from strandline.model.rows import check_rows

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
lake = sl.Lake(sys.argv[1], spark=spark)
schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
table = lake.create_table("items", schema, key=["id"], vnodes=2)
clustered = lake.create_table("clustered", schema, key=["id"], cluster_by=["name"], vnodes=2)
clustered.upsert([{"id": n, "name": f"n{n % 3}"} for n in range(20)])
table.upsert(spark.range(40).selectExpr("id", "'spark' AS name", "TIMESTAMP'2026-01-01 00:00:00Z' AS at"))
compaction.compact(table, full=True, driver_rows=0)
table.upsert([{"id": n, "name": "driver"} for n in range(30, 50)], missing="null")
table.delete(spark.range(5))

def rows(arrow):
    return sorted((row["id"], row["name"], str(row["at"])[:19]) for row in arrow.to_pylist())

answers = {"expected": rows(table.to_arrow()), "connect": rows(table.to_spark().toArrow())}
answers["where"] = sorted(row["id"] for row in table.to_spark(where="name = 'driver' AND id < 33").collect())
answers["before"] = table.to_spark(at=1).count()
pieces = check_rows([{"id": n, "name": "spool"} for n in range(100, 120)], table.schema)
writing.write(table.log, pieces, table.definition, UPSERT, tokens=(), spark=spark, limit=DriverLimit(0, 1))
try:
    table.upsert(spark.sql("SELECT 1L AS id UNION ALL SELECT 1L AS id"), missing="null")
except sl.Invalid as error:
    answers["refused"] = error.fields["column"]
compaction.compact(table, full=True, driver_rows=0)
answers["folded"] = rows(sl.Lake(sys.argv[1]).table("items").to_arrow(where="id < 100"))
answers["spooled"] = table.to_arrow(where="name = 'spool'").num_rows
import strandline.jobs.export.export as exports
import pyarrow.parquet as pq
exports.BULK = DriverLimit(-1, -1)
answers["rising"] = True
for wide in (0, 1 << 40):
    exports.WIDE_ROW_BYTES = wide
    told = []
    done = clustered.export(sys.argv[2], overwrite=True, progress=lambda *each: told.append(each))
    assert done.engine == "spark"
    answers["rising"] &= [share for share, *_ in told] == sorted(share for share, *_ in told)
    answers[f"exported_{bool(wide)}"] = sorted(pq.read_table(sys.argv[2]).column("id").to_pylist())
answers["marks"] = list(table.baseline.refresh().marks)
import strandline.consumers.ranges as ranges
import strandline.consumers.work as work
work.DELIVERY, ranges.LANE_ROWS = DriverLimit(-1, -1), 5
lake.sink("files", "items", to=sl.ParquetSink(sys.argv[3]))
lake.sink("central", "clustered", to=sl.HttpSink(sys.argv[4], receiver="any", lanes=2))
assert {work.engine for sink in lake.plan().sinks for work in sink.works} == {"spark"}
report = lake.tick(only=["files", "central"])
assert report.is_well, report
answers["sent"] = {sink.name: sink.rows for sink in report.sinks}
answers["kept"] = sorted(pq.read_table(sys.argv[3] + "/data").column("id").to_pylist())
report = lake.ingest("loaded", sys.argv[5], key=["id"], rejects=True, engine="spark")
answers["loaded"] = [report.rows, report.rejects, report.seqs, lake.table("loaded").to_spark().count()]
answers["again"] = lake.ingest("loaded", sys.argv[5], engine="spark").count("skip")
print(json.dumps(answers))
"""


def test_the_core_runs_on_spark_connect(tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for part in range(3):
        lines = (json.dumps({"id": n, "name": f"n{n}"}) for n in range(part * 20, part * 20 + 30))
        (inbox / f"{part}.jsonl").write_text("\n".join(lines) + "\nbad\n")
    with one_connect_server(), foreign_receiver(tmp_path) as address:
        endpoint = Endpoint(address, "/clustered")
        places = [str(tmp_path / name) for name in ("lake", "out", "files")]
        done = python(CODE, *places, endpoint.url, str(inbox), timeout_s=240)
        received = sorted(row["id"] for row in endpoint.rows())
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert len(answers["expected"]) == 45
    assert answers["connect"] == answers["expected"]
    assert answers["folded"] == answers["expected"]
    assert answers["where"] == [30, 31, 32]
    assert (answers["before"], answers["spooled"], answers["refused"]) == (40, 20, "id")
    assert answers["marks"] == [4, 4]
    assert answers["exported_False"] == answers["exported_True"] == list(range(20))
    assert answers["rising"]
    assert (answers["loaded"], answers["again"]) == ([90, 3, [1], 70], 3)
    assert answers["sent"] == {"files": 65, "central": 20}
    assert answers["kept"] == sorted([*range(5, 50), *range(100, 120)])
    assert received == list(range(20))
