"""Exports on Spark and to an object store: the same rows as the driver's, all or nothing, in memory that stays flat."""

import datetime as dt
import io
import json
import math
import os
import signal
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.engines.choice import DriverLimit
from strandline.jobs.export import export as exports
from strandline.jobs.export.destination import MANIFEST
from strandline.jobs.export.lock import LOCK
from strandline.model.types import conform, storage_schema
from strandline.storage.open import S3Storage
from support import (
    BUCKET,
    answer_of,
    claimed_files,
    files_below,
    is_part,
    options_for,
    proxied,
    python,
    refused,
    rows_of,
    start_python,
)

GIANT = "giant " * (2 << 20)
HUGE = bytes(range(256)) * (30 << 12)
SCHEMA = pa.schema(
    [
        ("session", pa.string()),
        ("part", pa.int64()),
        ("text", pa.string()),
        ("doc", pa.json_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("n", pa.int8()),
        ("f", pa.float64()),
        ("single", pa.float32()),
        ("p", pa.decimal128(20, 3)),
        ("flag", pa.bool_()),
        ("none", pa.string()),
        ("no_list", pa.list_(pa.int32())),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.struct([("y", pa.string())])))])),
        ("pairs", pa.map_(pa.string(), pa.int32())),
    ]
)
OPTIONS = {
    "clustered": {"key": ["session", "part"], "cluster_by": ["session"], "vnodes": 4},
    "folded": {"key": ["session", "part"], "cluster_by": ["session"], "vnodes": 4},
    "keyed": {"key": ["session", "part"], "vnodes": 2},
    "unkeyed": {"cluster_by": ["session", "day"], "vnodes": 2},
}


def row(n, rev=0):
    return {
        "session": f"s{n // 5}",
        "part": n % 5,
        "text": ["", "e\u0301 👩\u200d🚀 \x00", None, "x" * 3000, f"{n} {rev}"][n % 5],
        "doc": [sl.JsonText(f'{{"b" : {n},  "a": 1.0e5}}'), None, sl.JsonText("[ ]")][n % 3],
        "raw": [b"", b"\x00\xff", None, bytes([n % 256])][n % 4],
        "day": dt.date(1960, 1, 1) + dt.timedelta(days=n * 200) if n % 7 else None,
        "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(microseconds=n),
        "local": None if n % 3 == 0 else dt.datetime(1969, 12, 31) + dt.timedelta(hours=n),
        "n": (n * 7 + rev) % 100 - 50,
        "f": [math.nan, math.inf, -0.5, None, -math.inf, 1e300][n % 6],
        "single": [1.5, None][n % 2],
        "p": Decimal(n) / 8 if n % 4 else None,
        "flag": [True, None, False][n % 3],
        "none": None,
        "no_list": None,
        "tags": [None, [], [None], ["a", "", "a"]][n % 4],
        "point": [None, {"x": None, "tags": None}, {"x": n, "tags": [{"y": "deep"}, {"y": None}, None]}][n % 3],
        "pairs": [None, [], [("a", None), ("b", n)]][n % 3],
    }


