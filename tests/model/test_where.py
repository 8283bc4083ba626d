"""`where=`: the same rows as an oracle with SQL's three values, on the driver and on Spark, from fewer files."""

import datetime as dt
from contextlib import suppress
from functools import reduce

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import strandline as sl
from support import ITEMS

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("b", pa.bool_()),
        ("f", pa.float64()),
        ("t", pa.timestamp("us", tz="UTC")),
    ]
)
DAY = dt.date(2026, 1, 1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
TEXTS = ["", "a", "ab", "B", "ä", "a'b", "z" * 100, "%", "_", "\\"]


def row(id_):
    """A row that is a function of its id, with every column null now and then."""

    def sometimes(value, share):
        return None if (id_ * 7 + share) % share == 0 else value

    return {
        "id": id_,
        "n": sometimes(id_ % 11 - 5, 4),
        "s": sometimes(TEXTS[id_ % len(TEXTS)], 5),
        "d": sometimes(DAY + dt.timedelta(days=id_ % 9), 3),
        "b": sometimes(id_ % 2 == 0, 6),
        "f": sometimes((id_ % 7) / 2 - 1, 7),
        "t": sometimes(NOON + dt.timedelta(hours=id_ % 5), 8),
    }


IDS = [*range(-10, 40)]


def fill(table):
    """Baseline, later commits that overlap it, and deletes."""
    table.upsert([{**row(id_), "s": "old", "n": 99} for id_ in IDS[:30]])
    table.upsert([row(id_) for id_ in IDS[:20]])
    table.compact(full=True)
    table.upsert([row(id_) for id_ in IDS[15:45]])
    table.upsert([row(id_) for id_ in (500, 501)])
    table.upsert([row(id_) for id_ in IDS[40:]])
    table.delete([500, 501])
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return fill(sl.Lake(tmp_path_factory.mktemp("where")).create_table("t", SCHEMA, key=["id"], vnodes=8))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The same rows in fewer files: Spark plans each file of a union anew."""
    table = sl.Lake(tmp_path_factory.mktemp("small")).create_table("t", SCHEMA, key=["id"], vnodes=1)
    table.upsert([{**row(id_), "n": 99 if id_ > 15 else row(id_)["n"]} for id_ in IDS[:40]])
    table.compact(full=True)
    table.upsert([row(id_) for id_ in [*IDS[25:], 500]])
    table.delete([500])
    return table


# Predicates as (text, function of a row to True, False or None), built from small parts.


def _not(value):
    return None if value is None else not value


def _and(left, right):
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


COMPARE = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _strictly(function):
    return lambda *values: None if any(value is None for value in values) else function(*values)


def _text(value):
    return "'" + value.replace("'", "''") + "'"


LITERALS = {
    "id": st.integers(-12, 45).map(lambda v: (str(v), v)),
    "n": st.integers(-7, 100).map(lambda v: (str(v), v)),
    "s": st.sampled_from([*TEXTS, "old", "zz", "A"]).map(lambda v: (_text(v), v)),
    "d": st.integers(-2, 11).map(lambda v: DAY + dt.timedelta(days=v)).flatmap(
        lambda v: st.sampled_from([(f"DATE '{v}'", v), (f"'{v}'", v), (f"CAST('{v}' AS DATE)", v)])
    ),
    "f": st.integers(-4, 6).map(lambda v: (f"{v / 2}", v / 2)),
    "t": st.integers(-1, 6).map(lambda v: NOON + dt.timedelta(hours=v)).map(
        lambda v: (f"TIMESTAMPTZ '{v:%Y-%m-%d %H:%M:%S}+00'", v)
    ),
}  # fmt: skip


@st.composite
def leaves(draw):
    column = draw(st.sampled_from([*LITERALS, "b"]))
    form = draw(st.sampled_from(["compare", "flipped", "between", "in", "null", "like", "arithmetic", "compare"]))
    if form == "null" or column == "b":
        if column == "b" and draw(st.booleans()):
            return "b", lambda r: r["b"]
        negated = draw(st.booleans())
        text = f"{column} IS {'NOT ' if negated else ''}NULL"
        return text, lambda r: (r[column] is None) != negated
    literals = LITERALS[column]
    text, value = draw(literals)
    op = draw(st.sampled_from(list(COMPARE)))
    compare = _strictly(COMPARE[op])
    if form == "flipped":
        return f"{text} {op} {column}", lambda r: compare(value, r[column])
    if form == "between":
        high_text, high = draw(literals)
        negated = draw(st.booleans())
        within = _strictly(lambda v: (value <= v <= high) != negated)
        return f"{column} {'NOT ' if negated else ''}BETWEEN {text} AND {high_text}", lambda r: within(r[column])
    if form == "in":
        options = [(text, value), *draw(st.lists(literals, max_size=3))]
        with_null, negated = draw(st.booleans()), draw(st.booleans())
        listing = ", ".join([o for o, _ in options] + (["NULL"] if with_null else []))

        def member(r):
            if r[column] is None:
                return None
            if r[column] in [v for _, v in options]:
                return not negated
            return None if with_null else negated

        return f"{column} {'NOT ' if negated else ''}IN ({listing})", member
    if form == "like" and column == "s":
        prefix = _strictly(lambda v: v.startswith("a"))
        return "s LIKE 'a%'", lambda r: prefix(r["s"])
    if form == "arithmetic" and column in ("id", "n"):
        shifted = _strictly(lambda v: COMPARE[op](v * 2 - 3, value))
        return f"{column} * 2 - 3 {op} {text}", lambda r: shifted(r[column])
    return f"{column} {op} {text}", lambda r: compare(r[column], value)


def combined(children):
    return st.one_of(
        children.map(lambda c: (f"NOT ({c[0]})", lambda r: _not(c[1](r)))),
        st.tuples(children, children).map(
            lambda c: (f"({c[0][0]}) AND ({c[1][0]})", lambda r: _and(c[0][1](r), c[1][1](r)))
        ),
        st.tuples(children, children).map(
            lambda c: (f"({c[0][0]}) OR ({c[1][0]})", lambda r: _not(_and(_not(c[0][1](r)), _not(c[1][1](r)))))
        ),
        st.tuples(leaves(), leaves()).map(
            lambda c: (f"{c[0][0]} AND {c[1][0]}", lambda r: _and(c[0][1](r), c[1][1](r)))
        ),
    )


predicates = st.recursive(leaves(), combined, max_leaves=6)


def expected_ids(holds):
    return [id_ for id_ in IDS if holds(row(id_)) is True]


def found_ids(table, text, **read):
    return sorted(table.to_arrow(columns=["id"], where=text, **read)["id"].to_pylist())


@settings(max_examples=250)
@given(predicates)
def test_a_random_predicate_gives_the_oracles_rows(table, predicate):
    text, holds = predicate
    assert found_ids(table, text) == expected_ids(holds)


def ids_on_spark(spark, table, texts):
    """For each text the ids that Spark finds, or the kind of its complaint; one job for all if none complains."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        frames = [
            table.to_spark(columns=["id"], where=text).select(F.lit(at).alias("at"), "id")
            for at, text in enumerate(texts)
        ]
        rows = reduce(lambda a, b: a.unionAll(b), frames).collect()
    except PySparkException as error:
        if len(texts) == 1:
            return {texts[0]: type(error).__name__}
        halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        return ids_on_spark(spark, table, halves[0]) | ids_on_spark(spark, table, halves[1])
    return {text: sorted(row["id"] for row in rows if row["at"] == at) for at, text in enumerate(texts)}


