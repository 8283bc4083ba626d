"""A query ends: at its limits, and on Ctrl-C; and what cannot be run is refused, never a crash."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from unittest import mock

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model import sql_limits
from support import ITEMS, refused

ENDLESS = [
    "SELECT count(*) FROM range(1000000000000) t(x) WHERE x % 7 = 3",
    "SELECT count(*) FROM items a, items b, items c, items d, items e, range(100000000) WHERE a.id + range = -1",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT count(*) FROM r",
    "SELECT x FROM range(1000000000000) t(x) ORDER BY x % 1000 LIMIT 1",
    "SELECT sum(length(repeat('x', 1000))) FROM range(1000000000000)",
]  # fmt: skip


@pytest.fixture
def filled(lake, items):
    items.upsert([{"id": n, "name": f"n{n}", "qty": n} for n in range(10)])
    return lake


@pytest.mark.parametrize("statement", ENDLESS)
def test_an_endless_query_ends_at_its_time_limit(filled, statement):
    with refused(sl.Unavailable, timeout_s=0.3):
        filled.sql(statement, timeout_s=0.3)
    assert filled.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 10}]


def test_a_function_that_does_not_listen_is_left_behind(filled):
    """A single call of a function cannot be interrupted; the caller goes on all the same."""
    with refused(sl.Unavailable, timeout_s=0.3):
        filled.sql("SELECT levenshtein(repeat('ab', 40000), repeat('ba', 40000))", timeout_s=0.3)
    assert filled.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 10}]


def test_a_limit_of_one_query_does_not_stop_another_of_the_same_lake(filled):
    found = []
    other = threading.Thread(
        target=lambda: found.append(filled.sql("SELECT count(*) AS n FROM range(400000000) t(x) WHERE x % 7 <> 8"))
    )
    other.start()
    for _ in range(5):
        with refused(sl.Unavailable):
            filled.sql(ENDLESS[0], timeout_s=0.05)
    other.join()
    assert found[0].to_pylist() == [{"n": 400_000_000}]


def test_a_result_with_too_many_rows_is_refused_while_it_streams(filled):
    with refused(sl.Invalid, max_rows=1000):
        filled.sql("SELECT * FROM range(1000000000000)", max_rows=1000)
    assert filled.sql("SELECT * FROM range(1000)", max_rows=1000).num_rows == 1000
    with refused(sl.Invalid, max_rows=999):
        filled.sql("SELECT * FROM range(1000)", max_rows=999)


def test_a_result_with_too_many_bytes_is_refused_while_it_streams(filled):
    with refused(sl.Invalid, max_bytes=1 << 20):
        filled.sql("SELECT range, 'x' || range AS t FROM range(1000000000000)", max_bytes=1 << 20)
    size = filled.sql("SELECT * FROM range(1000)").nbytes
    assert filled.sql("SELECT * FROM range(1000)", max_bytes=size).num_rows == 1000
    with refused(sl.Invalid, max_bytes=size - 1):
        filled.sql("SELECT * FROM range(1000)", max_bytes=size - 1)


def test_without_a_limit_the_cache_bounds_the_result(tmp_path):
    lake = sl.Lake(tmp_path, cache_bytes=64 << 20)
    lake.create_table("t", ITEMS, key=["id"])
    with refused(sl.Invalid, max_bytes=16 << 20):
        lake.sql("SELECT * FROM range(1000000000000)")
    assert lake.sql("SELECT * FROM range(4000000)", max_bytes=64 << 20).num_rows == 4_000_000


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"max_rows": -1},
        {"max_rows": 1.5},
        {"max_bytes": True},
        {"timeout_s": float("nan")},
        {"max_bytes": 1 << 70},
    ],
)
def test_a_limit_is_a_number_above_zero(filled, limits):
    with refused(sl.Invalid):
        filled.sql("SELECT 1", **limits)


GROWING = [
    "SELECT sum(length(s)) FROM (SELECT string_agg(repeat('x', 1000) || range) AS s FROM range(10000000))",
    "SELECT list_reduce(range(40)::VARCHAR[], lambda a, b: a || a)",
    "SELECT list_transform(range(500000), lambda x: repeat('a', 1000))",
]


LARGE = [
    "SELECT range, range * 2, 'text ' || range FROM range(1000000000)",
    "SELECT repeat('x', 20000) || range FROM range(10000000)",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT range FROM range(1000000000) ORDER BY hash(range)",
]


@pytest.mark.parametrize(("statements", "most_mib"), [(LARGE, 600), (GROWING, 1500)], ids=["rows", "values"])
def test_the_memory_of_a_large_result_is_bounded(tmp_path, statements, most_mib):
    """The whole process stays near the lake's cache_bytes; what functions make may take one step more."""
    code = f"""
        import os, resource
        import strandline as sl
        lake = sl.Lake({str(tmp_path)!r}, cache_bytes=256 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for statement in {statements!r}:
            try:
                lake.sql(statement, timeout_s=15)
                print("no refusal", statement[:80])
            except (sl.Invalid, sl.Unavailable):
                pass
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, flush=True)
        os._exit(0)  # not waiting for a function call that nobody can stop
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most_mib, "MiB above what Python and DuckDB take"


MANY = {
    "brackets": "'SELECT ' + '(' * 100000 + '1' + ')' * 100000",
    "open brackets": "'SELECT ' + '(' * 5000",
    "terms": "'SELECT 1' + '+1' * 100000",
    "a thousand terms": "'SELECT 1' + '+1' * 990",
    "and": "'SELECT 1' + ' AND 1' * 100000",
    "subqueries": "'SELECT * FROM (' * 5000 + 'SELECT 1' + ')' * 5000",
    "scalar subqueries": "'SELECT (' * 3000 + 'SELECT 1' + ')' * 3000",
    "case": "'SELECT ' + 'CASE WHEN 1=1 THEN ' * 5000 + '1' + ' END' * 5000",
    "case in a row": "'SELECT CASE' + ' WHEN 1=2 THEN 3' * 40000 + ' END'",
    "unions": "'SELECT 1' + ' UNION ALL SELECT 1' * 20000",
    "mixed unions": "'SELECT 1' + ' UNION ALL SELECT 1 UNION SELECT 2' * 2000",
    "a long list": "'SELECT 1 WHERE 1 IN (' + '1,' * 100000 + '1)'",
    "lists in lists": "'SELECT ' + '[' * 20000 + '1' + ']' * 20000",
    "structs": "'SELECT ' + '{a:' * 5000 + '1' + '}' * 5000",
    "not": "'SELECT ' + 'NOT ' * 5000 + 'true'",
    "minus": "'SELECT ' + '- ' * 5000 + '1'",
    "casts": "'SELECT 1' + '::INT' * 5000",
    "names": "'SELECT items' + '.a' * 20000 + ' FROM items'",
    "joins": "'SELECT 1 FROM items' + ' CROSS JOIN items' * 5000",
    "joined by commas": "'SELECT 1 FROM items' + ',items' * 400000",
    "fewer commas": "'SELECT 1 FROM items' + ',items' * 9000",
    "names of a WITH": "'WITH a0 AS (SELECT 1)'"
    " + ''.join(f',a{i} AS (FROM a{i-1})' for i in range(1, 2300)) + ' FROM a2299'",
    "WITH in WITH": "'WITH a AS (' * 2000 + 'SELECT 1' + ') FROM a' * 2000",
    "wrong WITH in WITH": "'WITH a AS (' * 50 + ')' * 50",
    "wrong WITH in a few": "'WITH a AS (' * 3 + 'SELECT ' + '1,' * 5000 + 'x y z' + ')' * 3",
    "a WITH that doubles": "'WITH a0 AS (SELECT 1)'"
    " + ''.join(f',a{i} AS (FROM a{i-1} a, a{i-1} b)' for i in range(1, 40)) + ' FROM a39'",
    "functions": "'SELECT ' + 'abs(' * 10000 + '1' + ')' * 10000",
    "lambdas": "'SELECT ' + 'list_transform([1], lambda x: ' * 3000 + '1' + ')' * 3000",
    "types": "'SELECT NULL::INT' + '[]' * 50000",
    "types in types": "'SELECT NULL::' + 'STRUCT(a ' * 20000 + 'INT' + ')' * 20000",
    "pivots": "'FROM items' + ' PIVOT (sum(qty) FOR id IN (1,2))' * 1000",
    "comments": "'/*' * 100000 + 'SELECT 1'",
    "characters": "'SELECT \\'' + 'x' * 2000000 + '\\''",
    "half a pair": "'SELECT \\'\\ud800\\''",
    "NUL": "'SELECT \\'a\\0b\\''",
}  # fmt: skip


def test_too_much_of_anything_is_refused_and_the_process_lives(tmp_path):
    code = f"""
        import json, pyarrow as pa, strandline as sl, sys, threading
        lake = sl.Lake({str(tmp_path)!r})
        lake.create_table("items", pa.schema([("id", pa.int64()), ("qty", pa.int64())]), key=["id"])
        for name, statement in json.load(sys.stdin).items():
            try:
                lake.sql(eval(statement), timeout_s=100)
                print(name, "answered", flush=True)
            except sl.Invalid as error:
                print(name, type(error).__name__, len(str(error)) < 2000, flush=True)
            assert lake.sql("SELECT count(*) AS n FROM items").to_pylist() == [{{"n": 0}}]
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, input=json.dumps(MANY), capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines() == [f"{name} Invalid True" for name in MANY], done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1" + " + 1" * 150,
        "SELECT " + "(" * 150 + "1" + ")" * 150,
        "SELECT id FROM items WHERE id IN (" + ", ".join(map(str, range(9000))) + ")",
        "SELECT id FROM items WHERE id = 1" + "".join(f" OR id = {n}" for n in range(2000)),
        "SELECT * FROM (" * 40 + "SELECT 1" + ")" * 40,
        "SELECT 1" + " UNION ALL SELECT 1" * 500,
        "SELECT count(*) FROM items i0" + "".join(f" JOIN items i{n} USING (id)" for n in range(1, 20)),
        "WITH a0 AS (SELECT 1)" + "".join(f", a{n} AS (FROM a{n - 1})" for n in range(1, 100)) + " FROM a99",
        "WITH a AS (WITH b AS (WITH c AS (SELECT 1 n) FROM c) FROM b) FROM a",
        f"SELECT '{'x' * 900_000}'",
        "SELECT 'WITH a AS (' || '((((((' -- (((((",
    ],
)
def test_a_large_query_of_an_honest_size_is_answered(filled, statement):
    assert filled.sql(statement).num_rows > 0