def build(lake, shape="clustered"):
    """Baseline, a log over two schemas, deletes, and one giant."""
    table = lake.create_table(f"t_{shape}", SCHEMA, **OPTIONS[shape])
    write = table.upsert if table.definition.is_keyed else table.append
    write([row(n) for n in range(150)])
    table.compact(full=True)
    write([row(n, rev=1) for n in range(100, 200)])
    table.evolve(pa.schema([("n", pa.int32()), ("more", pa.string())]))
    write([{**row(n, rev=2), "more": "x"} for n in range(190, 220)])
    write([{**row(500), "text": GIANT}, {**row(501), "raw": HUGE}])
    if table.definition.is_keyed:
        table.delete([{"session": "s1", "part": 3}, {"session": "s43", "part": 4}, {"session": "none", "part": 1}])
    if shape == "folded":
        table.compact(full=True)
    return table


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of each shape, to be read only."""
    lake = sl.Lake(tmp_path_factory.mktemp("tables") / "lake")
    return {shape: build(lake, shape) for shape in OPTIONS}


@pytest.fixture
def on_spark(spark, monkeypatch):
    """Every export is too large for the driver."""
    monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))


def plain(table):
    """Rows in a form that does not depend on who read them: times in UTC, floats by what they show."""
    return [tuple(map(_plain, each)) for each in rows_of(table)]


def _plain(value):
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def read(folder, schema):
    return conform(pq.read_table(folder), schema)


def manifest_of(folder):
    return json.loads((Path(folder) / MANIFEST).read_text())


def check_whole(folder, report):
    manifest = manifest_of(folder)
    assert files_below(folder) == {MANIFEST, *(file["path"] for file in manifest["files"])}
    assert (report.rows, report.files) == (manifest["rows"], len(manifest["files"]))
    assert report.bytes == sum((Path(folder) / file["path"]).stat().st_size for file in manifest["files"])


def check_clustered(folder, names):
    """Rows of one cluster key lie together in one file; a group holds at most sixteen of them."""
    home = {}
    for file in manifest_of(folder)["files"]:
        opened = pq.ParquetFile(Path(folder) / file["path"])
        last = None
        for group in range(opened.num_row_groups):
            keys = [tuple(each.values()) for each in opened.read_row_group(group, columns=names).to_pylist()]
            assert len(set(keys)) <= 16
            for key in keys:
                assert key == last or key not in home, f"{key} comes back"
                home[key] = file["path"]
                last = key


# --- Spark and the driver ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("clustered", {}),
        ("folded", {}),
        ("keyed", {}),
        ("unkeyed", {}),
        ("clustered", {"at": 1, "where": "flag AND n > 0", "columns": ["doc", "session", "n"]}),
        ("unkeyed", {"columns": ["text", "part"]}),
        ("keyed", {"changes": (0, None)}),
        ("clustered", {"changes": (0, None)}),
        ("clustered", {"changes": (1, 3), "where": "n > 0", "columns": ["n", "tags"]}),
        ("unkeyed", {"changes": (1, None), "where": "n > 0"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("carried", ["rows", "blocks"])
def test_spark_exports_what_the_driver_exports(on_spark, tables, tmp_path, monkeypatch, shape, options, carried):
    table = tables[shape]
    if carried == "rows":
        monkeypatch.setattr(exports, "WIDE_ROW_BYTES", 1 << 40)
    else:
        monkeypatch.setattr(exports, "WIDE_ROW_BYTES", 0)
    report = table.export(str(tmp_path / "spark"), **options)
    monkeypatch.undo()
    other = table.export(str(tmp_path / "driver"), **options)
    assert (report.engine, other.engine) == ("spark", "driver")
    assert (report.rows, report.seq, report.after) == (other.rows, other.seq, other.after)
    found = pq.read_table(tmp_path / "spark")
    assert found.schema == pq.read_schema(tmp_path / "driver" / manifest_of(tmp_path / "driver")["files"][0]["path"])
    assert plain(found) == plain(pq.read_table(tmp_path / "driver"))
    if "changes" not in options:
        expected = table.to_arrow(**options)
        assert plain(conform(found, expected.schema)) == plain(expected)
    check_whole(tmp_path / "spark", report)
    cluster_by = OPTIONS[shape].get("cluster_by", [])
    if cluster_by and set(cluster_by) <= set(found.schema.names):
        check_clustered(tmp_path / "spark", cluster_by)


def test_an_export_on_spark_of_no_rows_is_a_file_with_columns(on_spark, tables, tmp_path):
    report = tables["clustered"].export(str(tmp_path / "out"), where="part > 1000")
    assert (report.rows, report.files, report.engine) == (0, 1, "spark")
    check_whole(tmp_path / "out", report)
    assert pq.read_table(tmp_path / "out").schema.names == tables["clustered"].schema.names


def test_progress_of_a_job_on_spark_rises(on_spark, tables, tmp_path):
    told = []
    tables["clustered"].export(str(tmp_path / "out"), progress=lambda *each: told.append(each))
    assert told[0] == (0, 0, "t_clustered")
    assert all(0 <= done <= whole for done, whole, _ in told)


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_every_engine_reads_an_export(spark, tables, tmp_path, monkeypatch, engine):
    table = tables["clustered"]
    if engine == "spark":
        monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))
    assert table.export(str(tmp_path / "out")).engine == engine
    files = [str(tmp_path / "out" / file["path"]) for file in manifest_of(tmp_path / "out")["files"]]
    schema = pa.schema([field.with_nullable(True) for field in storage_schema(table.schema)])
    expected = plain(conform(table.to_arrow(), schema))
    assert len(GIANT) >= 12 << 20 and sum(each[2] == GIANT for each in expected) == 1
    assert len(HUGE) >= 30 << 20 and sum(each[4] == HUGE for each in expected) == 1
    assert plain(read(tmp_path / "out", schema)) == expected
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"SELECT * FROM read_parquet({files!r})").to_arrow_table()
        assert plain(conform(found, schema)) == expected
        kind = connection.sql(f"SELECT DISTINCT typeof(doc) FROM read_parquet({files!r})").fetchall()
        assert kind == [("JSON",)]
    polars = pl.read_parquet(files).to_arrow()
    # Polars has no maps: it shows them as lists of pairs.
    named = [name for name in schema.names if name != "pairs"]
    assert plain(conform(polars.select(named), pa.schema([schema.field(name) for name in named]))) == plain(
        conform(table.to_arrow(columns=named), pa.schema([schema.field(name) for name in named]))
    )
    assert plain(conform(spark.read.parquet(*files).toArrow(), schema)) == expected


def test_a_damaged_file_of_the_table_fails_the_export_on_spark_and_leaves_the_destination_as_it_was(on_spark, tmp_path):
    lake = sl.Lake(tmp_path / "lake")
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("x", pa.binary())]), key=["id"], vnodes=1)
    table.upsert([{"id": n, "x": os.urandom(200)} for n in range(1000)])
    table.export(str(tmp_path / "out"))
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files_below(tmp_path / "out")}
    (name,) = claimed_files(table)
    path = tmp_path / "lake" / table.entry.folder / name
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)
    with pytest.raises(sl.Corrupt):
        table.export(str(tmp_path / "out"), overwrite=True)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files_below(tmp_path / "out")} == before


@pytest.mark.parametrize("options", [{}, {"columns": ["session", "id"]}], ids=str)
def test_a_lane_that_reads_files_itself_compares_them_with_their_digests(on_spark, tmp_path, monkeypatch, options):
    """The damage is one that no page checksum covers, and that changes no row: only the digest tells."""
    monkeypatch.setattr(exports, "WIDE_ROW_BYTES", 0)
    lake = sl.Lake(tmp_path / "lake")
    schema = pa.schema([("id", pa.int64()), ("session", pa.string()), ("x", pa.string())])
    table = lake.create_table("t", schema, key=["id"], cluster_by=["session"], vnodes=1)
    table.upsert([{"id": n, "session": f"s{n % 3}", "x": "y" * 50} for n in range(100)])
    table.compact(full=True)
    assert table.export(str(tmp_path / "out"), **options).engine == "spark"
    (file,) = table.baseline.refresh().files()
    path = tmp_path / "lake" / table.baseline.folder / file.path
    data = bytearray(path.read_bytes())
    writer = bytes(data).rindex(b"parquet-cpp")
    data[writer] ^= 1
    path.write_bytes(data)
    assert pq.read_table(path).num_rows == 100
    if options:
        assert table.export(str(tmp_path / "out"), overwrite=True, **options).rows == 100, "its pages are whole"
        return
    with refused(sl.Corrupt, path=f"{table.baseline.folder}/{file.path}"):
        table.export(str(tmp_path / "out"), overwrite=True)


DOOMED = """
import json, os, signal, sys
import strandline as sl
from strandline.engines.choice import DriverLimit
from strandline.jobs.export import export as exports

