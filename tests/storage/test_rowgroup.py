"""The row group under way: what a row is counted as, and what is held of it."""

import datetime as dt
import gc
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.model.types import JSON
from strandline.storage.parquet.rowgroup import SMALL_BYTES, Budget, RowGroup, row_bytes
from strandline.storage.parquet.runs import runs_of
from support import answer_of, start_python

MIB = 1 << 20

# --- any values of any type that a table holds -------------------------------------------------------------------

LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2),
    pa.decimal128(38, 0), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
]  # fmt: skip
PLAIN = st.sampled_from(LEAVES)
TEXTS = st.builds(lambda text, times: text * times, st.text(max_size=6), st.sampled_from([0, 1, 1, 40, 400]))
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
SCALARS = {
    pa.bool_(): st.booleans(),
    **{pa.int64(): st.integers(-(2**63), 2**63 - 1), pa.int32(): st.integers(-(2**31), 2**31 - 1)},
    **{pa.int16(): st.integers(-(2**15), 2**15 - 1), pa.int8(): st.integers(-128, 127)},
    **{pa.float64(): st.floats(), pa.float32(): st.floats(width=32)},
    pa.decimal128(9, 2): st.decimals(-9999999, 9999999, places=2, allow_nan=False, allow_infinity=False),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal),
    pa.string(): TEXTS,
    pa.binary(): TEXTS.map(str.encode) | st.binary(max_size=20),
    pa.date32(): st.dates(),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", tz="UTC"): MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    JSON: st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=4,
    ).map(json.dumps),
}


def nested(inner):
    """Types around types."""
    names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
    structs = names.flatmap(lambda those: st.tuples(*[st.tuples(st.just(name), inner) for name in those]))
    return (
        st.builds(pa.list_, inner)
        | structs.map(lambda fields: pa.struct(list(fields)))
        | st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.date32()]), inner)
    )


KINDS = st.recursive(PLAIN, nested, max_leaves=3) | PLAIN | st.just(JSON)


def values_of(kind, *, is_key=False):
    """Values of a type, null at every level."""
    if pa.types.is_list(kind):
        some = st.lists(values_of(kind.value_type), max_size=4)
    elif pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_map(kind):
        keys = values_of(kind.key_type, is_key=True)
        some = st.lists(st.tuples(keys, values_of(kind.item_type)), max_size=3, unique_by=lambda pair: pair[0])
    else:
        some = SCALARS[kind]
    return some if is_key else st.none() | some | some


def array_of(values, kind):
    if kind == JSON:
        return pa.ExtensionArray.from_storage(JSON, pa.array(values, pa.string()))
    return pa.array(values, kind)


@st.composite
def columns(draw, rows, kinds=KINDS):
    """A column of a drawn type, in which values may repeat."""
    kind = draw(kinds)
    pool = draw(st.lists(values_of(kind), min_size=1, max_size=max(1, rows)))
    places = draw(st.lists(st.integers(0, len(pool) - 1), min_size=rows, max_size=rows))
    return array_of([pool[at] for at in places], kind)


def model_bytes(value, kind, truth_bytes=1):
    """What `row_bytes` promises, in the simplest words."""
    if pa.types.is_list(kind):
        return 4 + sum(model_bytes(each, kind.value_type, truth_bytes) for each in value or ())
    if pa.types.is_map(kind):
        inner = pa.struct([("k", kind.key_type), ("v", kind.item_type)])
        return 4 + sum(model_bytes({"k": k, "v": v}, inner, truth_bytes) for k, v in value or ())
    if pa.types.is_struct(kind):
        return sum(model_bytes((value or {}).get(field.name), field.type, truth_bytes) for field in kind)
    if kind == JSON or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 0 if value is None else len(value if isinstance(value, bytes) else value.encode())
    return truth_bytes if pa.types.is_boolean(kind) else kind.bit_width // 8


# --- counted -----------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(data=st.data(), rows=st.integers(0, 12))
def test_a_row_is_counted_as_a_plain_model_counts_it_also_in_a_slice(data, rows):
    values = data.draw(columns(rows))
    start = data.draw(st.integers(0, rows))
    some = values.slice(start, data.draw(st.integers(0, rows - start)))
    assert row_bytes(some).tolist() == [model_bytes(each, some.type) for each in some.to_pylist()]


def test_a_slice_inside_a_slice_of_everything_nested_is_counted_right():
    kind = pa.struct([("l", pa.list_(pa.map_(pa.string(), pa.list_(pa.string())))), ("n", pa.int16())])
    rows = [{"l": [[("k" * at, ["v" * at, None])] * (at % 3), None], "n": at} if at % 4 else None for at in range(40)]
    whole = pa.array(rows, kind)
    for some in (whole, whole.slice(7), whole.slice(7, 20).slice(3, 9), whole.slice(40)):
        assert row_bytes(some).tolist() == [model_bytes(each, kind) for each in some.to_pylist()]


