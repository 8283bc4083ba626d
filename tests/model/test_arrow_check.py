"""What may be stored can be read: values that some engine cannot read are refused at every door, by row and column."""

from __future__ import annotations

import math
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from receiving import ARROW, NDJSON, arrow, asking
from strandline.model import arrow_check
from strandline.server.app import make_app
from strandline.tables.rejects import Rejects
from support import nothing_written, refused
from unsound import nested, of_bytes, of_numbers, with_offsets

EARLIEST = -9_223_372_022_400_000_000
GOOD_BAD = {
    "text": of_bytes([b"ok", b"caf\xc3\xa9", b"caf\xe9", b"ok"]),
    "surrogate": of_bytes([b"ok", b"ok", b"\xed\xa0\x80", b"ok"]),
    "large text": of_bytes([b"ok", b"", b"\xff", b"ok"], pa.large_string()),
    "decimal": of_numbers(pa.decimal128(38, 0), [1, 10**38 - 1, 10**38, 2], 16),
    "small decimal": of_numbers(pa.decimal128(4, 2), [1, -9999, -10000, 2], 16),
    "hugeint": of_numbers(pa.decimal128(38, 0), [1, 0, -(2**127), 2], 16),
    "day": of_numbers(pa.date32(), [0, 2**31 - 2, 2**31 - 1, 0], 4),
    "early day": of_numbers(pa.date32(), [0, -(2**31) + 2, -(2**31) + 1, 0], 4),
    "time": of_numbers(pa.timestamp("us"), [0, 2**63 - 2, 2**63 - 1, 0], 8),
    "early time": of_numbers(pa.timestamp("us"), [0, EARLIEST, EARLIEST - 1, 0], 8),
    "moment": of_numbers(pa.timestamp("us", tz="UTC"), [0, EARLIEST, -(2**63), 0], 8),
}
PLACES = ["plain", "struct", "list", "list of structs", "struct of lists", "map values", "map keys"]


def table_for(lake: sl.Lake, kind: pa.DataType) -> sl.Table:
    return lake.create_table("t", pa.schema([("id", pa.int64()), ("v", kind)]), key=["id"], vnodes=1)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", GOOD_BAD)
def test_a_value_that_some_engine_cannot_read_is_refused_wherever_it_lies(lake, what, place):
    values, path = nested(GOOD_BAD[what])[place]
    rows = pa.table({"id": range(4), "v": values})
    table = table_for(lake, values.type)
    for data in (rows, rows.to_batches()[0], rows.to_reader(), iter(rows.to_batches(1))):
        with nothing_written(table), refused(sl.Invalid, row=2, column="v", table="t") as caught:
            table.upsert(data)
        assert f"column {path!r}" in caught.value.message
    table.upsert(rows.slice(0, 2))
    table.upsert(rows.slice(3))
    assert table.to_arrow().num_rows == 3


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_text_that_is_not_utf8_is_refused_in_views_and_dictionaries(lake, kind):
    table = table_for(lake, pa.string())
    bad = [b"ok", b"ok too", b"a long text that is no UTF-8 \xff\xff", b"ok"]
    if pa.types.is_dictionary(kind):
        values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0]), of_bytes(bad))
    else:
        values = of_bytes(bad, kind)
    with nothing_written(table), refused(sl.Invalid, row=2, column="v"):
        table.upsert(pa.table({"id": range(4), "v": values}))


def test_text_of_pandas_that_is_not_utf8_is_refused(lake):
    table = table_for(lake, pa.string())
    values = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([GOOD_BAD["text"]])))
    with nothing_written(table), refused(sl.Invalid, row=2, column="v"):
        table.upsert(pd.DataFrame({"id": range(4), "v": values}))