lake, name, first, mark, second, options = sys.argv[1:]

def dying(lane, batches):
    receipts = list(lane(batches))
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return iter(receipts)
    os.kill(os.getpid(), signal.SIGKILL)

run_lane = exports.run_lane
exports.run_lane = lambda rows, lane, schema: run_lane(rows, lambda batches: dying(lane, batches), schema)
exports.BULK = DriverLimit(-1, -1)
table = sl.Lake(lake).table(name)
print(json.dumps(table.export(first).to_dict()), flush=True)
table.export(second, options=json.loads(options))
"""


@pytest.fixture(scope="module")
def doomed(tables, seaweed, tmp_path_factory):
    """What a process left that exports on Spark twice. In the first export a worker is killed when it has written its
    files; Spark runs its task again. In the second one, to S3, the process itself is killed before it publishes."""
    folder = tmp_path_factory.mktemp("doomed")
    store = S3Storage(BUCKET, f"exports/{uuid.uuid4().hex}", options_for(seaweed))
    table = tables["clustered"]
    places = [str(folder / "out"), str(folder / "mark"), store.uri, json.dumps(dict(store.options))]
    crash = "export.staged:2"
    ended = python(DOOMED, table.log.storage.uri, table.name, *places, crash=crash, STRANDLINE_SPARK="local[2,4]")
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert (folder / "mark").exists(), "a worker died"
    return exports.ExportReport(**json.loads(ended.stdout.splitlines()[-1])), store


def test_a_task_that_dies_after_it_wrote_and_runs_again_doubles_nothing(doomed, tables):
    report, _ = doomed
    table = tables["clustered"]
    assert report.engine == "spark"
    check_whole(report.uri, report)
    check_clustered(report.uri, ["session"])
    assert plain(read(report.uri, table.schema)) == plain(table.to_arrow())


# --- an object store -----------------------------------------------------------------------------------------------


@pytest.fixture
def store(seaweed):
    return S3Storage(BUCKET, f"exports/{uuid.uuid4().hex}", options_for(seaweed))


def to_s3(table, store, **options):
    return table.export(store.uri, options=dict(store.options), **options)


def objects(store):
    return {info.path for info in store.list("")}


def read_s3(store, schema):
    """What the manifest lists, which is all that is there."""
    manifest = json.loads(store.read(MANIFEST))
    names = {file["path"] for file in manifest["files"]}
    assert objects(store) == {MANIFEST, *names}
    assert list(store.temporaries("")) == []
    assert Counter(file["size"] for file in manifest["files"]) == Counter(len(store.read(name)) for name in names)
    return conform(pa.concat_tables(pq.read_table(io.BytesIO(store.read(name))) for name in sorted(names)), schema)


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_an_export_to_s3_holds_the_rows_and_is_replaced_when_asked_for(spark, tables, store, monkeypatch, engine):
    table = tables["clustered"]
    if engine == "spark":
        monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))
    report = to_s3(table, store)
    assert (report.engine, report.uri) == (engine, store.uri)
    assert plain(read_s3(store, table.schema)) == plain(table.to_arrow())
    before = objects(store)
    with refused(sl.Invalid, path=MANIFEST):
        to_s3(table, store)
    assert objects(store) == before
    to_s3(table, store, where="flag", overwrite=True)
    expected = table.to_arrow(where="flag")
    assert plain(read_s3(store, expected.schema)) == plain(expected)
    with store.output("mine.txt") as stream:
        stream.write(b"mine")
    with refused(sl.Invalid, path="mine.txt"):
        to_s3(table, store, overwrite=True)
    assert store.read("mine.txt") == b"mine"


def test_a_lake_on_s3_is_exported_by_driver_and_spark(spark, s3_lake, store, tmp_path, monkeypatch):
    table = build(s3_lake())
    expected = plain(table.to_arrow())
    table.export(str(tmp_path / "driver"))
    assert plain(read(tmp_path / "driver", table.schema)) == expected
    monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))
    assert to_s3(table, store).engine == "spark"
    assert plain(read_s3(store, table.schema)) == expected
    with refused(sl.Invalid):
        table.export(f"{table.log.storage.uri}/new", options=options_for(store.options["endpoint"]))


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_a_failure_on_the_way_to_s3_leaves_no_object_and_no_upload(spark, tables, store, seaweed, monkeypatch, engine):
    table = tables["clustered"]
    if engine == "spark":
        monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))
    with proxied(seaweed) as proxy:
        proxy.is_aimed = is_part
        proxy.faults = [(403, "AccessDenied")] * 20
        with pytest.raises(sl.StrandlineError):
            table.export(store.uri, options=options_for(proxy.endpoint))
        assert "AccessDenied" in str(proxy.seen)
    assert objects(store) == set()
    assert list(store.temporaries("")) == []
    to_s3(table, store)
    assert plain(read_s3(store, table.schema)) == plain(table.to_arrow())


def test_a_store_that_goes_away_on_the_way_does_not_lock_its_destination_for_the_process_that_lives_on(
    tables, store, seaweed
):
    table = tables["clustered"]
    with proxied(seaweed) as proxy:
        proxy.is_aimed = is_part
        proxy.faults = ["down"]
        hasty = {**options_for(proxy.endpoint), "retry_config": {"max_retries": 1}}
        with refused(sl.Unavailable):
            table.export(store.uri, options=hasty)
    assert MANIFEST not in objects(store)
    to_s3(table, store)
    assert plain(read_s3(store, table.schema)) == plain(table.to_arrow())


EXPORT = """
import json, sys
import strandline as sl
lake, name, dest, options = sys.argv[1:]
sl.Lake(lake).table(name).export(dest, options=json.loads(options))
"""


@pytest.mark.parametrize("point", ["export.staged", "export.published"])
def test_after_a_kill_on_the_way_to_s3_the_next_export_cleans_up(tables, store, point):
    table = tables["clustered"]
    ended = python(EXPORT, table.log.storage.uri, table.name, store.uri, json.dumps(dict(store.options)), crash=point)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    if point == "export.published":
        assert objects(store) > {LOCK} and MANIFEST not in objects(store)
    else:
        assert objects(store) == {LOCK}
        assert list(store.temporaries("")) != []
    to_s3(table, store)
    assert plain(read_s3(store, table.schema)) == plain(table.to_arrow())


def test_after_a_kill_of_a_job_on_spark_on_the_way_to_s3_the_next_export_cleans_up(doomed, tables):
    _, store = doomed
    table = tables["clustered"]
    assert objects(store) == {LOCK}
    assert len(list(store.temporaries(""))) >= 1
    to_s3(table, store)
    assert plain(read_s3(store, table.schema)) == plain(table.to_arrow())


# --- memory --------------------------------------------------------------------------------------------------------

LANE = """
import json, resource, sys
import pyarrow as pa
from strandline.engines.lanes import ExportLane
from strandline.storage.open import LocalStorage