def test_brackets_are_counted_as_duckdb_reads_them():
    """Those in texts, names and comments do not count; the limits see through all of these."""
    deep = "(" * (sql_limits.MOST_NESTED + 1)
    for hidden in (f"'{deep}'", f'"{deep}"', f"$$ {deep} $$", f"1 /* {deep} */", f"1 -- {deep}\n", f"'é{deep}'"):
        assert sql_limits.check_sql_size("the query", f"SELECT {hidden}")
    with refused(sl.Invalid):
        sql_limits.check_sql_size("the query", f"SELECT 'é' /* ' */ {deep}1{')' * len(deep)} /* ' */")


INTERRUPTED = """
    import os, signal, sys, threading
    import pyarrow as pa, strandline as sl
    lake = sl.Lake(sys.argv[1])
    lake.create_table("items", pa.schema([("id", pa.int64())]), key=["id"]).upsert([{"id": 1}])
    lake.sql("SELECT 1")
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        lake.sql(sys.argv[2])
        print("answered")
    except KeyboardInterrupt:
        print("stopped", lake.sql("SELECT count(*) n FROM items").to_pylist(), lake.table("items").to_arrow().num_rows)
"""


DEAF = "SELECT levenshtein(repeat('ab', 50000), repeat('ba', 50000))"


