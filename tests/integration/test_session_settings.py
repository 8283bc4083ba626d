"""Whatever a user's Spark session is set to: reads, folds, exports and writes give what a plain session gives."""

import contextlib
import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

import strandline as sl
import strandline.jobs.export.export as exports
from strandline.consumers import compaction
from strandline.engines.choice import DriverLimit
from strandline.engines.scan import spark_schema
from strandline.jobs.doctor import examine
from strandline.model.types import conform
from support import refused

MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", MOMENT),
        ("local", pa.timestamp("us")),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("share", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("parts", pa.list_(pa.struct([("at", MOMENT), ("day", pa.date32())]))),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
TEXTS = ["a\\b", "x'y", "${spark.app.name}", "plain", "ü\n", "A", "a", None]
YEARS = [1, 1000, 1500, 1582, 1850, 1899, 1950, 2024]
WHERE = (
    "at >= '1500-01-01 00:00:00' AND text <> 'a\\b' AND text <> '${spark.app.name}' AND text <> 'x''y'"
    " AND local < TIMESTAMP '2024-02-03 02:30:00' AND day <> DATE '1582-02-03'"
)
HOSTILE = {
    "corrupt files are ignored": {"spark.sql.files.ignoreCorruptFiles": "true"},
    "missing files are ignored": {"spark.sql.files.ignoreMissingFiles": "true"},
    "old days are rebased": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    },
    "timestamps are local": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "another zone": {"spark.sql.session.timeZone": "America/Los_Angeles"},
    "names differ by case": {"spark.sql.caseSensitive": "true"},
    "not ANSI": {"spark.sql.ansi.enabled": "false"},
    "another way to quote": {
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    },
    "Parquet by other rules": {
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.legacy.parquet.nanosAsLong": "true",
    },
    "Arrow by other rules": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.pyspark.enabled": "false",
        "spark.sql.execution.pyspark.binaryAsBytes": "false",
    },
    "another shuffle": {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.files.maxPartitionBytes": "1000",
    },
    "as it was long ago": {
        "spark.sql.legacy.interval.enabled": "true",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.castComplexTypesToString.enabled": "true",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.datetime.java8API.enabled": "true",
    },
}


def rows():
    found = []
    for at in range(40):
        moment = dt.datetime(YEARS[at % 8], 2, 3, 2, 30, 1, 5)
        utc = moment.replace(tzinfo=dt.UTC)
        found.append(
            {
                "id": at,
                "day": moment.date(),
                "at": utc,
                "local": moment,
                "text": TEXTS[at % 8],
                "bytes": b"\x00\xff",
                "share": float("nan") if at % 5 == 0 else at / 3,
                "price": None if at % 3 else Decimal("12.3456"),
                "parts": [{"at": utc, "day": moment.date()}],
                "counts": [("k", at)],
            }
        )
    return found


def plain(table):
    return sorted(map(repr, table.to_pylist()))


@contextlib.contextmanager
def set_to(spark, settings):
    """A session with other settings, for a while."""
    unset = object()
    before = {name: spark.conf.get(name, None) or unset for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is unset else spark.conf.set(name, value)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A lake with a table of old and new days in baseline and log."""
    folder = tmp_path_factory.mktemp("settings") / "lake"
    table = sl.Lake(folder).create_table("t", SCHEMA, key=["id"], vnodes=4)
    table.upsert(rows()[:30])
    table.compact(full=True)
    table.upsert(rows()[20:])
    table.delete([25])
    return folder


@pytest.fixture
def table(original, tmp_path, spark):
    shutil.copytree(original, tmp_path / "lake")
    return sl.Lake(tmp_path / "lake", spark=spark).table("t")


@pytest.mark.parametrize("settings", HOSTILE.values(), ids=HOSTILE)
def test_no_setting_of_a_session_changes_a_result(spark, table, tmp_path, monkeypatch, settings):
    expected, chosen = plain(table.to_arrow()), plain(table.to_arrow(where=WHERE))
    types = table.to_spark().dtypes
    given = spark.createDataFrame(pa.Table.from_pylist(rows(), SCHEMA), schema=spark_schema(SCHEMA))
    frame = table.to_spark()
    fresh = sl.Lake(table.log.storage.uri, spark=spark)
    with set_to(spark, settings):
        assert plain(conform(frame.toArrow(), SCHEMA)) == expected, "a frame that was made before"
        again = fresh.table("t").to_spark()
        assert again.dtypes == types
        assert plain(conform(again.toArrow(), SCHEMA)) == expected
        assert plain(conform(fresh.table("t").to_spark(where=WHERE).toArrow(), SCHEMA)) == chosen

        monkeypatch.setattr(exports, "BULK", DriverLimit(-1, -1))
        report = fresh.table("t").export(tmp_path / "out")
        assert report.engine == "spark"
        exported = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet"))
        assert plain(exported) == expected

        folded = compaction.compact(fresh.table("t"), full=True, driver_rows=-1)
        assert (folded.engine, folded.degraded) == ("spark", ())
        assert plain(sl.Lake(table.log.storage.uri).table("t").to_arrow()) == expected

        written = fresh.create_table("w", SCHEMA, key=["id", "day", "at", "local"], vnodes=4)
        written.upsert(given)
        assert plain(written.to_arrow()) == plain(pa.Table.from_pylist(rows(), SCHEMA))
    found = examine(table.log.storage, deep=True)
    assert found.is_sound, found.findings


def data_file(table, part):
    """A file that a read needs."""
    merge = table.merge()
    files = [file for _, file in merge.log_files()] if part == "log" else merge.base_files()
    return Path(table.log.storage.uri) / table.entry.folder / part / max(files, key=lambda file: file.rows).path


IGNORANT = {**HOSTILE["corrupt files are ignored"], **HOSTILE["missing files are ignored"]}


@pytest.mark.parametrize("part", ["log", "baseline"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_no_setting_lets_a_damaged_file_pass_for_one_with_fewer_rows(spark, table, tmp_path, part, damage):
    path = data_file(table, part)
    lazy = table.to_spark()
    data = bytearray(path.read_bytes())
    expected = plain(table.to_arrow())
    if damage == "flipped":
        group = pq.read_metadata(path).row_group(0)
        start = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "local")
        data[start.data_page_offset + start.total_compressed_size - 3] ^= 4
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()
    fresh = sl.Lake(table.log.storage.uri, spark=spark).table("t")
    with set_to(spark, IGNORANT):
        with pytest.raises(Py4JJavaError, match=path.name):
            lazy.toArrow()
        # The size is looked at when the frame is made, the pages when it runs.
        with pytest.raises(Py4JJavaError if damage == "flipped" else sl.Corrupt, match=path.name):
            fresh.to_spark().toArrow()
        report = compaction.compact(fresh, full=True, driver_rows=-1)
        assert report.degraded and path.name in report.degraded[0].path
        limit, exports.BULK = exports.BULK, DriverLimit(-1, -1)
        try:
            with refused(sl.Corrupt) as caught:
                fresh.export(tmp_path / "out")
        finally:
            exports.BULK = limit
        assert path.name in caught.value.fields["path"]
    path.write_bytes(bytes(data) if damage != "flipped" else _unflipped(data, start))
    assert plain(sl.Lake(table.log.storage.uri).table("t").to_arrow()) == expected, "put back, all is there"


def _unflipped(data, chunk):
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 4
    return bytes(data)
