"""Rows that a caller hands in: taken exactly, or refused by row and column with nothing applied."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from support import ITEMS, by_id, nothing_written, refused, rows_of

WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("i8", pa.int8()),
        ("i32", pa.int32()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(7, 2)),
        ("doc", pa.json_()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    ]
)
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
BERLIN = dt.timezone(dt.timedelta(hours=1))

# (column, a value that the column's type does not hold exactly), as Python values.
BAD_VALUES = [
    ("i8", 128), ("i8", -129), ("i8", 1.5), ("i8", "1"), ("i8", True), ("i8", b"1"), ("i8", None.__class__),
    ("i32", 2**31), ("i32", 2**70), ("i32", float("nan")), ("i32", [1]), ("i32", dt.date(2026, 1, 1)),
    ("f32", 1e300), ("f32", "1.5"), ("f64", "x"), ("f64", True), ("f64", 2**1024),
    ("s", 1), ("s", 1.5), ("s", True), ("s", "\ud800"), ("s", b"\xff"), ("s", ["a"]),
    ("b", 5), ("b", "text"), ("b", ["a"]),
    ("flag", 1), ("flag", "true"),
    ("day", "2026-01-01"), ("day", NOON), ("day", 1.5), ("day", 20000),
    ("at", "2026-01-01T00:00:00Z"), ("at", dt.datetime(2026, 1, 1)), ("at", 1.5), ("at", 1_700_000_000),
    ("local", NOON), ("local", "2026-01-01"), ("local", 5),
    ("price", Decimal("1.005")), ("price", Decimal("100000")), ("price", 1.5), ("price", "1.5"),
    ("doc", sl.JsonText("{not json")), ("doc", sl.JsonText("")), ("doc", sl.JsonText("NaN")),
    ("doc", {"x": float("nan")}), ("doc", {"x": NOON}), ("doc", sl.JsonText('"\\ud800"')), ("doc", {"x": "\ud800"}),
    ("doc", sl.JsonText("[" * 100_000)), ("doc", b"\xff"), ("doc", "\ud800"),
    ("tags", "abc"), ("tags", [1]), ("tags", {"a": 1}),
    ("point", [1, 2]), ("point", {"x": "1"}), ("point", {"x": 1, "z": 3}),
]  # fmt: skip


@pytest.fixture
def wide(make_table):
    table = make_table(WIDE, key=["id"], vnodes=2)
    table.upsert([{"id": 0, "s": "there before"}])
    return table


@pytest.mark.parametrize(("column", "value"), BAD_VALUES, ids=lambda v: repr(v)[:25])
def test_a_value_that_a_column_cannot_hold_exactly_is_refused_by_row_and_column(wide, column, value):
    rows = [{"id": 1}, {"id": 2}, {"id": 3, column: value}, {"id": 4}]
    with nothing_written(wide), refused(sl.Invalid, row=2, column=column, table=wide.name):
        wide.upsert(rows)


# The same for Arrow columns: (column, values of which the one at row 1 does not fit).
BAD_ARROW = [
    ("i8", pa.array([1, 300])),
    ("i8", pa.array([1.0, 1.5])),
    ("i8", pa.array([1.0, float("nan")])),
    ("i32", pa.array([1, 2**63], pa.uint64())),
    ("f32", pa.array([0.5, 1e300])),
    ("f64", pa.array([1, 2**53 + 1])),
    ("at", pa.array([0, 1], pa.timestamp("ns", tz="UTC"))),
    ("at", pa.array([0, 2**62], pa.timestamp("s", tz="UTC"))),
    ("day", pa.array([0, 1], pa.date64())),
    ("price", pa.array([Decimal("1.000"), Decimal("1.005")])),
    ("price", pa.array([Decimal("1"), Decimal("1000000")])),
    ("doc", pa.array(["{}", "{"])),
    ("doc", pa.array(["{}", "{"]).dictionary_encode()),
    ("point", pa.array([{"x": 1}, {"x": 1, "z": 2}])),
    ("tags", pa.array([None, [1]])),
]


@pytest.mark.parametrize(
    ("column", "values"), BAD_ARROW, ids=lambda v: str(v)[:25] if isinstance(v, str) else str(v.type)
)
def test_an_arrow_value_that_does_not_fit_is_refused_by_row_and_column(wide, column, values):
    with nothing_written(wide), refused(sl.Invalid, row=1, column=column, table=wide.name):
        wide.upsert(pa.table({"id": [1, 2], column: values}))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("i8", pa.array(["1"])),
        ("i8", pa.array([True])),
        ("s", pa.array([1])),
        ("s", pa.array([b"abc"])),
        ("b", pa.array(["abc"])),
        ("flag", pa.array([1])),
        ("day", pa.array([NOON])),
        ("day", pa.array([1], pa.int32())),
        ("at", pa.array([NOON.replace(tzinfo=None)])),
        ("local", pa.array([NOON])),
        ("at", pa.array([1])),
        ("price", pa.array([1.5])),
        ("doc", pa.array([1])),
        ("tags", pa.array(["abc"])),
        ("point", pa.array([[1]])),
        ("point", pa.array([{"other": 1}])),
    ],
    ids=lambda v: v if isinstance(v, str) else str(v.type),
)
def test_an_arrow_type_that_does_not_go_with_the_column_is_refused(wide, column, values):
    with nothing_written(wide), refused(sl.Invalid, row=0, column=column):
        wide.upsert(pa.table({"id": [1], column: values}))


def test_the_row_number_counts_over_all_pieces_of_the_input(wide):
    good = pa.record_batch({"id": pa.array(range(10))})
    bad = pa.record_batch({"id": pa.array([100, None, 102])})
    for data in (iter([good, good, bad]), pa.RecordBatchReader.from_batches(good.schema, iter([good, good, bad]))):
        with nothing_written(wide), refused(sl.Invalid, row=21, column="id"):
            wide.upsert(data)
    with nothing_written(wide), refused(sl.Invalid, row=12_345, column="i8"):
        wide.upsert([{"id": at, "i8": 1000 if at == 12_345 else 1} for at in range(12_400)])


def test_a_missing_or_null_key_is_refused(make_table):
    table = make_table(pa.schema([("a", pa.string()), ("b", pa.int32()), ("x", pa.string())]), key=["a", "b"])
    for row, column in [
        ({"a": "k", "x": "v"}, "b"),
        ({"a": None, "b": 1}, "a"),
        ({"x": "v"}, "a"),
        ({}, "a"),
    ]:
        with nothing_written(table), refused(sl.Invalid, row=1, column=column):
            table.upsert([{"a": "k", "b": 1}, row])
    for key, column in [({"a": "k"}, "b"), ({"a": "k", "b": None}, "b")]:
        with nothing_written(table), refused(sl.Invalid, row=0, column=column):
            table.delete([key])


def test_a_null_in_a_required_column_is_refused(make_table):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("need", pa.string(), nullable=False)])
    table = make_table(schema, key=["id"])
    with nothing_written(table), refused(sl.Invalid, row=0, column="need"):
        table.upsert([{"id": 1}])


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "colour": "red"}],
        pa.table({"id": [1], "colour": ["red"]}),
        pd.DataFrame({"id": [1], "colour": ["red"]}),
        pl.DataFrame({"id": [1], "colour": ["red"]}),
    ],
    ids=["dicts", "arrow", "pandas", "polars"],
)
def test_an_unknown_column_is_refused_by_name(items, rows):
    with nothing_written(items), refused(sl.Invalid, row=0, column="colour", table="items"):
        items.upsert(rows)


def test_a_delete_takes_key_columns_only(items):
    items.upsert([{"id": 1, "name": "a"}])
    with nothing_written(items), refused(sl.Invalid, column="name"):
        items.delete([{"id": 1, "name": "a"}])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        lambda: iter(()),
        lambda: iter([ITEMS.empty_table()]),
        pa.table({"id": pa.array([], pa.int64())}),
        pa.table({"id": pa.array([], pa.string())}),
        ITEMS.empty_table(),
        pd.DataFrame(),
        pd.DataFrame({"id": [], "name": []}),
        pd.DataFrame({"id": [1], "name": ["a"], "qty": [1]}).query("id > 1"),
        pd.DataFrame(columns=["id", "name", "qty"]),
        pl.DataFrame(),
        pl.DataFrame({"id": [], "name": [], "qty": []}),
    ],
    ids=[
        "list",
        "iterator",
        "tables",
        "arrow",
        "typed",
        "exact",
        "pandas",
        "floats",
        "query",
        "objects",
        "polars",
        "nulls",
    ],
)
def test_a_batch_without_rows_is_answered_with_no_rows_at_the_head_and_writes_nothing(items, make_table, rows):
    plain = make_table(ITEMS)
    items.upsert([{"id": 1, "name": "a"}])
    again = rows if callable(rows) else lambda: rows
    with nothing_written(items):
        assert items.upsert(again()) == sl.Commit(items.head, 0)
    with nothing_written(plain):
        assert plain.append(again()) == sl.Commit(0, 0)


def test_a_delete_of_no_keys_writes_nothing(items):
    items.upsert([{"id": 1, "name": "a"}])
    with nothing_written(items):
        for keys in ([], set(), pa.table({"id": pa.array([], pa.int64())}), pd.DataFrame({"id": []}), pl.DataFrame()):
            assert items.delete(keys) == sl.Commit(1, 0)


def test_a_batch_without_rows_keeps_no_token_and_finds_one_that_is_kept(items):
    assert items.upsert([], token="a") == sl.Commit(0, 0)
    assert items.upsert([{"id": 1}], token="a") == sl.Commit(1, 1)
    items.upsert([{"id": 2}])
    assert items.upsert([], token="a") == sl.Commit(1, 1, is_replay=True)


def test_a_batch_without_rows_for_a_dropped_table_is_refused(lake, items):
    lake.drop("items")
    with refused(sl.NotFound):
        items.upsert([])


def test_an_empty_frame_still_names_columns_of_the_table(items):
    with nothing_written(items), refused(sl.Invalid, column="colour"):
        items.upsert(pd.DataFrame({"id": [], "colour": []}))


def test_a_column_without_any_value_is_null_whatever_its_type(items):
    items.upsert(pd.DataFrame({"id": [1, 2], "name": [float("nan")] * 2, "qty": [None, None]}))
    assert items.to_arrow().column("name").null_count == 2
    with nothing_written(items), refused(sl.Invalid, row=0, column="id"):
        items.upsert(pd.DataFrame({"id": [float("nan")]}))


MOMENTS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
FINE = pd.Timestamp("2026-01-02T03:04:05.000001001")
MIDDAY = pd.Timestamp("2026-01-02T12:00:00")


@pytest.mark.parametrize(
    "make",
    [
        lambda values, name: [{"id": i, name: value} for i, value in enumerate(values)],
        lambda values, name: [{"id": i, name: value.to_datetime64()} for i, value in enumerate(values)],
        lambda values, name: pd.DataFrame({"id": range(len(values)), name: values}),
        lambda values, name: pd.DataFrame({"id": range(len(values)), name: pd.Series(values, dtype=object)}),
        lambda values, name: pl.from_pandas(pd.DataFrame({"id": range(len(values)), name: values})),
        lambda values, name: pa.table({"id": range(len(values)), name: pa.array(values, pa.timestamp("ns"))}),
    ],
    ids=["dicts", "numpy", "pandas", "objects", "polars", "arrow"],
)
def test_moments_are_taken_when_no_digit_is_lost_and_refused_otherwise(make_table, make):
    table = make_table(MOMENTS, key=["id"])
    whole, midnight = FINE.floor("us"), MIDDAY.floor("D")
    table.upsert(make([whole, MIDDAY], "at"))
    assert sorted(table.to_arrow(columns=["at"]).column(0).to_pylist()) == [
        whole.to_pydatetime(),
        MIDDAY.to_pydatetime(),
    ]
    with nothing_written(table), refused(sl.Invalid, row=1, column="at") as caught:
        table.upsert(make([whole, FINE, FINE], "at"))
    assert "microseconds" in caught.value.hint
    table.upsert(make([midnight, midnight], "day"), missing="null")
    assert table.to_arrow(columns=["day"]).column(0).to_pylist() == [midnight.date()] * 2
    with nothing_written(table), refused(sl.Invalid, row=1, column="day") as caught:
        table.upsert(make([midnight, MIDDAY], "day"))
    assert "midnight" in caught.value.hint
    with nothing_written(table), refused(sl.Invalid, row=1, column="day"):
        table.upsert(make([midnight, midnight + pd.Timedelta(1, "ns")], "day"))


def test_keys_that_differ_in_nanoseconds_do_not_become_one(make_table):
    table = make_table(pa.schema([("at", pa.timestamp("us"))]), key=["at"])
    with nothing_written(table), refused(sl.Invalid, row=0, column="at"):
        table.upsert([{"at": FINE}, {"at": FINE + pd.Timedelta(1, "ns")}])
    with nothing_written(table), refused(sl.Invalid, row=0, column="at"):
        table.delete([FINE])


def test_moments_with_a_zone_are_refused_for_dates_and_nested_nanoseconds_too(make_table):
    inner = pa.list_(pa.struct([("at", pa.timestamp("us"))]))
    table = make_table(pa.schema([("id", pa.int64()), ("day", pa.date32()), ("all", inner)]), key=["id"])
    for rows in (
        [{"id": 1, "day": pd.Timestamp("2026-01-02", tz="UTC")}],
        pd.DataFrame({"id": [1], "day": [pd.Timestamp("2026-01-02", tz="UTC")]}),
    ):
        with nothing_written(table), refused(sl.Invalid, row=0, column="day") as caught:
            table.upsert(rows)
        assert "zone" in caught.value.hint
    deep = [{"id": 1, "all": [{"at": MIDDAY}]}, {"id": 2, "all": [{"at": FINE}]}]
    table.upsert(deep[:1])
    for rows in (deep, pd.DataFrame(deep)):
        with nothing_written(table), refused(sl.Invalid, row=1, column="all") as caught:
            table.upsert(rows)
        assert "microseconds" in caught.value.hint


def test_python_objects_in_a_frame_are_not_cut_to_dates_or_given_a_zone(make_table):
    table = make_table(MOMENTS, key=["id"])
    mixed = [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 5)]
    with nothing_written(table), refused(sl.Invalid, row=1, column="day"):
        table.upsert(pd.DataFrame({"id": [1, 2], "day": pd.Series(mixed, dtype=object)}))
    zones = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1)]
    with nothing_written(table), refused(sl.Invalid, row=0, column="at"):
        table.upsert(pd.DataFrame({"id": [1, 2], "at": pd.Series(zones, dtype=object)}))
    table.upsert(pd.DataFrame({"id": [1, 2], "day": pd.Series([mixed[0], None], dtype=object)}))
    assert set(table.to_arrow(columns=["day"]).column(0).to_pylist()) == {mixed[0], None}


def test_not_a_time_is_null(make_table):
    table = make_table(MOMENTS, key=["id"])
    table.upsert([{"id": 1, "at": pd.NaT, "day": pd.NaT}, {"id": 2, "at": np.datetime64("NaT"), "day": None}])
    table.upsert(pd.DataFrame({"id": [3], "at": [pd.NaT], "day": [pd.NaT]}))
    assert table.to_arrow().column("at").null_count == table.to_arrow().column("day").null_count == 3


@pytest.mark.parametrize(
    "rows",
    [
        None, 5, "text", b"bytes", {"id": 1}, [1], [None], [["id", 1]], [{"id": 1}, "x"], object(),
        pa.chunked_array([[1]]), pa.array([1]), pl.Series([1]), pd.Series([1]),
        pa.table([[1], [2]], names=["id", "id"]), pd.DataFrame({"id": [1, "a"]}), pd.DataFrame({"id": [object()]}),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_is_not_rows_is_refused_and_never_a_foreign_error(items, rows):
    with nothing_written(items), refused(sl.Invalid, table="items"):
        items.upsert(rows)


@pytest.mark.parametrize("keys", [None, 5, "text", {"id": 1}, ["x"], [None], [1.5], [{"ID": 1}], [[1]]], ids=repr)
def test_keys_that_cannot_be_are_refused(items, keys):
    items.upsert([{"id": 1, "name": "a"}])
    with nothing_written(items), refused(sl.Invalid, table="items"):
        items.delete(keys)


def test_writes_that_a_table_does_not_take_are_refused(items, make_table):
    plain = make_table(ITEMS)
    for call in (lambda: items.append([{"id": 1}]), lambda: items.upsert([{"id": 1}], order_by="name")):
        with nothing_written(items), refused(sl.Invalid, table="items"):
            call()
    for call in (lambda: plain.upsert([{"id": 1}]), lambda: plain.delete([1])):
        with nothing_written(plain), refused(sl.Invalid, table=plain.name):
            call()


@pytest.mark.parametrize("token", ["", "x" * 513, 5, b"x", True], ids=repr)
def test_a_token_is_a_text_of_some_length(items, token):
    with nothing_written(items), refused(sl.Invalid):
        items.upsert([{"id": 1}], token=token)


def test_every_kind_of_input_gives_the_same_rows(make_table):
    expected = [(1, "a", 10), (2, "ü", None)]
    dicts = [{"id": 1, "name": "a", "qty": 10}, {"id": 2, "name": "ü"}]
    arrow = pa.table({"qty": pa.array([10, None], pa.int64()), "name": ["a", "ü"], "id": [1, 2]})
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", "ü"], "qty": [10, None]})
    polars = pl.DataFrame({"id": [1, 2], "name": ["a", "ü"], "qty": [10, None]})
    for data in [
        dicts,
        tuple(dicts),
        (row for row in dicts),
        arrow,
        arrow.to_batches()[0],
        arrow.to_reader(),
        iter(arrow.to_batches()),
        iter([arrow]),
        frame,
        frame.convert_dtypes(),
        polars,
        polars.with_columns(pl.col("name").cast(pl.Categorical)),
        arrow.set_column(1, "name", arrow["name"].dictionary_encode()),
        arrow.cast(pa.schema([("qty", pa.float64()), ("name", pa.large_string()), ("id", pa.uint8())])),
    ]:
        table = make_table(ITEMS, key=["id"])
        assert table.upsert(data) == sl.Commit(1, 2)
        assert rows_of(table.to_arrow()) == expected


def test_values_at_the_edges_of_their_types_come_back_as_they_went_in(wide):
    row = {
        "id": -(2**63), "i8": -128, "i32": 2**31 - 1, "f32": 0.5, "f64": 5e-324, "s": "a\x00é😀'\"\\",
        "b": bytes(range(256)), "flag": False, "day": dt.date(1, 1, 1),
        "at": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), "local": dt.datetime(1, 1, 1),
        "price": Decimal("-99999.99"), "doc": sl.JsonText('{"b": 1,  "a": [null, 1e999]}'),
        "tags": ["", None, "x"], "point": {"x": None, "y": -1},
    }  # fmt: skip
    wide.upsert([row])
    for _ in range(2):
        assert wide.to_arrow(where=f"id = {-(2**63)}").to_pylist() == [row]
        assert wide.to_arrow().schema.equals(wide.schema)
        wide.compact(full=True)


@pytest.mark.parametrize("kind", ["at", "local", "day"])
def test_times_beyond_pythons_calendar_are_kept(wide, kind):
    """Arrow and Parquet hold dates that Python's datetime cannot: they are data like any other."""
    count = pa.array([2**24], pa.int32()) if kind == "day" else pa.array([2**59], pa.int64())
    wide.upsert(pa.table({"id": [1], kind: count.cast(WIDE.field(kind).type)}))
    wide.compact(full=True)
    assert wide.to_arrow(columns=[kind], where="id = 1")[kind].cast(count.type).to_pylist() == count.to_pylist()


