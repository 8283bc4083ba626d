"""One scan over files of several schemas, as DuckDB reads it; names and types in the words of DuckDB and Spark."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.engines import scan
from strandline.engines.scan import ScanFile, by_schema, duck_scan
from strandline.model.types import JSON
from support import refused

OLD = pa.schema([("id", pa.int32()), ("gone", pa.string())])
NEW = pa.schema([("id", pa.int64()), ('a "b"', pa.string())])


@pytest.mark.parametrize(
    ("kind", "duck", "spark", "dtype"),
    [
        (pa.int8(), "TINYINT", "tinyint", "tinyint"),
        (pa.timestamp("us", tz="UTC"), "TIMESTAMPTZ", "timestamp_ltz", "timestamp"),
        (pa.timestamp("us"), "TIMESTAMP", "timestamp_ntz", "timestamp_ntz"),
        (pa.decimal128(9, 2), "DECIMAL(9,2)", "decimal(9,2)", "decimal(9,2)"),
        (JSON, "VARCHAR", "string", "string"),
        (pa.list_(pa.int64()), "BIGINT[]", "array<bigint>", "array<bigint>"),
        (pa.map_(pa.string(), pa.bool_()), "MAP(VARCHAR, BOOLEAN)", "map<string, boolean>", "map<string,boolean>"),
        (
            pa.struct([("a b", pa.date32()), ("l", pa.list_(pa.binary()))]),
            'STRUCT("a b" DATE, "l" BLOB[])',
            "struct<`a b`: date, `l`: array<binary>>",
            "struct<a b:date,l:array<binary>>",
        ),
    ],
)
def test_a_type_is_spelled_for_both_engines(kind, duck, spark, dtype):
    assert (scan.duck_type(kind), scan.spark_type(kind), scan.spark_dtype(kind)) == (duck, spark, dtype)
    assert duckdb.sql(f"SELECT CAST(NULL AS {duck}) AS v").columns == ["v"]


def test_names_and_texts_are_quoted():
    assert scan.quoted('a"b') == '"a""b"'
    assert scan.backticked("a`b") == "`a``b`"
    assert scan.literal("it's") == "'it''s'"
    assert scan.listed(["a", "b c"], "x.") == 'x."a", x."b c"'
    assert scan.spark_schema(pa.schema([("a b", pa.int64())])) == "`a b` bigint"


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_duckdb_cannot_read_is_refused(name):
    with refused(sl.Invalid):
        scan.quoted(name)


@pytest.fixture
def files(tmp_path):
    """Two files of an older schema and one of the newest."""
    found = []
    tables = [
        (0, 7, pa.table({"id": [1], "gone": ["x"]}, OLD)),
        (0, 9, pa.table({"id": [2], "gone": ["y"]}, OLD)),
        (1, 12, pa.table({"id": [3], 'a "b"': ["it's"]}, NEW)),
    ]
    for at, (schema_id, number, table) in enumerate(tables):
        path = f"{at}'s.parquet"
        pq.write_table(table, tmp_path / path)
        found.append(ScanFile(str(tmp_path / path), path, schema_id, number, 1))
    return found


def test_files_are_grouped_by_the_schema_that_they_were_written_under(files):
    assert [(id_, len(group)) for id_, group in by_schema(reversed(files))] == [(0, 2), (1, 1)]


def test_a_scan_gives_the_columns_of_the_newest_schema_and_the_number_of_each_file(files):
    sql = duck_scan(files, [OLD, NEW], ["id", 'a "b"'], number_as="_seq")
    relation = duckdb.sql(f"SELECT * FROM ({sql}) ORDER BY id")
    assert relation.fetchall() == [(1, None, 7), (2, None, 9), (3, "it's", 12)]
    assert [str(kind) for kind in relation.types] == ["BIGINT", "VARCHAR", "BIGINT"]


def test_a_scan_of_no_files_has_the_columns_and_no_rows():
    relation = duckdb.sql(duck_scan([], [NEW], ["id"], number_as="_seq"))
    assert (relation.columns, relation.fetchall()) == (["id", "_seq"], [])


@pytest.mark.parametrize(
    "numbers",
    [
        [5],
        [5, 6, 7],
        [5, 5, 5],
        [1, 2, 3, 9, 10, 10, 10, 2],
        [at * 3 % 101 for at in range(150)],  # too many runs: a list
    ],
    ids=len,
)
def test_the_number_of_a_file_is_told_however_the_numbers_lie(numbers):
    files = f"(SELECT range AS file_index FROM range({len(numbers)}))"
    sql = f"SELECT {scan._number_sql(numbers)} FROM {files} ORDER BY file_index"
    assert [row[0] for row in duckdb.sql(sql).fetchall()] == numbers