@pytest.mark.parametrize(
    "values",
    [
        with_offsets([0, 4, 2, 6]),
        with_offsets([0, 2, 40, 6]),
        with_offsets([0, -3, 4, 6]),
        with_offsets([0, 2, 1, 3], pa.array([1, 2, 3])),
        with_offsets([0, 1, 9, 3], pa.array([1, 2, 3])),
        with_offsets([0, 1, 2, 3], of_bytes([b"a", b"b", b"\xff"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 7, 0], pa.int32()), pa.array(["a"]), safe=False),
        pa.DictionaryArray.from_arrays(pa.array([0, -7, 0], pa.int32()), pa.array(["a"]), safe=False),
    ],
    ids=["back", "beyond", "negative", "list back", "list beyond", "list of bad text", "index", "negative index"],
)
def test_arrow_that_is_not_sound_is_refused_and_harms_nothing(lake, values):
    kind = pa.list_(values.type.value_type) if pa.types.is_list(values.type) else pa.string()
    table = table_for(lake, kind)
    with nothing_written(table), refused(sl.Invalid, column="v"):
        table.upsert(pa.table({"id": range(3), "v": values}))
    table.upsert([{"id": 1, "v": None}])


def test_rows_are_counted_over_batches(lake):
    table = table_for(lake, pa.string())
    good = pa.record_batch({"id": range(5), "v": ["x"] * 5})
    bad = pa.record_batch({"id": range(4), "v": GOOD_BAD["text"]})
    with nothing_written(table), refused(sl.Invalid, row=7, column="v"):
        table.upsert(iter([good, bad]))


def test_keys_to_delete_are_looked_at_too(lake):
    table = lake.create_table("t", pa.schema([("id", pa.string()), ("n", pa.int64())]), key=["id"])
    with nothing_written(table), refused(sl.Invalid, row=2, column="id"):
        table.delete(pa.table({"id": GOOD_BAD["text"]}))
    with nothing_written(table), refused(sl.Invalid, row=2, column="id"):
        table.purge(pa.table({"id": GOOD_BAD["text"]}))


def test_an_export_of_hugeint_by_duckdb_is_refused(lake):
    import duckdb

    rows = duckdb.sql(
        f"SELECT i AS id, i * CAST('{-(2**127) + 1}' AS HUGEINT) AS v FROM range(2) t(i)"
    ).to_arrow_table()
    assert rows.schema.field("v").type == pa.decimal128(38, 0)
    table = table_for(lake, pa.decimal128(38, 0))
    with nothing_written(table), refused(sl.Invalid, row=1, column="v"):
        table.upsert(rows)