@pytest.mark.parametrize("statement", [ENDLESS[0], *ENDLESS[2:], DEAF])
def test_one_ctrl_c_ends_a_query_and_the_lake_goes_on(tmp_path, statement):
    """In Python, and in one process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path), statement],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "stopped [{'n': 1}] 1\n", done.stderr[-2000:]


@pytest.mark.parametrize("statement", ENDLESS[:3])
def test_one_ctrl_c_ends_a_query_on_the_command_line(tmp_path, statement):
    lake = sl.Lake(tmp_path)
    lake.create_table("items", ITEMS, key=["id"]).upsert([{"id": 1}, {"id": 2}])
    started = tmp_path / "started"
    code = "import sys; from strandline.cli import main; open(sys.argv.pop(1), 'w').close(); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(started), "--lake", str(tmp_path), "query", statement],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not started.exists():
            time.sleep(0.05)
        time.sleep(2)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Stopped" in err
    assert "Traceback" not in err and "nanobind" not in err
    assert lake.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 2}]


def test_a_query_from_another_thread_ends_at_its_limit_too(filled):
    errors = []

    def ask():
        try:
            filled.sql(ENDLESS[0], timeout_s=0.2)
        except sl.StrandlineError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [sl.Unavailable] * 3


def test_a_wide_result_keeps_its_types(filled):
    found = filled.sql("SELECT 1::TINYINT a, 'x' b, NULL c, [1] d, DATE '2020-01-01' e WHERE false")
    assert found.schema.names == ["a", "b", "c", "d", "e"]
    assert found.schema.field("a").type == pa.int8()
    assert found.num_rows == 0


def test_the_command_line_has_the_same_limits(tmp_path, tmp_path_factory):
    lake, spilled = sl.Lake(tmp_path), tmp_path_factory.mktemp("spilled")
    lake.create_table("items", ITEMS, key=["id"]).upsert([{"id": 1}, {"id": 2}])
    deaf = "SELECT levenshtein(repeat('ab', 50000), repeat('ba', 50000))"
    for arguments, kind in (
        ([ENDLESS[0], "--timeout", "1s"], "Unavailable"),
        ([deaf, "--timeout", "1s"], "Unavailable"),
        (["SELECT * FROM items", "--max-rows", "1"], "Invalid"),
        (["SELECT * FROM range(1000000000000)", "--max-bytes", "100000"], "Invalid"),
        (["SELECT 1", "--timeout", "0s"], "Invalid"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "strandline", "--lake", str(tmp_path), "query", "--json", *arguments],
            capture_output=True, text=True, timeout=120, env={**os.environ, "TMPDIR": str(spilled)},
        )  # fmt: skip
        assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (1, kind), done.stderr
        assert (done.stderr, list(spilled.iterdir())) == ("", [])


@pytest.mark.parametrize(
    "where",
    [
        "(" * 20000 + "id = 1" + ")" * 20000, "(" * 150 + "id = 1" + ")" * 150 + " + 1" * 500, "NOT " * 9000 + "true",
        "id = 1" + " + 1" * 100000, "id = 1" + " OR id = 1" * 4000, "id = " + "- " * 9000 + "1",
        "id IN (" + "1, " * 100000 + "1)",
        "coalesce(id, " * 190 + "1" + ")" * 190 + " = 'x'", "((((((", "id = 1 /* ", "CASE WHEN " * 5000 + "true",
    ],
)  # fmt: skip
def test_a_condition_that_is_too_large_is_refused(filled, items, where):
    with refused(sl.Invalid):
        items.to_arrow(where=where)
    assert items.to_arrow(where="id IN (1" + ", 2" * 2000 + ")").num_rows == 2


def test_what_duckdb_makes_of_ctrl_c_is_ctrl_c_again(filled):
    """A read on the main thread ends as a RuntimeError of DuckDB's."""
    interrupted = RuntimeError("Query interrupted")
    with pytest.raises(KeyboardInterrupt), filled.duck.transaction():
        raise RuntimeError("Query interrupted")
    with pytest.raises(KeyboardInterrupt), mock.patch.object(filled.duck, "_begin", side_effect=interrupted):
        filled.duck.run("SELECT 1")
    with pytest.raises(RuntimeError, match="other"), filled.duck.transaction():
        raise RuntimeError("other")
    assert filled.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 10}]
