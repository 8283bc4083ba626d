"""A query from a stranger: read, and rewritten so that it names nothing but the lake's tables."""

import re

import pyarrow as pa
import pytest

import queries
import strandline as sl
from strandline.engines.duck import Duck
from strandline.query.guard import guard_query
from strandline.storage.local import LocalStorage
from support import ITEMS, files_below, refused

both = queries.both


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT count(*) AS n FROM items", [{"n": 3}]),
        ("select sum(qty) as n from ITEMS", [{"n": 4}]),
        ("WITH x AS (SELECT * FROM items WHERE id > 1) SELECT count(*) AS n FROM x", [{"n": 2}]),
        ("SELECT (SELECT max(id) FROM owners) AS n", [{"n": 2}]),
        ("SELECT id AS n FROM items WHERE id IN (SELECT id FROM owners) ORDER BY n", [{"n": 1}, {"n": 2}]),
        ("SELECT n FROM (VALUES (1), (2)) t(n) ORDER BY n", [{"n": 1}, {"n": 2}]),
        ("SELECT 1 AS n UNION ALL SELECT count(*) FROM items ORDER BY n", [{"n": 1}, {"n": 3}]),
        ("SELECT range AS n FROM range(2)", [{"n": 0}, {"n": 1}]),
        ("FROM items SELECT max(id) AS n", [{"n": 3}]),
        ("SELECT count(*) AS n FROM items -- a comment; with a semicolon", [{"n": 3}]),
        ("SELECT count(*) AS n FROM items;", [{"n": 3}]),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT max(n) AS n FROM r",
            [{"n": 3}],
        ),
    ],
)  # fmt: skip
def test_a_query_reads(filled, statement, expected):
    assert filled.sql(statement).to_pylist() == expected


REFUSED = [
    "", "   ", ";", "not sql", "SELECT", "SELECT * FROM items; SELECT 1", "SELECT 1; DROP TABLE x",
    "INSERT INTO items VALUES (9, 'x', 1)", "UPDATE items SET name = 'x'", "DELETE FROM items", "DROP TABLE items",
    "TRUNCATE items", "CREATE TABLE x AS SELECT 1", "CREATE VIEW x AS SELECT 1", "ALTER TABLE items ADD COLUMN x INT",
    "WITH x AS (DELETE FROM items RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO items VALUES (9,'x',1) RETURNING *) SELECT * FROM x",
    "WITH x AS (UPDATE items SET qty = 0 RETURNING *) SELECT * FROM x",
    "SELECT * FROM (WITH x AS (DELETE FROM items RETURNING *) SELECT * FROM x)",
    "SELECT (WITH x AS (DELETE FROM items RETURNING *) SELECT count(*) FROM x)",
    "COPY items TO '/tmp/stolen.csv'", "COPY (SELECT 1) TO '/tmp/stolen.csv'", "EXPORT DATABASE '/tmp/stolen'",
    "ATTACH '/tmp/x.db'", "ATTACH ':memory:' AS m", "USE memory", "INSTALL httpfs", "LOAD httpfs",
    "SET memory_limit = '1GB'", "RESET memory_limit", "SET enable_external_access = true", "PRAGMA version",
    "PRAGMA database_list", "CALL pragma_version()", "CHECKPOINT", "VACUUM", "BEGIN", "COMMIT", "ROLLBACK",
    "EXPLAIN ANALYZE DELETE FROM items", "PREPARE x AS SELECT 1", "EXECUTE x", "CREATE MACRO f() AS 1",
    "CREATE SECRET (TYPE s3)", "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_parquet('/tmp/x.parquet')", "SELECT * FROM '/etc/passwd'", "SELECT * FROM '/tmp/x.parquet'",
    "SELECT * FROM glob('/*')", "SELECT * FROM read_blob('/etc/passwd')", "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_tables()", "SELECT * FROM information_schema.views",
    "SELECT * FROM pg_catalog.pg_tables", "SELECT * FROM main.items", "SELECT * FROM memory.main.items",
    "SELECT * FROM system.information_schema.tables", "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('items')", "SELECT * FROM parquet_metadata('/tmp/x')", "SELECT * FROM sniff_csv('/x')",
    "SELECT * FROM items WHERE id IN (SELECT 1 FROM read_text('/etc/passwd'))",
    "SELECT * FROM items, LATERAL (SELECT * FROM read_text('/etc/passwd'))",
    "SELECT * FROM pragma_table_info('items')", "SELECT * FROM nope", "SELECT nope FROM items",
    "SELECT * FROM pg_tables", "SELECT * FROM duckdb_tables", "SELECT * FROM sqlite_master", "SHOW DATABASES",
    "SHOW ALL TABLES", "SELECT CAST('x' AS INTEGER)", "SELECT error('stop')", "SELECT id FROM items GROUP BY name",
    "SELECT * FROM pg_tables, (WITH pg_tables AS (SELECT 1) SELECT * FROM pg_tables) x",
    "SELECT * FROM _fold_1, (WITH _fold_1 AS (SELECT 1) SELECT * FROM _fold_1) x",
    "SELECT * FROM '/etc/passwd', (WITH \"/etc/passwd\" AS (SELECT 1) SELECT 1) x",
    "SELECT current_setting('secret_directory') FROM nope",
]  # fmt: skip


@pytest.mark.parametrize("statement", REFUSED)
def test_a_statement_that_is_not_one_plain_select_is_refused(filled, statement):
    files = files_below(filled.storage.uri)
    with pytest.raises(sl.Invalid):
        filled.sql(statement)
    assert files_below(filled.storage.uri) == files
    assert filled.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("statement", [None, 5, b"SELECT 1", ["SELECT 1"]])
