"""Keys are placed by a hash that is the same for ever, in Python and in Spark."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.engines.scan import spark_schema
from strandline.model.keys import hash_condition, hash_keys, shift_for, spark_hash, vnode_of

UTC = dt.UTC
TZ = pa.timestamp("us", tz="UTC")
NTZ = pa.timestamp("us")

# Stored files depend on these numbers: a change here is a change of the format.
GOLDEN = [
    (pa.bool_(), True, 419485614),
    (pa.bool_(), False, 792325741),
    (pa.int8(), -128, 2000375956),
    (pa.int16(), 32767, 1861239891),
    (pa.int32(), -1, 594466213),
    (pa.int64(), 0, 3650664544),
    (pa.int64(), 1, 2929690870),
    (pa.int64(), -(2**63), 69407298),
    (pa.int64(), 2**63 - 1, 3449825503),
    (pa.string(), "", 1486093758),
    (pa.string(), "a", 3321157890),
    (pa.string(), "Zoë 😀\x00", 4112915866),
    (pa.string(), "1", 2929690870),
    (pa.binary(), b"", 1486093758),
    (pa.binary(), b"\x00\xff\x10", 1029433591),
    (pa.date32(), dt.date(1970, 1, 1), 3650664544),
    (pa.date32(), dt.date(1, 1, 1), 2051141638),
    (pa.date32(), dt.date(9999, 12, 31), 4080552553),
    (TZ, dt.datetime(1970, 1, 1, tzinfo=UTC), 3650664544),
    (TZ, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), 594466213),
    (TZ, dt.datetime(2026, 7, 1, 12, 30, 0, 1, tzinfo=UTC), 1879514192),
    (NTZ, dt.datetime(1970, 1, 1), 3650664544),
    (NTZ, dt.datetime(1582, 10, 10), 3636007097),
    (NTZ, dt.datetime(2026, 7, 1, 12, 30, 0, 1), 1879514192),
    (NTZ, dt.datetime(2021, 3, 14, 2, 30), 2777247746),  # New York has no such time
    (NTZ, dt.datetime(2021, 11, 7, 1, 30), 1827234669),  # New York has it twice
    (NTZ, dt.datetime(9999, 12, 31, 23, 59, 59, 999999), 1913529100),
]
COMPOSITE = [
    (("a", 1), 1194398734),
    (("a1", 1), 3127566099),
    (("", -1), 1543703696),
    (("1:a", 0), 3817338064),
]


def column_names(golden):
    return [f"c{at}" for at in range(len(golden))]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN, ids=lambda v: str(v)[:30])
def test_the_hash_of_a_key_never_changes(kind, value, expected):
    assert hash_keys([pa.array([value], kind)]).to_pylist() == [expected]


@pytest.mark.parametrize(("key", "expected"), COMPOSITE)
def test_the_hash_of_a_key_of_two_columns_never_changes(key, expected):
    assert hash_keys([pa.array([key[0]]), pa.array([key[1]], pa.int32())]).to_pylist() == [expected]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_spark_gives_the_same_hash_in_every_time_zone(spark, tmp_path, zone):
    names = column_names(GOLDEN)
    schema = pa.schema(list(zip(names, (kind for kind, _, _ in GOLDEN), strict=True)))
    table = pa.Table.from_pylist([dict(zip(names, (v for _, v, _ in GOLDEN), strict=True))], schema=schema)
    pq.write_table(table, tmp_path / "golden.parquet")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.read.schema(spark_schema(schema)).parquet(str(tmp_path / "golden.parquet"))
        found = frame.select(*[spark_hash(schema, [name]).alias(name) for name in names]).collect()[0].asDict()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    wrong = {
        (str(kind), str(value)): (found[name], expected)
        for name, (kind, value, expected) in zip(names, GOLDEN, strict=True)
        if found[name] != expected
    }
    assert not wrong


def test_spark_gives_the_same_hash_of_a_key_of_two_columns(spark):
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    frame = spark.createDataFrame([key for key, _ in COMPOSITE], spark_schema(schema))
    found = [row[0] for row in frame.select(spark_hash(schema, ["a", "b"])).collect()]
    assert found == [expected for _, expected in COMPOSITE]


def test_fields_do_not_run_into_each_other():
    left = hash_keys([pa.array(["a", "", "1:a"]), pa.array(["bc", "abc", ""])])
    right = hash_keys([pa.array(["ab", "abc", "1:"]), pa.array(["c", "", "a"])])
    assert all(a != b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True))


@given(st.lists(st.text(), max_size=20), st.integers(0, 5))
def test_the_hash_does_not_depend_on_how_rows_are_cut(texts, cut):
    whole = hash_keys([pa.array(texts, pa.string())])
    parts = hash_keys([pa.chunked_array([texts[:cut], texts[cut:]], pa.string())])
    assert whole.equals(parts)


def test_a_vnode_is_the_top_bits_so_that_children_follow_their_parent():
    for value in (0, 1, 2**31, 2**32 - 1, 0xDEADBEEF):
        assert vnode_of(value, 1) == 0
        for bits in range(12):
            assert vnode_of(value, 2 << bits) >> 1 == vnode_of(value, 1 << bits)
            assert 0 <= vnode_of(value, 1 << bits) < 1 << bits
    assert [shift_for(1), shift_for(4096)] == [32, 20]


@pytest.mark.parametrize(
    ("vnodes", "condition"),
    [
        ([1], "_hash >= 1073741824 AND _hash < 2147483648"),
        ([2, 1], "_hash >= 1073741824 AND _hash < 3221225472"),
        ([0, 2], "((_hash >= 0 AND _hash < 1073741824) OR (_hash >= 2147483648 AND _hash < 3221225472))"),
        ([], "(false)"),
    ],
)
def test_the_hashes_of_vnodes_are_few_ranges(vnodes, condition):
    assert hash_condition(vnodes, 4) == condition