def test_json_may_be_given_as_text_or_as_values_and_keeps_its_text(make_table):
    table = make_table(pa.schema([("id", pa.int64()), ("doc", pa.json_())]), key=["id"])
    docs = ['{"b":1, "a":2}', '"text"', "0", "[]", '{"a":1,"a":2}', "-1.50E+2"]
    table.upsert([{"id": at, "doc": sl.JsonText(doc)} for at, doc in enumerate(docs)])
    table.upsert([{"id": 100, "doc": {"a": [1, None, "ü"]}}, {"id": 101, "doc": 5}, {"id": 102, "doc": None}])
    for _ in range(2):
        found = {row["id"]: row["doc"] for row in table.to_arrow().to_pylist()}
        assert [found[at] for at in range(len(docs))] == docs
        assert (found[101], found[102]) == ("5", None)
        assert table.to_arrow().schema.field("doc").type == pa.json_()
        table.compact(full=True)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.json_()), pa.struct([("j", pa.json_())]), pa.map_(pa.string(), pa.json_())]
)
def test_json_inside_other_types_is_checked_as_well_or_not_offered(make_table, kind):
    """One text that is no JSON would make the whole table unreadable."""
    try:
        table = make_table(pa.schema([("id", pa.int64()), ("x", kind)]), key=["id"])
    except sl.Invalid as error:
        assert error.fields["column"].startswith("x")
        return
    wrap = {"list": lambda v: [v], "struct": lambda v: {"j": v}, "map": lambda v: [("k", v)]}[str(kind).split("<")[0]]
    table.upsert([{"id": 1, "x": wrap('{"a": 1}')}])
    with nothing_written(table), refused(sl.Invalid, row=0, column="x"):
        table.upsert([{"id": 2, "x": wrap("{not json")}])
    assert table.to_arrow().num_rows == 1


