"""DuckDB and Spark find the same keys before and behind a position as their encodings tell."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from strandline.engines.key_range import at_most, behind
from strandline.engines.scan import spark_schema
from strandline.model.key_order import decode_key, encode_key, is_at_most
from strandline.model.types import KEY_TYPES

TEXTS = ["", " ", "A", "a", "a\x01", "aa", "ab", "b", "é", "\uffff", "\U00010000", "'", '"', "\\", "\n"]
DATAS = [b"", b"\x00", b"\x00\x00", b"\x00\x01", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\x00"]
# Days and microseconds that Python, DuckDB and Spark can all show.
DAYS = [-719162, -1, 0, 1, 19000, 2932896]
MICROS = [-62_135_596_800_000_000, -1, 0, 1, 1_700_000_000_123_456, 253_402_300_799_999_999]
VALUES = {
    pa.bool_(): [False, True],
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int16(): [-(2**15), -1, 0, 1, 2**15 - 1],
    pa.int32(): [-(2**31), -1, 0, 1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.string(): TEXTS,
    pa.binary(): DATAS,
    pa.date32(): DAYS,
    pa.timestamp("us"): MICROS,
    pa.timestamp("us", "UTC"): MICROS,
}
NAMES = ["a b", 'c"`', "d"]


def keys_of(kinds, seed):
    chance = random.Random(seed)
    picked = [tuple(chance.choice(VALUES[kind]) for kind in kinds) for _ in range(40)]
    return list(dict.fromkeys(picked))


def table_of(keys, kinds):
    columns = [pa.array([key[at] for key in keys], kind) for at, kind in enumerate(kinds)]
    return pa.table([*columns, pa.array(range(len(keys)))], names=[*NAMES[: len(kinds)], "place"])


def kinds_to_try():
    chance = random.Random(7)
    single = [[kind] for kind in KEY_TYPES]
    return single + [chance.sample(KEY_TYPES, count) for count in (2, 2, 2, 3, 3, 3)]


def expected(keys, kinds, position):
    data = encode_key(position, kinds)
    return [at for at, key in enumerate(keys) if is_at_most(encode_key(key, kinds), data)]


def positions_of(keys, kinds):
    found = [*keys[:4], max(keys, key=lambda key: encode_key(key, kinds))]
    return [*found, *(key[:1] for key in keys[:2])]


@pytest.mark.parametrize("kinds", kinds_to_try(), ids=lambda kinds: "+".join(map(str, kinds)))
def test_duckdb_finds_the_keys_of_a_position(kinds):
    keys = keys_of(kinds, seed=len(kinds))
    names = NAMES[: len(kinds)]
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'America/New_York'")
        duck.register("rows", table_of(keys, kinds))
        order = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        by_duck = [row[0] for row in duck.execute(f"SELECT place FROM rows ORDER BY {order}").fetchall()]
        assert by_duck == sorted(range(len(keys)), key=lambda at: encode_key(keys[at], kinds))
        for position in positions_of(keys, kinds):
            values = decode_key(encode_key(position, kinds), kinds)
            for condition, is_wanted in ((at_most, True), (behind, False)):
                sql = condition(names, kinds, values).duckdb
                found = {row[0] for row in duck.execute(f"SELECT place FROM rows WHERE {sql}").fetchall()}
                before = set(expected(keys, kinds, position))
                assert found == (before if is_wanted else set(range(len(keys))) - before), sql


@pytest.mark.parametrize("kinds", kinds_to_try(), ids=lambda kinds: "+".join(map(str, kinds)))
def test_spark_finds_the_keys_of_a_position(spark, kinds):
    keys = keys_of(kinds, seed=len(kinds))
    names = NAMES[: len(kinds)]
    table = table_of(keys, kinds)
    frame = spark.createDataFrame(table, schema=spark_schema(table.schema)).coalesce(1)
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    by_spark = [row["place"] for row in frame.orderBy(*quoted).select("place").collect()]
    assert by_spark == sorted(range(len(keys)), key=lambda at: encode_key(keys[at], kinds))
    positions = positions_of(keys, kinds)
    values = [decode_key(encode_key(position, kinds), kinds) for position in positions]
    exprs = [f"{at_most(names, kinds, each).spark} AS p{at}" for at, each in enumerate(values)]
    exprs += [f"{behind(names, kinds, each).spark} AS b{at}" for at, each in enumerate(values)]
    rows = {row["place"]: row for row in frame.selectExpr("place", *exprs).collect()}
    for at, position in enumerate(positions):
        before = set(expected(keys, kinds, position))
        assert {place for place, row in rows.items() if row[f"p{at}"]} == before
        assert {place for place, row in rows.items() if row[f"b{at}"]} == set(rows) - before