@pytest.mark.parametrize("what", ["text", "decimal", "day", "moment"])
def test_a_parquet_file_with_such_values_gives_rejects(lake, tmp_path, what):
    values = GOOD_BAD[what]
    pq.write_table(pa.table({"id": range(4), "v": values}), tmp_path / "in.parquet")
    table = table_for(lake, values.type)
    with nothing_written(table), refused(sl.Invalid, line=3, column="v"):
        lake.ingest("t", [str(tmp_path / "in.parquet")])
    report = lake.ingest("t", [str(tmp_path / "in.parquet")], rejects=True)
    assert (report.rows, report.rejects) == (3, 1)
    assert sorted(table.to_arrow().column("id").to_pylist()) == [0, 1, 3]
    (reject,) = Rejects(table.log.storage, table.entry).latest(10)
    assert (reject["line"], reject["column"]) == (3, "v")
    with pytest.raises(sl.Invalid, match="column 'v'"):
        lake.import_table("other", str(tmp_path / "in.parquet"), key=["id"])
    assert lake.tables() == ["t"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_text_files_hold_no_such_values_either(lake, tmp_path, suffix):
    """Also not among the texts: one that Arrow's own readers take for a date is read back, or refused."""
    table = table_for(lake, pa.date32())
    for at, value in enumerate(["0000-12-31", "10000-01-01", "-0001-01-01", "infinity"]):
        csv, jsonl = f"id,v\n{at},{value}\n", f'{{"id":{at},"v":"{value}"}}\n'
        (tmp_path / f"{at}.{suffix}").write_text(csv if suffix == "csv" else jsonl)
        try:
            lake.ingest("t", [str(tmp_path / f"{at}.{suffix}")])
        except sl.Invalid as error:
            assert error.fields["column"] == "v"
    assert table.to_arrow().cast(pa.schema([("id", pa.int64()), ("v", pa.int32())])).num_rows == table.head


@pytest.mark.parametrize("place", ["plain", "struct", "list", "map values"])
@pytest.mark.parametrize("what", ["text", "decimal", "hugeint", "day", "moment"])
def test_a_server_refuses_such_values_by_row_and_column(lake, what, place):
    values, path = nested(GOOD_BAD[what])[place]
    table = table_for(lake, values.type)
    rows = pa.table({"id": range(4), "v": values})
    with asking(make_app(lake)) as client, nothing_written(table):
        answer = client.post("/ingest/t", content=arrow(rows), headers={"Content-Type": ARROW})
        error = answer.json()["error"]
        assert answer.status_code in (400, 422)
        assert error["kind"] == "Invalid"
        assert (error["row"], error["column"]) == (2, "v")
        assert repr(path) in error["message"]


def test_a_server_refuses_lines_with_such_values_by_row_and_column(lake):
    kinds = {"text": pa.string(), "moment": pa.timestamp("us"), "price": pa.decimal128(4, 2)}
    table = lake.create_table("t", pa.schema([("id", pa.int64()), *kinds.items()]), key=["id"])
    with asking(make_app(lake)) as client, nothing_written(table):
        for name, value in [("text", b'"\xff"'), ("text", b'"\\ud800"'), ("price", b'"123.45"'), ("price", b"1e9")]:
            content = b'{"id": 1}\n{"id": 2, "' + name.encode() + b'": ' + value + b"}\n"
            answer = client.post("/ingest/t", content=content, headers={"Content-Type": NDJSON})
            assert answer.status_code in (400, 422), value
            assert answer.json()["error"]["row"] == 1


def test_what_lies_inside_a_column_cannot_be_required(lake):
    inside = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    for kind in (inside, pa.list_(inside), pa.map_(pa.string(), inside), pa.struct([("y", inside)])):
        with pytest.raises(sl.Invalid, match="not null"):
            table_for(lake, kind)
    table = lake.create_table("t", pa.schema([("id", pa.int64())]), key=["id"])
    with pytest.raises(sl.Invalid, match="not null"):
        table.evolve(pa.schema([("v", inside)]))


def test_a_table_that_an_earlier_version_made_with_a_required_field_is_read(lake):
    """Its schema says that the field is required; null structs and deletes made it unreadable."""
    from strandline.model.definition import TableDef
    from strandline.tables.baseline import Baseline
    from strandline.tables.log import Log

    inside = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", inside)])
    definition = TableDef(("id",), (), 1, None, (schema,))

    def make(entry):
        Log.create(lake.storage, f"{entry.folder}/log", "t", definition)
        Baseline.create(lake.storage, f"{entry.folder}/baseline", "t", definition)

    lake.catalog.add("t", make)
    table = lake.table("t")
    rows = [{"id": 1, "v": {"x": 1}}, {"id": 2, "v": None}, {"id": 3, "v": {"x": 3}}]
    table.upsert(rows)
    table.delete([3])
    for _ in range(2):
        assert table.to_arrow().sort_by("id").to_pylist() == rows[:2]
        assert [row["v"] for row in table.changes().to_pylist()] == [{"x": 1}, None, {"x": 3}, None]
        table.compact(full=True)


def test_required_fields_of_a_file_become_nullable_in_an_import_and_in_an_ingest(lake, tmp_path):
    inside = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    values = pa.array([{"x": 1}, None], inside)
    pq.write_table(pa.table({"id": [1, 2], "v": values}), tmp_path / "in.parquet")
    lake.import_table("imported", str(tmp_path / "in.parquet"), key=["id"])
    lake.ingest("loaded", [str(tmp_path / "in.parquet")], key=["id"])
    for name in ("imported", "loaded"):
        table = lake.table(name)
        table.upsert([{"id": 3, "v": {"x": None}}])
        table.delete([1])
        assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 2, "v": None}, {"id": 3, "v": {"x": None}}]