@settings(max_examples=2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(predicates, min_size=8, max_size=8, unique_by=lambda p: p[0]))
def test_random_predicates_give_the_oracles_rows_on_spark(spark, small, chosen):
    found = ids_on_spark(spark, small, [text for text, _ in chosen])
    assert found == {text: expected_ids(holds) for text, holds in chosen}


@settings(max_examples=40)
@given(predicates, st.integers(0, 8))
def test_a_random_predicate_at_a_seq_filters_the_rows_of_that_seq(table, predicate, seq):
    text, holds = predicate
    seq = min(seq, table.head)
    whole = table.to_arrow(at=seq).to_pylist()
    assert found_ids(table, text, at=seq) == sorted(r["id"] for r in whole if holds(r) is True)


@settings(max_examples=25)
@given(predicates)
def test_a_random_predicate_on_versions_and_without_a_key(tmp_path_factory, predicate):
    versioned, plain = _others(tmp_path_factory)
    text, holds = predicate
    for other in (versioned, plain):
        whole = other.to_arrow().to_pylist()
        assert found_ids(other, text) == sorted(r["id"] for r in whole if holds(r) is True)


def _others(factory, kept={}):  # noqa: B006 - made once for all examples
    if not kept:
        lake = sl.Lake(factory.mktemp("others"))
        versioned = kept["v"] = lake.create_table("v", SCHEMA, key=["id"], version="n", vnodes=2)
        plain = kept["p"] = lake.create_table("p", SCHEMA, vnodes=2)
        for start in (0, 10, 20):
            rows = [{**row(id_), "n": (id_ + start) % 6} for id_ in range(start, start + 20)]
            versioned.upsert(rows)
            plain.append([row(id_) for id_ in range(start, start + 10)])
            if start == 10:
                versioned.compact(full=True)
                plain.compact(full=True)
        versioned.delete([3, 25])
    return kept["v"], kept["p"]