rows, cluster_by = int(sys.argv[2]), json.loads(sys.argv[3])
schema = pa.schema([("session", pa.int64()), ("part", pa.int64()), ("tools", pa.json_()), ("raw", pa.binary())])

def batches():
    for start in range(0, rows, 200):
        numbers = range(start, start + 200)
        tools = ['["' + f"{n // 100:05d}" * 2000 + '"]' for n in numbers]
        storage = pa.array(tools, pa.string())
        yield pa.record_batch(
            [
                pa.array([n // 100 for n in numbers]),
                pa.array(numbers),
                pa.ExtensionArray.from_storage(pa.json_(), storage),
                pa.array([f"{n % 3:05d}".encode() * 2000 for n in numbers]),
            ],
            schema=schema,
        )

lane = ExportLane(LocalStorage(sys.argv[1]), "id", schema, cluster_by)
receipts = [row for batch in lane(batches()) for row in batch.to_pylist()]
assert all(row["error"] is None for row in receipts)
done = sum(json.loads(row["stats"])["numRecords"] for row in receipts)
print(json.dumps([done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.mark.parametrize("cluster_by", [["session"], []], ids=["clustered", "plain"])
def test_the_memory_of_a_lane_does_not_grow_with_its_rows(tmp_path, cluster_by):
    """Rows of 20 KB, most of it repeated: 40 megabytes of them, and ten times as many."""
    peaks = []
    for rows in (2_000, 20_000):
        process = start_python(LANE, str(tmp_path / str(rows)), str(rows), json.dumps(cluster_by))
        done, peak_kib = answer_of(process)
        assert done == rows
        peaks.append(peak_kib)
    assert peaks[1] <= 1.15 * peaks[0], peaks