@pytest.mark.parametrize("wrap", [pa.list_, lambda kind: pa.struct([("a", kind)]), lambda k: pa.map_(pa.string(), k)])
def test_types_that_are_nested_too_deep_are_refused(lake, wrap):
    kind = pa.int64()
    for _ in range(17):
        kind = wrap(kind)
    with pytest.raises(sl.Invalid, match="nested deeper"):
        table_for(lake, kind)


def test_a_table_of_the_deepest_types_is_read(lake):
    kind, value = pa.int64(), 1
    for _ in range(8):
        kind, value = pa.list_(pa.struct([("a", kind)])), [{"a": value}]
    table = table_for(lake, kind)
    table.upsert([{"id": 1, "v": value}])
    assert table.to_arrow().to_pylist() == [{"id": 1, "v": value}]


@pytest.mark.parametrize("kind", [pa.decimal128(5, 10), pa.decimal128(5, -2)])
def test_a_decimal_with_digits_that_it_cannot_have_is_refused(lake, kind):
    with pytest.raises(sl.Invalid):
        table_for(lake, kind)


def test_spark_frames_are_looked_at_too(lake, spark):
    texts = lake.create_table("texts", pa.schema([("id", pa.int64()), ("v", pa.list_(pa.string()))]), key=["id"])
    frame = spark.sql("SELECT id, array(cast(if(id = 2, X'FF', X'41') AS STRING)) AS v FROM range(4)")
    with nothing_written(texts), refused(sl.Invalid, column="v") as caught:
        texts.upsert(frame)
    assert "{'id': 2}" in caught.value.message
    days = lake.create_table("days", pa.schema([("id", pa.int64()), ("v", pa.date32())]), key=["id"])
    frame = spark.sql("SELECT id, date_from_unix_date(if(id = 2, 2147483647, 0)) AS v FROM range(4)")
    with nothing_written(days), refused(sl.Invalid, column="v"):
        days.upsert(frame)


# The property: what is taken comes back equal, on every path; what is not, changes nothing.

SIGNS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=4)
FIELD_NAMES = st.one_of(st.sampled_from(["a", "A", "b", "s", "ſ", "", "x\0", "a.b", "`", '"']), SIGNS)
LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("us"): st.integers(-(2**63), 2**63 - 1)
    | st.integers(-62_135_596_800_000_005, -62_135_596_799_999_995),
    pa.timestamp("us", tz="UTC"): st.integers(0, 2**48),
    pa.decimal128(6, 3): st.integers(-1_000_001, 1_000_001),
    pa.decimal128(38, 0): st.integers(-(2**127), 2**127 - 1),
}
TEXTS = st.none() | st.binary(max_size=4) | SIGNS.map(str.encode)


