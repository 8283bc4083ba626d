"""Cuts split a table by key into parts of about so many rows, from footers alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

from strandline.engines.key_range import at_most
from strandline.model.key_order import decode_key, encode_key, is_at_most
from strandline.storage.parquet import writer
from strandline.tables.key_cuts import compare_positions, find_group_ends, key_types, next_cut

BY_TEXT = pa.schema(
    [pa.field("tenant", pa.string(), False), pa.field("n", pa.int32(), False), pa.field("v", pa.int64())]
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Row groups of a few hundred rows."""
    for function in (writer.write_files, writer.stage_files):
        monkeypatch.setitem(function.__kwdefaults__, "budget", replace(writer.DEFAULT, group_rows=200))


def cuts_of(table, rows):
    groups = find_group_ends(table.merge())
    found, at = [], b""
    while (cut := next_cut(groups, at, rows, 1 << 40)) is not None:
        found.append(cut)
        at = cut
    return found


def keys_of(table):
    kinds = key_types(table.definition)
    rows = table.to_arrow(columns=list(table.definition.key)).to_pylist()
    return sorted(encode_key(tuple(row.values()), kinds) for row in rows)


def test_each_part_has_about_as_many_rows_as_asked(make_table):
    table = make_table(key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": str(n)} for n in range(20_000)])
    table.compact(full=True)
    keys, cuts = keys_of(table), cuts_of(table, 2_000)
    assert len(cuts) >= 4
    counts, rest = [], keys
    for cut in cuts:
        counts.append(sum(is_at_most(key, cut) for key in rest))
        rest = [key for key in rest if not is_at_most(key, cut)]
    assert rest, "the last part has no cut, so that rows behind every known key are in it"
    # Groups of several vnodes end at about the same keys.
    assert all(500 <= count <= 8_000 for count in [*counts, len(rest)])


def test_a_constant_first_column_is_cut_by_the_next(make_table):
    table = make_table(BY_TEXT, key=["tenant", "n"], vnodes=1)
    table.upsert([{"tenant": "only", "n": n, "v": n} for n in range(5_000)])
    table.compact(full=True)
    kinds = key_types(table.definition)
    cuts = [decode_key(cut, kinds) for cut in cuts_of(table, 1_000)]
    assert len(cuts) >= 2 and all(len(cut) == 2 and cut[0] == "only" for cut in cuts)
    assert cuts == sorted(cuts)


def test_cuts_rise_and_mean_the_same_in_sql(make_table):
    chance = random.Random(3)
    table = make_table(BY_TEXT, key=["tenant", "n"], vnodes=2)
    for _ in range(3):
        rows = [{"tenant": chance.choice("abcd") * 2, "n": n, "v": n} for n in chance.sample(range(10_000), 3_000)]
        table.upsert(rows)
    table.compact(full=True)
    kinds = key_types(table.definition)
    cuts = cuts_of(table, 1_000)
    assert len(cuts) >= 3
    assert all(compare_positions(one, other) == -1 for one, other in itertools.pairwise(cuts))
    keys = keys_of(table)
    with duckdb.connect() as duck:
        duck.register("rows", table.to_arrow(columns=["tenant", "n"]))
        for cut in cuts:
            condition = at_most(["tenant", "n"], kinds, decode_key(cut, kinds)).duckdb
            found = duck.execute(f"SELECT count(*) FROM rows WHERE {condition}").fetchall()[0][0]
            assert found == sum(is_at_most(key, cut) for key in keys)


def test_a_range_without_rows_has_no_cut(make_table):
    table = make_table(key=["id"], vnodes=1)
    table.upsert([{"id": n, "name": "x"} for n in range(10_000)])
    table.delete([n for n in range(2_000, 8_000)])
    table.compact(full=True)
    kinds = key_types(table.definition)
    inside = [cut for cut in cuts_of(table, 300) if 2_000 <= decode_key(cut, kinds)[0] < 7_999]
    assert len(inside) <= 1


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_of_no_or_one_row_has_no_cut(make_table, rows):
    table = make_table(key=["id"])
    if rows:
        table.upsert([{"id": 1, "name": "x"}])
    assert cuts_of(table, 1) == []


def test_an_append_only_table_is_cut_by_seq_and_row(make_table):
    table = make_table()
    for at in range(4):
        table.append([{"id": n, "name": str(at)} for n in range(1_000)])
    table.compact(full=True)
    for at in range(2):
        table.append([{"id": n, "name": str(at)} for n in range(1_000)])
    kinds = key_types(table.definition)
    cuts = [decode_key(cut, kinds) for cut in cuts_of(table, 1_000)]
    assert cuts and cuts == sorted(cuts) and all(1 <= cut[0] <= 6 for cut in cuts)


def test_positions_that_begin_another_stand_behind_it():
    kinds = [pa.string(), pa.int32()]
    short, long, after = (encode_key(key, kinds) for key in (("a",), ("a", 5), ("b", -1)))
    assert compare_positions(long, short) == compare_positions(short, after) == compare_positions(long, after) == -1
    assert compare_positions(short, long) == 1 and compare_positions(short, short) == 0
