"""SQL over a lake: right over several tables at once, and safe to take from strangers."""

import threading

import pyarrow as pa
import pytest

import strandline as sl
from support import ITEMS, files_below, refused

OWNERS = pa.schema([("id", pa.int64()), ("owner", pa.string())])


@pytest.fixture
def owners(lake):
    return lake.create_table("owners", OWNERS, key=["id"], vnodes=2)


@pytest.fixture
def filled(lake, items, owners):
    items.upsert([{"id": 1, "name": "a", "qty": 1}, {"id": 2, "name": "b", "qty": 2}])
    items.compact(full=True)
    items.upsert([{"id": 2, "name": "B", "qty": 3}, {"id": 3, "name": "c", "qty": None}])
    owners.upsert([{"id": 1, "owner": "x"}, {"id": 2, "owner": "y"}])
    return lake


JOIN = "SELECT id, name, owner FROM items JOIN owners USING (id) ORDER BY id"


def test_two_tables_with_a_log_each_are_joined(filled):
    assert filled.sql(JOIN).to_pylist() == [
        {"id": 1, "name": "a", "owner": "x"},
        {"id": 2, "name": "B", "owner": "y"},
    ]


def test_a_join_sees_the_newest_rows_of_each_table_every_time(lake, items, owners):
    """Each statement refreshes the folds of all its tables before it looks at any."""
    for at in range(4):
        items.upsert([{"id": at, "name": f"n{at}"}, {"id": 100, "name": f"n{at}"}])
        owners.upsert([{"id": at, "owner": f"o{at}"}, {"id": 100, "owner": f"o{at}"}])
        found = {row["id"]: (row["name"], row["owner"]) for row in lake.sql(JOIN).to_pylist()}
        assert found == {n: (f"n{n}", f"o{n}") for n in range(at + 1)} | {100: (f"n{at}", f"o{at}")}
        if at == 2:
            owners.compact(full=True)


def test_a_table_joined_with_itself_is_at_one_seq(filled):
    rows = filled.sql("SELECT a.id FROM items a JOIN items b ON a.id = b.id AND a.name = b.name")
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


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
    "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_tables()", "SELECT * FROM information_schema.tables",
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


def test_a_query_that_needs_too_much_memory_is_unavailable(tmp_path):
    lake = sl.Lake(tmp_path, cache_bytes=20 << 20)
    lake.create_table("t", ITEMS, key=["id"]).upsert([{"id": 1}])
    with refused(sl.Unavailable):
        lake.sql("SELECT list(range) FROM range(100000000)")
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]


def test_a_failing_query_leaves_the_next_one_unharmed(filled):
    for _ in range(3):
        with refused(sl.Invalid):
            filled.sql("SELECT CAST(name AS INTEGER) FROM items")
        assert filled.sql(JOIN).num_rows == 2


def test_queries_of_many_threads_see_whole_commits(filled, items, owners):
    """Both tables get the same text in turn; a query may see one ahead of the other by one commit, never more."""
    failures = []
    done = threading.Event()

    def ask():
        try:
            while not done.is_set():
                rows = filled.sql("SELECT name, owner FROM items JOIN owners USING (id) WHERE id >= 1000")
                names, texts = set(rows["name"].to_pylist()), set(rows["owner"].to_pylist())
                assert len(names) <= 1
                assert len(texts) <= 1
                assert rows.num_rows in (0, 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for at in range(15):
        items.upsert([{"id": 1000 + n, "name": str(at)} for n in range(3)])
        owners.upsert([{"id": 1000 + n, "owner": str(at)} for n in range(3)])
        if at % 5 == 4:
            items.compact(full=True)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("statement", ["SELECT CAST(name AS INT) FROM items", "SELECT strptime(name, '%d') FROM items"])
def test_a_value_that_looks_like_a_file_is_no_damage(lake, items, statement):
    items.upsert([{"id": 1, "name": "/data/a.parquet", "qty": 1}])
    with refused(sl.Invalid):
        lake.sql(statement)


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_condition_does_not_fail_on_rows_that_are_superseded(lake, items, is_folded):
    items.upsert([{"id": n, "name": "abc", "qty": (1 << 31) - 1} for n in range(9)])
    if is_folded:
        items.compact(full=True)
    items.upsert([{"id": n, "name": "5", "qty": 5} for n in range(8)])
    items.delete([8])
    for condition in ("CAST(name AS INT) = 5", "qty + 1 = 6", "sqrt(6 - qty) = 1", "regexp_matches('5', name)"):
        assert lake.sql(f"SELECT * FROM items WHERE {condition}").num_rows == 8
    assert items.to_arrow(where="qty + 1 = 6").num_rows == 8
    assert items.to_arrow(where="qty * 2 = 10 AND id = 3").num_rows == 1