def test_slices_and_other_spellings_of_json_are_taken(make_table):
    table = make_table(pa.schema([("id", pa.int64()), ("doc", pa.json_())]), key=["id"])
    texts = pa.array([f'{{"n": {n}}}' for n in range(10)])
    plain = pa.ExtensionArray.from_storage(pa.json_(), texts)
    large = pa.ExtensionArray.from_storage(pa.json_(pa.large_string()), texts.cast(pa.large_string()))
    for number, docs in enumerate([plain, large, texts, texts.cast(pa.string_view()), texts.dictionary_encode()]):
        ids = [number * 100 + n for n in range(10)]
        table.upsert(pa.table({"id": ids, "doc": docs}).slice(5, 3))
        assert {row["id"]: row["doc"] for row in table.to_arrow().to_pylist()}[number * 100 + 6] == '{"n": 6}'
    assert table.to_arrow().num_rows == 15


def test_of_rows_with_one_key_the_last_wins(items):
    commit = items.upsert([{"id": at % 3, "name": str(at)} for at in range(1000)])
    assert commit.rows == 3
    assert by_id(items) == {0: "999", 1: "997", 2: "998"}


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.dates(), st.datetimes(), st.decimals(allow_nan=True), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=80)
@given(column=st.sampled_from(WIDE.names), value=ANY)
def test_any_value_is_taken_as_it_is_or_refused_by_row_and_column(tmp_path_factory, column, value):
    table = _scratch(tmp_path_factory)
    head = table.head
    try:
        table.upsert([{"id": 1, "s": "x"}, {"id": 2, column: value}], missing="null")
    except sl.Invalid as error:
        assert error.fields["column"] in (column, "id")
        assert error.fields["row"] in (0, 1)
        assert table.head == head
    else:
        assert table.head == head + 1
        assert table.to_arrow(where="id = 1", columns=["s"]).to_pylist() == [{"s": "x"}] or column == "id"


def _scratch(factory, kept={}):  # noqa: B006 - one table serves all examples
    if "table" not in kept:
        kept["table"] = sl.Lake(factory.mktemp("scratch")).create_table("scratch", WIDE, key=["id"], vnodes=1)
    return kept["table"]


def test_why_a_value_does_not_fit_is_said_without_words_of_arrow(lake):
    table = lake.create_table("t", "id:int64, at:timestamp_ntz, n:int8", key=["id"])
    for column, part in (
        (pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("ns")), None),
        (pa.array([1, 2], pa.timestamp("ns")), "1970-01-01 00:00:00"),
    ):
        rows = pa.table({"id": [1, 2], "at": column, "n": pa.array([1, 2], pa.int8())})
        if part is None:
            table.upsert(rows)
            continue
        with pytest.raises(sl.Invalid) as caught:
            table.upsert(rows)
        assert part in caught.value.message and "Casting" not in caught.value.message
        assert caught.value.message.endswith("(a part of it would be lost)")
