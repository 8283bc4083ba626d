"""The functions that a query may call: none changes or depends on the session, none makes a huge value."""

import duckdb
import pytest

import strandline as sl
from strandline.query import functions
from support import refused


def test_the_functions_that_are_allowed_are_functions_of_duckdb():
    known = {row[0].lower() for row in duckdb.sql("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()}
    assert known >= functions.TABLE_FUNCTIONS
    assert functions.SCALAR_FUNCTIONS - known <= {"->"}


def test_no_allowed_function_is_one_that_changes_or_depends_on_the_session():
    found = duckdb.sql(
        "SELECT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'window')"
        " GROUP BY function_name HAVING bool_or(stability <> 'CONSISTENT')"
    ).fetchall()
    clock_and_chance = {
        "random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "now", "today", "current_date", "get_current_time",
        "get_current_timestamp", "transaction_timestamp",
    }  # fmt: skip
    assert {name for (name,) in found} & functions.SCALAR_FUNCTIONS <= clock_and_chance


@pytest.fixture
def filled(lake, items):
    items.upsert([{"id": n, "name": f"n{n}", "qty": n} for n in range(10)])
    return lake


ONE_VALUE = [
    "SELECT range(200000000)",
    "SELECT len(generate_series(1, 200000000, 2))",
    "SELECT repeat('a', 1000000000::BIGINT)",
    "SELECT x.s.repeat(1_000_000_000) FROM (SELECT 'a' AS s) AS x",
    "SELECT repeat([1, 2], 1000000000)",
    "SELECT lpad('a', 1000000000, 'x') || rpad('a', 1000000000, 'x')",
    "SELECT list_resize([1], 100000000), array_resize(['a'], 100000000, 'b')",
    "SELECT printf('%1000000000d', 1)",
    "SELECT format('{:1000000000d}', 1)",
    "SELECT bitstring('1', 2000000000)",
]


@pytest.mark.parametrize("statement", ONE_VALUE)
def test_a_constant_does_not_make_a_huge_value(filled, statement):
    with pytest.raises(sl.Invalid, match="characters or elements"):
        filled.sql(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT len(range(20240101, 20241231)), len(repeat('a', 1000000)), lpad('a', 3, 'x'), printf('%05d', 1)",
        "SELECT len(range(DATE '2020-01-01', DATE '2020-02-01', INTERVAL 1 DAY))",
        "SELECT count(*) FROM range(5000000)",
        "SELECT len(range(5, -5, -1)), range(NULL), repeat(NULL, 2), range(0), list_resize([1], 2)",
        "SELECT row_number() OVER (PARTITION BY replace(s, '-', '') ORDER BY lpad(s, 3, '0')) FROM (SELECT 'a' AS s)",
        f"SELECT {'replace(' * 20}'a'{', chr(97), chr(98))' * 20}",
    ],
)
def test_ordinary_sizes_are_no_hindrance(filled, statement):
    assert filled.sql(statement).num_rows == 1


def constant(text, kind):
    return {"expression": {"class": "CONSTANT", "literal": {"kind": kind, "text": text}}}


def number(value):
    return constant(str(value), "INTEGER")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("repeat", [constant("x", "STRING"), number(10**12)]),
        ("range", [number(10**12)]),
        ("generate_series", [number(0), number(10**12), number(2)]),
        ("range", [number(-(10**12)), number(0)]),
        ("printf", [constant("%1000000000d", "STRING"), number(1)]),
        ("lpad", [constant("x", "STRING"), {"expression": {"class": "CAST", "child": number(10**12)["expression"]}}]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_constants_that_ask_for_a_huge_value_are_refused(name, arguments):
    with refused(sl.Invalid):
        functions.check_size(name, arguments)


def test_sane_constants_columns_and_other_functions_pass():
    column = {"expression": {"class": "COLUMN_REF"}}
    functions.check_size("repeat", [constant("x", "STRING"), number(1000)])
    functions.check_size("range", [number(0), column])
    functions.check_size("range", [number(10**12), number(0), number(0)])
    functions.check_size("abs", [number(10**12)])
    assert {"abs", "sum", "lower"} <= functions.SCALAR_FUNCTIONS and "getenv" not in functions.SCALAR_FUNCTIONS