def test_a_query_is_a_text(filled, statement):
    with refused(sl.Invalid):
        filled.sql(statement)


def test_files_of_the_lake_itself_are_not_a_way_around_the_tables(filled, items):
    path = items.log.storage.url(f"{items.log.folder}/{items.merge().log_files()[0][1].path}")
    for source in (f"'{path}'", f"read_parquet('{path}')", f"parquet_scan(['{path}'])"):
        with pytest.raises(sl.Invalid):
            filled.sql(f"SELECT * FROM {source}")
    sneaky = f'SELECT * FROM \'{path}\', (WITH "{path}" AS (SELECT 1) SELECT * FROM "{path}") x'
    with pytest.raises(sl.Invalid):
        filled.sql(sneaky)


def test_an_unknown_table_is_named(filled):
    with refused(sl.NotFound, table="nope"):
        filled.sql("SELECT * FROM items JOIN nope USING (id)")


def test_python_variables_are_not_tables(filled):
    frame = pa.table({"x": [1]})  # noqa: F841 - DuckDB would find it by name
    with refused(sl.NotFound, table="frame"):
        filled.sql("SELECT * FROM frame")


def test_describing_a_table_shows_its_columns(filled):
    assert filled.sql("DESCRIBE items")["column_name"].to_pylist() == ITEMS.names


def test_an_error_names_what_the_query_names(both):
    lake, _ = both
    with pytest.raises(sl.Invalid, match='"nope" not found') as caught:
        lake.sql("WITH x AS (SELECT id FROM people) SELECT nope FROM x")
    assert '"id"' in str(caught.value)
    with pytest.raises(sl.Invalid, match='uplicate alias "people"'):
        lake.sql("SELECT * FROM people, people")


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("EXPLAIN SELECT 1", "plan"), ("PRAGMA version", "DESCRIBE"), ("SET threads = 1", "Settings"),
        ("PIVOT people ON town", "IN"), ("INSERT INTO people VALUES (1)", "upsert"),
        ("DROP TABLE people", "table drop"),
        ("SELECT 1; DELETE FROM people", "upsert"), ("SHOW ALL TABLES", "SHOW TABLES"), ("BEGIN", None),
    ],
)  # fmt: skip
def test_a_statement_that_is_no_select_is_refused_with_the_way_to_go(both, statement, word):
    with pytest.raises(sl.Invalid) as caught:
        both[0].sql(statement)
    assert (word is None and caught.value.hint is None) or word in caught.value.hint


@pytest.fixture
def duck(tmp_path):
    return Duck(LocalStorage(str(tmp_path)))


def test_every_name_of_a_query_is_replaced_by_one_that_nobody_can_guess(duck):
    text = "WITH mine AS (SELECT id FROM items) SELECT mine.id, i.name FROM mine JOIN items i USING (id)"
    first, again = guard_query(duck, text, ["items", "owners"]), guard_query(duck, text, ["items", "owners"])
    assert [read.table for read in first.views] == ["items"]
    assert set(re.findall(r"(?:FROM|JOIN) \(?(\w+)", first.sql)) == set(first.names)
    assert first.sql != again.sql
    for new, said in first.names.items():
        assert first.unmask(f"no column in {new}") == f"no column in {said}"


def test_a_with_hides_a_table_of_its_name(duck):
    found = guard_query(duck, "WITH items AS (SELECT 1 AS one) SELECT one FROM items", ["items"])
    assert not found.views


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT * FROM nowhere", sl.NotFound),
        ("SELECT * FROM main.items", sl.StrandlineError),
        ("SELECT * FROM 'a.parquet'", sl.StrandlineError),
        ("SELECT * FROM read_csv('a')", sl.Invalid),
        ("SELECT getenv('HOME')", sl.Invalid),
        ("SELECT 1; SELECT 2", sl.Invalid),
        ("DELETE FROM items", sl.Invalid),
        ("", sl.Invalid),
        (None, sl.Invalid),
    ],
    ids=repr,
)
def test_what_leads_out_of_the_lake_is_refused_before_it_runs(duck, statement, kind):
    with pytest.raises(kind):
        guard_query(duck, statement, ["items"])


def test_time_travel_of_other_engines_is_answered_with_our_words(lake: sl.Lake) -> None:
    lake.create_table("t", "id:int64", key=["id"])
    with pytest.raises(sl.Invalid) as caught:
        lake.sql("SELECT * FROM t FOR VERSION AS OF 1")
    assert "AT (VERSION => 1)" in str(caught.value.hint)


def test_a_table_whose_name_is_a_word_of_sql_is_to_be_quoted(lake: sl.Lake) -> None:
    lake.create_table("semi", pa.schema([("id", pa.int64())]), key=["id"])
    with pytest.raises(sl.Invalid) as caught:
        lake.sql("SELECT * FROM semi")
    assert '"semi"' in (caught.value.hint or "")
    assert lake.sql('SELECT * FROM "semi"').num_rows == 0
    with pytest.raises(sl.Invalid) as caught:
        lake.sql("SELCT 1")
    assert "the word before it" in (caught.value.hint or "")
    lake.create_table("plain", pa.schema([("id", pa.int64())]), key=["id"])
    with pytest.raises(sl.Invalid) as caught:
        lake.sql("SELECT count(*) form plain")
    assert "the word before it" in (caught.value.hint or "")