@st.composite
def arrays(draw: st.DrawFn, count: int, depth: int = 2) -> pa.Array:
    """An array of any stored type, of which some are not sound."""
    depth = depth if count else 0
    shape = draw(st.sampled_from(["leaf", "leaf", "text", "struct", "list", "map"] if depth else ["leaf", "text"]))
    if shape == "text":
        raw = pa.array(
            draw(st.lists(st.none() | st.binary(max_size=4) | SIGNS.map(str.encode), min_size=count, max_size=count)),
            pa.binary(),
        )
        return pa.Array.from_buffers(pa.string(), count, raw.buffers())
    if shape == "leaf":
        kind = draw(st.sampled_from(list(LEAVES)))
        values = draw(st.lists(st.none() | LEAVES[kind], min_size=count, max_size=count))
        if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
            width = kind.bit_width // 8
            bare = of_numbers(kind, [value or 0 for value in values], width)
            valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
            return pa.Array.from_buffers(kind, count, [valid, bare.buffers()[1]])
        return pa.array(values, kind)
    mask = pa.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), pa.bool_())
    if shape == "struct":
        names = draw(st.lists(FIELD_NAMES, min_size=1, max_size=3))
        children = [draw(arrays(count, depth - 1)) for _ in names]
        is_required = draw(st.integers(0, 9)) == 0
        fields = [pa.field(name, child.type, not is_required) for name, child in zip(names, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    lengths = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    offsets = pa.array([sum(lengths[:at]) for at in range(count + 1)], pa.int32())
    if shape == "map":
        keys = pa.array(range(sum(lengths)), pa.int64())
        return pa.MapArray.from_arrays(offsets, keys, draw(arrays(sum(lengths), depth - 1)))
    return pa.ListArray.from_arrays(offsets, draw(arrays(sum(lengths), depth - 1)), mask=mask)


def plain(value: object) -> object:
    """A value that compares equal to itself, also NaN, whatever order a struct's fields have."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.normalize() if isinstance(value, Decimal) else value


def rows_of(table: pa.Table) -> list[object]:
    return values_of(table.sort_by("id").column("v").combine_chunks())


def values_of(array: pa.Array) -> list[object]:
    """The values, times as numbers: many are outside of Python's years."""
    return [plain(value) for value in array.cast(timeless(array.type)).to_pylist()]


def timeless(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, timeless(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, timeless(kind.item_type))
    return pa.list_(timeless(kind.value_type)) if pa.types.is_list(kind) else kind


def stored(lake: sl.Lake, name: str, values: pa.Array) -> sl.Table | None:
    """A table of these values, or None when they are refused; then nothing of them is there."""
    schema = pa.schema([("id", pa.int64()), ("v", values.type)])
    try:
        table = lake.create_table(name, schema, key=["id"], vnodes=1)
    except sl.Invalid:
        return None
    rows = pa.table({"id": range(len(values)), "v": values})
    try:
        table.upsert(rows)
    except sl.Invalid as error:
        assert error.fields["column"] == "v"
        with nothing_written(table), pytest.raises(sl.Invalid):
            table.upsert(rows.slice(error.fields["row"], 1))
        assert table.to_arrow().num_rows == 0
        return None
    return table


@settings(max_examples=120)
@given(data=st.data())
def test_what_is_taken_comes_back_equal(tmp_path_factory, data):
    lake = sl.Lake(tmp_path_factory.mktemp("lake"))
    values = data.draw(arrays(3))
    table = stored(lake, "t", values)
    if table is None:
        return
    expected = values_of(values)
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(lake.sql("SELECT * FROM t")) == expected
    assert rows_of(table.changes()) == expected
    table.delete([0])
    table.upsert(pa.table({"id": [1], "v": values.slice(0, 1)}))
    table.compact(full=True)
    assert rows_of(table.to_arrow()) == [expected[0], expected[2]]


def test_what_is_taken_comes_back_equal_through_spark(tmp_path_factory, spark):
    lake = sl.Lake(tmp_path_factory.mktemp("lake"))
    count = 0

    @settings(max_examples=15)
    @given(values=arrays(3))
    def check(values: pa.Array) -> None:
        nonlocal count
        count += 1
        table = stored(lake, f"t{count}", values)
        if table is not None:
            expected = values_of(values)
            assert rows_of(table.to_spark().toArrow()) == expected
            table.upsert(table.to_spark())
            assert rows_of(table.to_arrow()) == expected

    check()


def test_sound_tables_are_looked_at_without_their_values(monkeypatch):
    """A bulk load pays for Arrow's own check alone: nothing is looked at value by value."""
    monkeypatch.setattr(arrow_check, "_find_value", lambda *_: pytest.fail("values were looked at one by one"))
    assert arrow_check.find_invalid(pa.table({"id": range(1000), "v": ["x"] * 1000})) is None
    assert arrow_check.find_unreadable(pa.table({"id": range(1000), "v": ["x"] * 1000})) is None
