"""Driver, Spark and spooled writes leave the same table; a DataFrame that is wrong leaves nothing."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

import strandline as sl
from shapes import as_frame
from strandline.consumers import compaction
from strandline.engines.choice import DriverLimit
from strandline.jobs.doctor.examine import examine
from strandline.model.change import DELETE, UPSERT
from strandline.model.rows import check_rows
from strandline.tables import fold, writing
from strandline.tables.merge import vnodes_of
from support import ITEMS, by_id, data_files, nothing_written, plan_of, refused, rows_of

WIDE = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("n", pa.int8()),
        ("f", pa.float32()),
        ("p", pa.decimal128(9, 3)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("doc", pa.json_()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int32()))])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


def wide_rows(count):
    return [
        {
            "k": ["", "ä", "a'b", "日本"][n % 4] + str(n // 4),
            "at": dt.datetime(1969 + n, 7, 1, 12, 0, 0, n, tzinfo=dt.UTC),
            "local": dt.datetime(1582, 10, 10, 2, 30) if n % 2 else dt.datetime(2021, 3, 14, 2, 30),
            "day": dt.date(1, 1, 1) if n % 2 else dt.date(9999, 12, 31),
            "n": -n,
            "f": None if n % 3 else n / 2,
            "p": Decimal(n) / 8,
            "flag": [True, False, None][n % 3],
            "raw": bytes([n, 0, 255]),
            "doc": sl.JsonText('{"b": 1,  "a": "\\u00e4"}'),
            "tags": [None, [], ["x", None, ""]][n % 3],
            "point": [None, {"x": n, "y": [1, None]}, {"x": None, "y": None}][n % 3],
            "map": [("a", n), ("b", None)],
        }
        for n in range(count)
    ]


def spooled(table, rows, op=UPSERT):
    """A write that is too large for the driver, whatever its size."""
    definition = table.definition
    columns = definition.schema
    if op == DELETE:
        columns = pa.schema([definition.schema.field(name) for name in definition.key])
    pieces = check_rows(rows, columns)
    return writing.write(table.log, pieces, definition, op, tokens=(), spark=table.spark, limit=DriverLimit(0, 1))


@pytest.mark.parametrize("key", [["k"], ["day", "n"], []], ids=["one", "two", "none"])
def test_a_batch_written_by_the_driver_by_spark_and_by_way_of_the_spool_is_the_same(spark, tmp_path, key):
    rows = wide_rows(24)
    tables = {}
    for name in ("driver", "spark", "spool"):
        table = tables[name] = sl.Lake(tmp_path / name).create_table("t", WIDE, key=key, vnodes=4)
        if name == "spark":
            frame = as_frame(spark, rows, WIDE, tmp_path)
            commit = table.upsert(frame) if key else table.append(frame)
        elif name == "spool":
            commit = spooled(table, rows)
        else:
            commit = table.upsert(rows) if key else table.append(rows)
        assert commit == sl.Commit(1, 24)
    expected = rows_of(tables["driver"].to_arrow())
    assert len(expected) == 24
    for name, table in tables.items():
        assert rows_of(table.to_arrow()) == expected, name
        assert table.to_arrow().schema.equals(tables["driver"].to_arrow().schema)
        changes = table.changes()
        assert rows_of(changes.drop_columns(["_seq"])) == rows_of(tables["driver"].changes().drop_columns(["_seq"]))
        if key:
            assert hashes(table) == hashes(tables["driver"])
        table.compact(full=True)
        assert rows_of(table.to_arrow()) == expected, name
        assert not [file for file in data_files(table) if "spool" in file], "the spool is empty again"


def hashes(table):
    log = table.log.refresh()
    sql = fold.changes_sql(log, log.files(0, log.head), ["_hash", *table.definition.key], None)
    return rows_of(table.duck.table(sql).select(["_hash", *table.definition.key]))


def test_of_spooled_rows_with_one_key_the_last_wins(spark, items):
    rows = [{"id": n % 7, "name": str(n)} for n in range(500)]
    assert spooled(items, iter(pa.Table.from_pylist(rows).to_batches(max_chunksize=50))).rows == 7
    assert by_id(items) == {n % 7: str(n) for n in range(500)}
    assert spooled(items, [{"id": 3}, {"id": 4}, {"id": 3}], DELETE).rows == 2
    assert sorted(by_id(items)) == [0, 1, 2, 5, 6]


def test_a_wrong_row_late_in_a_spooled_write_leaves_nothing(spark, items):
    items.upsert([{"id": 1, "name": "there before"}])
    good = pa.record_batch({"id": pa.array(range(100))})
    bad = pa.record_batch({"id": pa.array([1, None])})
    with nothing_written(items), refused(sl.Invalid, row=201, column="id"):
        spooled(items, iter([good, good, bad]))


def test_a_dataframe_with_an_order_says_which_row_wins(spark, items):
    frame = spark.sql("SELECT id % 5 AS id, CAST(id AS STRING) AS name, -id AS rank FROM range(100)")
    assert items.upsert(frame, order_by="rank").rows == 5
    assert by_id(items) == {n: str(n) for n in range(5)}
    items.upsert(frame.selectExpr("id", "name", "CAST(rank AS INT) AS qty"), order_by="qty")
    assert {row["id"]: row["qty"] for row in items.to_arrow().to_pylist()} == {n: -n for n in range(5)}


def test_of_an_order_by_floats_nan_is_the_largest_and_null_the_smallest(spark, items):
    ordered = ["nan", "inf", "1", "-0", "-inf", None]
    frame = spark.createDataFrame(
        [(at, str(by), by) for at in range(6) for by in ordered[at:]], "id long, name string, by string"
    )
    assert items.upsert(frame.selectExpr("id", "name", "CAST(by AS double) AS by"), order_by="by").rows == 6
    assert by_id(items) == dict(enumerate(map(str, ordered)))


def test_a_dataframe_of_keys_deletes(spark, items):
    items.upsert([{"id": n, "name": "x"} for n in range(10)])
    assert items.delete(spark.range(3, 8)).rows == 5
    assert sorted(by_id(items)) == [0, 1, 2, 8, 9]


def test_narrower_numbers_and_missing_columns_are_taken(spark, items):
    items.upsert(spark.sql("SELECT CAST(1 AS TINYINT) AS id, CAST(2 AS SMALLINT) AS qty"))
    assert rows_of(items.to_arrow()) == [(1, None, 2)]


BAD_FRAMES = {
    "SELECT 1L AS id, 'x' AS colour": "colour",
    "SELECT 'x' AS name": "id",
    "SELECT '1' AS id": "id",
    "SELECT 1.5 AS id": "id",
    "SELECT 1L AS id, 5L AS qty": "qty",
    "SELECT 1L AS id, 5 AS name": "name",
    "SELECT 1L AS id, array('x') AS name": "name",
    "SELECT 1L AS ID": "ID",
    "SELECT CAST(NULL AS BIGINT) AS id": "id",
    "SELECT id FROM VALUES (1L), (2L), (NULL) AS t(id)": "id",
    "SELECT 1L AS id UNION ALL SELECT 1L": "id",
    "SELECT 1L AS id, 2L AS id": "id",
}


@pytest.mark.parametrize("sql", BAD_FRAMES)
def test_a_wrong_dataframe_is_refused_by_column_and_leaves_nothing(spark, items, sql):
    items.upsert([{"id": 9, "name": "there before"}])
    with nothing_written(items), refused(sl.Invalid, column=BAD_FRAMES[sql], table="items"):
        items.upsert(spark.sql(sql))


def test_an_empty_dataframe_writes_nothing_and_an_unknown_order_is_refused(spark, items):
    items.upsert([{"id": 1, "name": "a"}])
    with nothing_written(items):
        assert items.upsert(spark.sql("SELECT 1L AS id WHERE false")) == sl.Commit(1, 0)
        assert items.delete(spark.sql("SELECT 1L AS id WHERE false")) == sl.Commit(1, 0)
    with nothing_written(items), refused(sl.Invalid, column="nope"):
        items.upsert(spark.sql("SELECT 1L AS id"), order_by="nope")
    with nothing_written(items), refused(sl.Invalid, column="id"):
        items.delete(spark.sql("SELECT 1L AS id UNION ALL SELECT 1L"))


def test_json_that_is_none_is_refused_from_a_dataframe_too(spark, make_table):
    """One such row would make the whole table unreadable."""
    table = make_table(pa.schema([("id", pa.int64()), ("doc", pa.json_())]), key=["id"])
    table.upsert(spark.sql("SELECT 1L AS id, '{\"a\": 1}' AS doc"))
    with nothing_written(table), refused(sl.Invalid, column="doc"):
        table.upsert(spark.sql("SELECT 2L AS id, '{not json' AS doc"))
    assert table.to_arrow().num_rows == 1


def test_a_null_in_a_required_column_is_refused_from_a_dataframe_too(spark, make_table):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("need", pa.string(), nullable=False)])
    table = make_table(schema, key=["id"])
    for sql in ("SELECT 1L AS id", "SELECT 1L AS id, CAST(NULL AS STRING) AS need"):
        with nothing_written(table), refused(sl.Invalid, column="need"):
            table.upsert(spark.sql(sql))


def test_a_dataframe_that_fails_by_itself_leaves_no_file(spark, items):
    items.upsert([{"id": 9}])
    broken = spark.sql("SELECT id, CAST(raise_error('broken') AS STRING) AS name FROM range(10)")
    with nothing_written(items), pytest.raises(Exception, match="broken"):
        items.upsert(broken)


def test_a_token_makes_a_dataframes_retry_safe(spark, items):
    frame = spark.range(50).selectExpr("id", "'a' AS name")
    first = items.upsert(frame, token="t")
    files = data_files(items)
    again = items.upsert(frame, token="t")
    assert (again.seq, again.rows, again.is_replay) == (first.seq, 50, True)
    assert data_files(items) == files


def test_rows_of_a_dataframe_keep_their_key_in_any_time_zone(spark, make_table):
    """New York has no half past two on that day; a local time has no zone, so it is a key like any other."""
    odd = dt.datetime(2021, 3, 14, 2, 30)
    table = make_table(pa.schema([("at", pa.timestamp("us")), ("v", pa.int64())]), key=["at"], vnodes=16)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        table.upsert(spark.sql("SELECT TIMESTAMP_NTZ'2021-03-14 02:30:00' AS at, 1L AS v"))
        table.compact(full=True)
        table.upsert([{"at": odd, "v": 2}])
        seen_by_spark = table.to_spark().collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    table.compact(full=True)
    assert [(row["at"], row["v"]) for row in seen_by_spark] == [(odd, 2)]
    assert rows_of(table.to_arrow()) == [(odd, 2)]


def test_a_key_of_every_type_is_one_key_to_driver_and_spark_in_any_time_zone(spark, make_table, tmp_path):
    """One key over all the types that a key may have."""
    schema = pa.schema(
        [
            ("b", pa.bool_()), ("i8", pa.int8()), ("i64", pa.int64()), ("s", pa.string()), ("raw", pa.binary()),
            ("d", pa.date32()), ("l", pa.timestamp("us")), ("z", pa.timestamp("us", tz="UTC")), ("v", pa.string()),
        ]
    )  # fmt: skip
    local = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2021, 3, 14, 2, 30)]
    rows = [
        {
            "b": n % 2 == 0,
            "i8": [-128, 0, 127][n % 3],
            "i64": [-(2**63), -1, 2**63 - 1][n % 3],
            "s": ["", "ä\x00", "日本", "a'b"][n % 4],
            "raw": [b"", b"\x00\xff", b"a"][n % 3],
            "d": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)][n % 3],
            "l": local[n % 3],
            "z": local[(n + 1) % 3].replace(tzinfo=dt.UTC),
            "v": "spark",
        }
        for n in range(12)
    ]
    table = make_table(schema, key=schema.names[:-1], vnodes=8)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert table.upsert(as_frame(spark, rows, schema, tmp_path)).rows == 12
        table.compact(full=True)
        table.upsert([{**row, "v": "driver"} for row in rows[:6]])
        table.delete([{name: row[name] for name in schema.names[:-1]} for row in rows[3:8]])
        expected = sorted(["driver"] * 3 + ["spark"] * 4)
        assert sorted(row["v"] for row in table.to_spark(columns=["v"]).collect()) == expected
        compaction.compact(table, full=True, driver_rows=0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(table.to_arrow()["v"].to_pylist()) == expected
    table.upsert([{**row, "v": "last"} for row in rows])
    table.compact(full=True)
    assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist([{**row, "v": "last"} for row in rows], schema))


def test_a_few_rows_from_spark_are_one_file(spark, lake):
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=4)
    table.upsert(spark.range(1000))
    assert len(table.merge().log_files()) == 1


def test_rows_are_shuffled_once_and_sorted_only_by_an_order(spark, items, make_table, monkeypatch):
    plans = []
    run_lane = writing.run_lane

    def note(*given, **more):
        frame = run_lane(*given, **more)
        plans.append(plan_of(frame))
        return frame

    monkeypatch.setattr(writing, "run_lane", note)
    rows = spark.range(100).withColumn("qty", (f.col("id") % 7).cast("int"))
    items.upsert(rows)
    items.upsert(rows, order_by="qty")
    items.delete(spark.range(9))
    make_table().append(rows)
    operators = ("Exchange", "Sort ", "MapInArrow LogLane(", "EvalPython")
    assert [tuple(plan.count(each) for each in operators) for plan in plans] == [
        (1, 0, 1, 0),
        (1, 1, 1, 0),
        (1, 0, 1, 0),
        (0, 0, 1, 0),
    ]


def test_many_rows_from_spark_lie_by_vnode_and_key_so_that_statistics_prune(spark, lake):
    table = lake.create_table("t", "id:int64, raw:binary", key=["id"], vnodes=4)
    noise = [f.sha2(f.concat(f.col("id").cast("string"), f.lit(str(n))), 512).cast("binary") for n in range(80)]
    table.upsert(spark.range(2000).withColumn("raw", f.concat(*noise)))
    files = [file for _, file in table.merge().log_files()]
    assert sorted(list(vnodes_of(file, 4)) for file in files) == [[0], [1], [2], [3]]
    for file in files:
        ids = pq.read_table(table.log.storage.url(f"{table.log.folder}/{file.path}"), columns=["id"])["id"].to_pylist()
        assert ids == sorted(ids)
    assert examine(table.log.storage, deep=True).is_sound
