"""One meaning of floats in conditions, on every path: NaN equals NaN and is larger than all, -0.0 equals 0.0."""

import math
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.storage.parquet import writer

NAN, INF = math.nan, math.inf
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("i", pa.int32()),
        ("deep", pa.struct([("v", pa.float64()), ("w", pa.list_(pa.float32()))])),
    ]
)
# Each list is one commit, so one file: their bounds hide NaN in every way.
BATCHES = [
    [1.0, 45.0, NAN, None],
    [NAN, NAN],
    [-0.0],
    [0.0],
    [-0.0, 0.0, None],
    [45.0, NAN],
    [45.0],
    [INF, 1.5],
    [-INF, NAN],
    [100.0, None, -3.25],
    [None],
    [7.0, 7.5, 46.0, INF, -INF, NAN, -0.0],
]
NUMBERS = ["45", "0", "-0.0", "-0.0e0", "100", "1", "1.5", "-3.25", "7", "1e3", "-1e3"]


def rows():
    found = []
    for batch in BATCHES:
        start = len(found)
        for at, value in enumerate(batch):
            # The other columns have their own order, so that conditions on two columns mean something.
            other = BATCHES[(start + at) % len(BATCHES)][0]
            found.append(
                {
                    "id": start + at,
                    "x": value,
                    "f": other,
                    "i": at - 1,
                    "deep": {"v": value, "w": [value, other]},
                }
            )
    return found


def fill(table, is_folded):
    every, start = rows(), 0
    for number, batch in enumerate(BATCHES):
        table.upsert(every[start : start + len(batch)])
        start += len(batch)
        if is_folded and number == len(BATCHES) // 2:
            table.compact(full=True)
    return table


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """The same rows in the log alone, folded in part, folded whole, and in files with bounds as they once were."""
    made = sl.Lake(tmp_path_factory.mktemp("floats") / "lake")
    for name in ("plain", "part", "whole"):
        table = fill(made.create_table(name, SCHEMA, key=["id"], vnodes=2), name != "plain")
        if name == "whole":
            table.compact(full=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "bounded_columns", lambda schema: True)
        fill(made.create_table("old", SCHEMA, key=["id"], vnodes=2), True)
    return made


# --- an oracle --------------------------------------------------------------------------------------------------


def order(value):
    return (1, 0.0) if math.isnan(value) else (0, value + 0.0)


COMPARE = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
}


def value_of(term, row):
    """A term's value as a 64-bit float; None for null."""
    if isinstance(term, str):
        return float(term) if term in NUMBERS else (None if row[term] is None else float(row[term]))
    name, inner = term
    value = value_of(inner, row)
    return None if value is None else -value if name == "-" else abs(value)


def text_of(term):
    if isinstance(term, str):
        return term
    return f"-({text_of(term[1])})" if term[0] == "-" else f"abs({text_of(term[1])})"


def compared(op, left, right):
    return None if left is None or right is None else COMPARE[op](order(left), order(right))


def both(found):
    return False if False in found else None if None in found else True


def either(found):
    return True if True in found else None if None in found else False


def truth(tree, row):
    kind, *parts = tree
    if kind == "compare":
        op, left, right = parts
        return compared(op, value_of(left, row), value_of(right, row))
    if kind == "between":
        value, low, high = (value_of(part, row) for part in parts)
        return both([compared(">=", value, low), compared("<=", value, high)])
    if kind == "in":
        value = value_of(parts[0], row)
        return either([compared("=", value, float(each)) for each in parts[1]])
    if kind == "null":
        return value_of(parts[0], row) is None
    found = [truth(part, row) for part in parts]
    if kind == "not":
        return None if found[0] is None else not found[0]
    return both(found) if kind == "and" else either(found)


def sql(tree):
    kind, *parts = tree
    if kind == "compare":
        return f"{text_of(parts[1])} {parts[0]} {text_of(parts[2])}"
    if kind == "between":
        return f"{text_of(parts[0])} BETWEEN {text_of(parts[1])} AND {text_of(parts[2])}"
    if kind == "in":
        return f"{text_of(parts[0])} IN ({', '.join(parts[1])})"
    if kind == "null":
        return f"{text_of(parts[0])} IS NULL"
    if kind == "not":
        return f"NOT ({sql(parts[0])})"
    return f" {kind.upper()} ".join(f"({sql(part)})" for part in parts)


columns = st.sampled_from(["x", "x", "f", "i"])
terms = st.one_of(columns, st.tuples(st.sampled_from(["-", "abs"]), st.sampled_from(["x", "f"])))
numbers = st.sampled_from(NUMBERS)
leaves = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(list(COMPARE)), terms, st.one_of(numbers, columns)),
    st.tuples(st.just("compare"), st.sampled_from(list(COMPARE)), numbers, terms),
    st.tuples(st.just("between"), terms, numbers, numbers),
    st.tuples(st.just("in"), st.sampled_from(["x", "f"]), st.lists(numbers, min_size=1, max_size=14)),
    st.tuples(st.just("null"), columns),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=4,
)