@pytest.mark.parametrize("where", ["id = 99999999999999999999", "id = -99999999999999999999", "qty = 5000000000"])
def test_a_number_that_the_column_cannot_hold_matches_nothing(items, where):
    items.upsert([{"id": 1, "qty": 1}])
    assert items.to_arrow(where=where).num_rows == 0


# Where the two engines disagree by themselves: the text must mean one thing.
DELICATE = [
    "s = 'a\\b'", "s LIKE 'a\\b'", "s LIKE 'a\\_b'", "s LIKE 'a_b'", "s LIKE '%\\'", "s = 'it''s'", "s > 'Z'",
    "g = 0.1", "g > 1", "g = 0", "x = 0.1", "x <> 0.1", "x = 0.5", "x < 0.1", "x > 1", "i + 100 > 150", "i * 2 = 200",
    "length(s) = 2", "upper(s) = 'ÄÖ'", "s ILIKE 'äö'", "d + INTERVAL 1 DAY > DATE '2026-01-01'", "d = '2026-1-1'",
    "b", "NOT b", "b = true", "p = 1.5", "p > 1.499", "z = '2026-01-01 12:00:00'", "l = '2026-01-01 12:00:00'",
    "l > d", "CAST(id AS VARCHAR) = '1'", "id = 1.0", "id = 1.5", "i = 300", "id > '3'", "coalesce(s, 'x') = 'x'",
    "abs(i) = 100", "s IN ('a_b', NULL)", "s NOT IN ('a_b', NULL)", "TRY_CAST(s AS INT) = 7",
]  # fmt: skip


@pytest.fixture(scope="module")
def delicate(tmp_path_factory):
    schema = pa.schema(
        [
            ("id", pa.int64()), ("s", pa.string()), ("x", pa.float32()), ("g", pa.float64()), ("d", pa.date32()),
            ("b", pa.bool_()), ("p", pa.decimal128(10, 2)), ("l", pa.timestamp("us")),
            ("z", pa.timestamp("us", tz="UTC")), ("i", pa.int8()),
        ]
    )  # fmt: skip
    table = sl.Lake(tmp_path_factory.mktemp("delicate")).create_table("t", schema, key=["id"], vnodes=1)
    nan, local = float("nan"), NOON.replace(tzinfo=None)
    price = pa.scalar("1.50").cast(pa.decimal128(10, 2)).as_py()
    table.upsert(
        [
            {
                "id": 1,
                "s": "a\\b",
                "x": 0.1,
                "g": 0.1,
                "d": DAY,
                "b": True,
                "p": price,
                "l": local,
                "z": NOON,
                "i": 100,
            },
            {"id": 2, "s": "a_b", "x": nan, "g": nan},
            {"id": 3, "s": "axb", "x": -0.0, "g": -0.0, "b": False, "i": -100},
            {"id": 4, "s": "ÄÖ", "x": float("inf")},
            {"id": 5, "s": "it's"},
            {"id": 6, "s": "", "x": 0.5, "g": 0.0},
            {"id": 7, "s": "7"},
        ]
    )
    return table


def test_a_delicate_expression_means_the_same_on_spark(spark, delicate):
    driver = {}
    for text in DELICATE:
        # What is refused is refused before either engine sees it.
        with suppress(sl.Invalid):
            driver[text] = found_ids(delicate, text)
    assert len(driver) > len(DELICATE) / 2
    on_spark = ids_on_spark(spark, delicate, list(driver))
    assert {text: (ids, on_spark[text]) for text, ids in driver.items() if ids != on_spark[text]} == {}


def test_items_are_filtered_by_columns_that_are_not_asked_for(items):
    items.upsert([{"id": 1, "name": "a", "qty": 1}, {"id": 2, "name": "b", "qty": 2}])
    assert items.to_arrow(columns=["name"], where="QTY = 2").to_pylist() == [{"name": "b"}]
    assert items.to_arrow(columns=["name"], where='"qty" = 2').to_pylist() == [{"name": "b"}]
    assert ITEMS.names == items.to_arrow(where="qty = 2").column_names