def test_what_a_group_says_it_took_is_what_the_model_counts():
    texts = ["x" * 300, "y" * 500, "x" * 300, None, "y" * 500, "z" * 900]
    batch = pa.record_batch({"k": [1, 1, 2, 2, 3, 3], "text": texts})
    group = RowGroup(batch.schema)
    assert group.take(batch, runs_of(batch, ["k"]), Budget()) == 6
    assert group.rows == 6
    assert group.raw_bytes == 6 * 8 + sum(len(text or "") for text in texts)
    assert 300 + 500 + 900 <= group.encoded_bytes <= 300 + 500 + 900 + 6 * 2 + 6 * 8
    assert group.table().column("text").to_pylist() == texts


# --- held --------------------------------------------------------------------------------------------------------


@pytest.fixture
def held():
    """How many bytes Arrow holds since the test began."""
    gc.collect()
    before = pa.total_allocated_bytes()

    def since():
        gc.collect()
        return pa.total_allocated_bytes() - before

    return since


def wide_batch(rows=4000):
    text = ["t" * 2000 + str(at) for at in range(rows)]
    return pa.record_batch(
        {
            "k": [at // 10 for at in range(rows)],
            "text": text,
            "raw": [each.encode() for each in text],
            "doc": array_of([json.dumps(each) for each in text], JSON),
            "tags": [[each[:100], None] for each in text],
            "point": [{"x": each[:100], "y": [at]} for at, each in enumerate(text)],
            "more": pa.array([[(each[:100], each[:50])] for each in text], pa.map_(pa.string(), pa.string())),
        }
    )


@pytest.mark.parametrize("cluster_by", [[], ["k"]], ids=["plain", "clustered"])
def test_rows_that_are_taken_do_not_pin_their_batch(held, cluster_by):
    batch = wide_batch()
    assert held() > 16 * MIB
    group = RowGroup(batch.schema)
    expected = batch.slice(1234, 1).to_pylist()
    assert group.take(batch.slice(1234), runs_of(batch.slice(1234), cluster_by), Budget(group_rows=1)) == 1
    del batch
    assert held() < 64 << 10
    assert group.table().to_pylist() == expected


def test_the_rest_of_a_batch_does_not_pin_it_either(held):
    """A group closes in the middle of a batch; the next one begins with what is left, which is little."""
    batch = wide_batch()
    group = RowGroup(batch.schema)
    assert group.take(batch.slice(batch.num_rows - 2), [], Budget()) == 2
    del batch
    assert held() < 64 << 10
    assert group.rows == 2


def test_small_slices_of_many_small_batches_do_not_add_up_to_what_was_not_counted(held):
    group = RowGroup(pa.schema({"n": pa.int64()}))
    for at in range(2000):
        batch = pa.record_batch({"n": range(at, at + 8000)})
        assert group.take(batch.slice(0, 1), [], Budget()) == 1
        del batch
    assert group.table()["n"].to_pylist() == list(range(2000))
    assert held() < 4 * SMALL_BYTES


FEED = """
import gc, json, resource, sys, tracemalloc
import pyarrow as pa
from strandline.storage.parquet.rowgroup import Budget, RowGroup
from strandline.storage.parquet.runs import runs_of

texts = [str(at) * 100_000 for at in range(10, 20)]
def batch(start):
    return pa.record_batch({"k": [0] * 50, "text": [texts[(start + at) % 10] for at in range(50)]})

batch(0)
gc.collect()
pa.default_memory_pool().release_unused()
before = pa.total_allocated_bytes()
tracemalloc.start()
group = RowGroup(batch(0).schema)
most = 0
for start in range(0, 1000, 50):
    rows = batch(start)
    assert group.take(rows, runs_of(rows, sys.argv[1:]), Budget()) == 50
    del rows
    most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
built = group.table()
built_bytes = pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0]
print(json.dumps([group.raw_bytes, group.encoded_bytes, most, built_bytes, built.num_rows]))
"""


@pytest.mark.parametrize("cluster_by", [[], ["k"]], ids=["plain", "clustered"])
def test_two_hundred_megabytes_of_repeated_texts_are_held_once(cluster_by):
    raw, encoded, most, built, rows = answer_of(start_python(FEED, *cluster_by))
    assert raw >= 200_000_000 and rows == 1000
    assert encoded < 3_000_000 + 1000 * 16
    assert most < 20 * MIB
    assert built < 20 * MIB