def expected(tree):
    return [row["id"] for row in rows() if truth(tree, row) is True]


def ids(found):
    return sorted(found.column("id").to_pylist())


@settings(max_examples=50)
@given(tree=trees)
def test_a_condition_means_the_same_wherever_rows_lie(lake, tree):
    where, wanted = sql(tree), expected(tree)
    for name in lake.tables():
        assert ids(lake.table(name).to_arrow(where=where, columns=["id"])) == wanted, name
        if name != "old":
            assert ids(lake.sql(f"SELECT id FROM {name} WHERE {where}")) == wanted, name


@settings(max_examples=12)
@given(op=st.sampled_from(list(COMPARE)), number=numbers)
def test_floats_inside_structs_and_lists_are_compared_alike_in_sql(lake, op, number):
    for column, inner in (("deep.v", 0), ("deep.w[1]", 0), ("deep.w[2]", 1)):
        wanted = [r["id"] for r in rows() if compared(op, r["deep"]["w"][inner], float(number)) is True]
        for name in ("plain", "part", "whole"):
            assert ids(lake.sql(f"SELECT id FROM {name} WHERE {column} {op} {number}")) == wanted, (name, column)


# What statistics, dictionaries and hashes get wrong.
CHOSEN = [
    ("compare", "<=", "x", "45"),
    ("compare", ">", "x", "45"),
    ("compare", "<>", "f", "45"),
    ("compare", "=", "x", "0"),
    ("compare", "=", "f", "-0.0e0"),
    ("compare", ">=", "f", "x"),
    ("between", "x", "0", "45"),
    ("in", "x", ["0", *(str(number) for number in NUMBERS[4:])]),
    ("in", "f", [*["-0.0e0"], *NUMBERS[4:], *NUMBERS[4:]]),
    ("not", ("compare", "<", "x", "100")),
]


def chosen_ids(frames):
    """The ids of each frame, by one job."""
    marked = [frame.selectExpr("id", f"{number} AS number") for number, frame in enumerate(frames)]
    found = reduce(lambda a, b: a.unionAll(b), marked).toArrow().to_pylist()
    return [sorted(row["id"] for row in found if row["number"] == number) for number in range(len(frames))]


def test_spark_means_the_same(spark, lake):
    wanted = [expected(tree) for tree in CHOSEN]
    for name in ("part", "old"):
        assert chosen_ids([lake.table(name).to_spark(where=sql(tree)) for tree in CHOSEN]) == wanted, name


def test_a_frame_that_a_user_filters_keeps_its_nan(spark, lake):
    frame = lake.table("part").to_spark()
    assert chosen_ids([frame.where(sql(tree)) for tree in CHOSEN[:4]]) == [expected(tree) for tree in CHOSEN[:4]]


def test_sinks_and_exports_choose_the_same_rows(lake, tmp_path):
    for number, tree in enumerate(CHOSEN):
        lake.sink(f"s{number}", "part", to=sl.ParquetSink(str(tmp_path / f"s{number}")), where=sql(tree), deletes=False)
        lake.table("part").export(tmp_path / f"e{number}", where=sql(tree), columns=["id"])
    report = lake.tick().to_dict()
    lake.declared.clear()
    assert [sink["error"] for sink in report["consumers"] if sink["destination"] != "baseline"] == [None] * len(CHOSEN)
    for number, tree in enumerate(CHOSEN):
        for place in (f"s{number}", f"e{number}"):
            files = sorted((tmp_path / place).rglob("*.parquet"))
            found = sorted(each for file in files for each in pq.read_table(file, columns=["id"]).column(0).to_pylist())
            assert found == expected(tree), (place, sql(tree))


def test_a_file_has_bounds_for_everything_but_floats(lake):
    table = lake.table("whole")
    kinds = {"DOUBLE": 0, "FLOAT": 0}
    for file in table.baseline.refresh().files():
        footer = pq.read_metadata(table.log.storage.url(f"{table.baseline.folder}/{file.path}"))
        assert not {"x", "f"} & {*file.stats["minValues"], *file.stats["maxValues"]}
        assert {"id", "i"} <= set(file.stats["minValues"])
        for column in (footer.row_group(0).column(at) for at in range(footer.num_columns)):
            assert column.is_stats_set == (column.physical_type not in kinds), column.path_in_schema


def test_the_rows_come_back_bit_by_bit(lake):
    for name in ("plain", "part", "whole"):
        found = {row["id"]: row for row in lake.table(name).to_arrow().to_pylist()}
        for row in rows():
            for column, kind in (("x", np.float64), ("f", np.float32)):
                value = found[row["id"]][column]
                assert (value is None) == (row[column] is None)
                if value is not None and not math.isnan(value):
                    assert kind(value).tobytes() == kind(row[column]).tobytes()
                assert value is None or math.isnan(value) == math.isnan(row[column])
