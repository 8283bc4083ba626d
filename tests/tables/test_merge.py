"""Baseline and log as one table: which files a read opens, and which row counts."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from folding import again, fold_vnodes
from strandline.model.change import CAME, FATE, GONE, KEPT, VNODE
from strandline.model.keys import hash_keys, vnode_of
from strandline.model.where import parse
from strandline.tables.merge import duck_sql, needed_columns, vnodes_of
from support import ITEMS, Oracle, by_id, prepare_both, rows_of

DAY = dt.date(2026, 1, 1)


def _text(value):
    return "'" + value.replace("'", "''") + "'"


def candidates(table, where):
    """How many baseline and log files a read with `where` opens."""
    merge = table.merge()
    found = merge.candidates(None if where is None else parse(where, table.schema))
    return len(found.baseline), len(found.log)


@pytest.fixture
def days(make_table):
    """Ten commits of one day each, half of them folded into eight vnodes."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    table = make_table(schema, key=["id"], vnodes=8)
    for at in range(10):
        day = DAY + dt.timedelta(days=at)
        table.upsert([{"id": at * 100 + n, "day": day, "name": f"name-{at}"} for n in range(40)])
        if at == 4:
            table.compact(full=True)
    assert candidates(table, None) == (8, 5)
    return table


@pytest.mark.parametrize(
    ("where", "base", "log"),
    [
        ("day = DATE '2026-01-08'", 0, 1),
        ("day >= '2026-01-09'", 0, 2),
        ("'2026-01-09' <= day", 0, 2),
        ("day BETWEEN '2026-01-09' AND '2026-01-10' AND id > 0", 0, 2),
        ("id >= 900", 0, 1),
        ("id < -1", 0, 0),
        ("name = 'name-7'", 0, 1),
        ("name >= 'name-9'", 0, 1),
        ("(id > 100 AND id < 120)", 8, 0),
        ("id = 101", 1, 0),
        ("id = 905", 0, 1),
        ("id > 900 OR day < '2026-01-01'", 8, 5),
        ("NOT id > 900", 8, 5),
        ("id + 0 = 905", 8, 5),
        ("id > 900 IS NULL", 8, 5),
    ],
)
def test_files_that_cannot_match_are_not_opened(days, where, base, log):
    found_base, found_log = candidates(days, where)
    assert found_base <= base
    assert found_log <= log
    assert days.to_arrow(where=where).num_rows == len(
        [1 for row in days.to_arrow().to_pylist() if _matches(days, where, row)]
    )


def _matches(table, where, row):
    """DuckDB itself, on one row, without any file to skip."""
    import duckdb

    one = pa.Table.from_pylist([row], schema=table.schema)  # noqa: F841 - DuckDB finds it by name
    return bool(duckdb.sql(f"SELECT * FROM one WHERE {where}").fetchall())


def test_a_skipped_file_is_really_not_opened(days):
    assert days.to_arrow().num_rows == 400, "the fold is in memory now"
    for _, file in days.merge().log_files():
        if file.stats["maxValues"]["day"] < "2026-01-09":
            days.log.storage.delete([f"{days.log.folder}/{file.path}"])
    days.log.storage.delete(f"{days.baseline.folder}/{file.path}" for file in days.merge().baseline.files())
    assert days.to_arrow(where="day >= '2026-01-09'").num_rows == 80
    assert days.to_arrow(where="id = 905").num_rows == 1


def test_a_key_of_a_small_type_is_looked_up_by_any_number(make_table):
    table = make_table(pa.schema([("id", pa.int8()), ("s", pa.string())]), key=["id", "s"], vnodes=4)
    table.upsert([{"id": 5, "s": "x"}])
    table.compact(full=True)
    table.upsert([{"id": 6, "s": "x"}])
    assert table.to_arrow(where="id = 5 AND s = 'x'").num_rows == 1
    assert table.to_arrow(where="s = 'x' AND 6 = id").num_rows == 1
    assert table.to_arrow(where="id = 300 AND s = 'x'").num_rows == 0
    assert table.to_arrow(where="id = 5 AND id = 6 AND s = 'x'").num_rows == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.date32(), pa.int16()])
def test_one_key_is_found_wherever_it_lies(make_table, kind):
    values = {
        pa.string(): ["", "a", "ä'x", "1"],
        pa.date32(): [DAY + dt.timedelta(days=n) for n in range(4)],
        pa.int16(): [-5, 0, 1, 32767],
    }[kind]
    table = make_table(pa.schema([("k", kind), ("v", pa.int64())]), key=["k"], vnodes=16)
    table.upsert([{"k": value, "v": 1} for value in values[:3]])
    table.compact(full=True)
    table.upsert([{"k": value, "v": 2} for value in values[2:]])
    table.delete([values[1]])
    for value, expected in zip(values, [[1], [], [2], [2]], strict=True):
        literal = str(value) if isinstance(value, int) else _text(str(value))
        assert table.to_arrow(where=f"k = {literal}", columns=["v"])["v"].to_pylist() == expected
        assert table.to_arrow(where=f"k = {literal} AND v = 2", columns=["v"]).num_rows == expected.count(2)


def test_what_is_read_are_the_columns_asked_for_filtered_by_and_deciding(make_table):
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    plain = make_table(schema, key=["id"]).definition
    versioned = make_table(schema, key=["id"], version="v").definition
    assert needed_columns(plain, ["a"], None) == ["a", "id"]
    assert needed_columns(versioned, ["a"], parse("b = 'x'", schema)) == ["a", "b", "id", "v"]


def test_a_part_reads_the_files_of_its_vnodes_alone(days):
    whole = days.merge()
    one = whole.part([3])
    assert {file.partition[VNODE] for file in one.base_files()} == {"3"}
    assert len(whole.base_files()) == 8
    for _, file in one.log_files():
        assert 3 in vnodes_of(file, 8)
    assert whole.part(range(8)).base_files() == whole.base_files()


def test_the_hashes_of_a_log_file_say_which_vnodes_it_may_have(items):
    items.upsert([{"id": 1}])
    ((_, file),) = items.log.refresh().by_seq
    (vnode,) = vnodes_of(file, 4)
    assert vnode == vnode_of(hash_keys([pa.chunked_array([[1]])])[0].as_py(), 4)


def test_one_commit_alone_needs_no_fold(items):
    items.upsert([{"id": 1}, {"id": 2}])
    assert items.merge().is_first_load and items.fold_name(items.merge()) is None
    items.upsert([{"id": 1}])
    assert not items.merge().is_first_load and items.fold_name(items.merge())
    items.compact(full=True)
    items.upsert([{"id": 3}])
    assert not items.merge().is_first_load


def test_the_files_that_decide_are_those_of_the_log_and_with_versions_of_the_baseline_too(make_table):
    for options, parts in (({}, {"log"}), ({"version": "qty"}, {"log", "baseline"})):
        table = make_table(key=["id"], vnodes=1, **options)
        table.upsert([{"id": 1, "qty": 1}])
        table.compact(full=True)
        assert table.merge().deciding_files() == {}
        table.upsert([{"id": 1, "qty": 2}])
        assert {path.split("/")[-2] for path in table.merge().deciding_files()} == parts


def test_every_row_has_a_fate_and_only_the_rows_of_the_table_stay(items):
    items.upsert([{"id": at, "name": "old"} for at in range(6)])
    items.compact(full=True)
    items.upsert([{"id": at, "name": "new"} for at in (0, 7)])
    items.delete([1])
    merge = items.merge()
    with items.lock:
        sql = duck_sql(merge, items.fold_name(merge), ["id"], fates=True)
        rows = items.duck.table(sql).to_pylist()
    fates = {(row["id"], row[FATE]) for row in rows}
    assert fates == {(0, GONE), (1, GONE), (2, KEPT), (3, KEPT), (4, KEPT), (5, KEPT), (0, CAME), (7, CAME)}
    assert merge.row_bytes > 0 and merge.batch_rows(most=3) == 3


def base_of(table, at=None):
    """The base commit, and the keys in the fold of the changes after it."""
    merge = table.merge(at)
    with table.lock:
        name = table.fold_name(merge)
        keys = table.duck.table(f"SELECT id FROM {name}")["id"].to_pylist() if name else []
    return merge.base_seq, sorted(keys)


def test_the_first_commit_after_an_empty_baseline_needs_no_fold_of_its_keys(items):
    assert base_of(items) == (None, [])
    items.upsert([{"id": n, "name": "a"} for n in range(20)])
    assert base_of(items) == (1, [])
    items.upsert([{"id": 3, "name": "b"}])
    items.delete([4, 99])
    assert base_of(items) == (1, [3, 4, 99])
    assert items.merge().marks == (1,) * 4
    assert items.to_arrow().num_rows == 19
    assert items.to_arrow(where="name = 'b'")["id"].to_pylist() == [3]
    for id_, names in ((2, ["a"]), (3, ["b"]), (4, []), (99, [])):
        assert items.to_arrow(where=f"id = {id_}")["name"].to_pylist() == names
    assert base_of(items, at=0) == (None, [])
    assert [base_of(items, at=seq) for seq in (1, 2, 3)] == [(1, []), (1, [3]), (1, [3, 4, 99])]
    items.compact(full=True)
    items.upsert([{"id": 5, "name": "c"}])
    assert base_of(items) == (None, [5])
    assert base_of(items, at=3) == (None, [])


def test_a_table_whose_rows_are_all_folded_away_has_a_base_commit_again(items):
    items.upsert([{"id": 1}])
    items.delete([1])
    items.compact(full=True)
    items.upsert([{"id": n} for n in range(9)])
    items.upsert([{"id": 2}])
    assert base_of(items) == (3, [2])
    assert items.to_arrow().num_rows == 9


def test_a_delete_in_the_base_commit_is_no_row(items):
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    files = items.log.write(prepare_both(rows, [4, 5], items.definition), items.definition)
    items.log.commit(files, operation="BOTH")
    assert base_of(items) == (1, [])
    assert rows_of(items.to_arrow(columns=["id"])) == [(1,), (2,), (3,)]
    assert items.to_arrow(where="id = 4").num_rows == 0
    items.upsert([{"id": 4, "name": "d"}, {"id": 2, "name": "d"}])
    assert rows_of(items.to_arrow(columns=["id"])) == [(1,), (2,), (3,), (4,)]


def test_vnodes_that_are_folded_already_take_nothing_from_the_base_commit(items):
    items.upsert([{"id": n, "name": "a"} for n in range(40)])
    items.upsert([{"id": n, "name": "b"} for n in range(0, 40, 3)])
    items.delete([n for n in range(0, 40, 7)])
    expected = rows_of(items.to_arrow())
    for folded in ([1], [0, 3]):
        fold_vnodes(items, folded)
        assert items.merge().base_seq == 1
        for table in (items, again(items)):
            assert rows_of(table.to_arrow()) == expected
            assert [table.to_arrow(where=f"id = {n}").num_rows for n in range(40)] == [n % 7 > 0 for n in range(40)]
    fold_vnodes(items, [2])
    assert items.merge().base_seq is None


def test_a_later_commit_over_rows_of_the_baseline_is_no_base(items):
    items.upsert([{"id": n} for n in range(40)])
    fold_vnodes(items, [0, 1, 2, 3])
    items.upsert([{"id": n} for n in range(40)])
    fold_vnodes(items, [2])
    assert items.merge().base_seq is None
    assert items.to_arrow().num_rows == 40


def test_a_table_without_a_key_has_no_base_commit(make_table):
    table = make_table()
    table.append([{"id": 1}])
    assert table.merge().base_seq is None


STEP = st.tuples(
    st.sampled_from(["upsert", "upsert", "delete", "both", "fold", "fold one"]),
    st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True),
    st.integers(0, 3),
)


@pytest.mark.parametrize("version", [None, "qty"])
@settings(max_examples=60)
@given(st.lists(STEP, max_size=9))
def test_a_read_at_every_seq_gives_the_oracles_rows_whatever_is_folded(tmp_path_factory, version, steps):
    lake = sl.Lake(tmp_path_factory.mktemp("histories"))
    table = lake.create_table("t", ITEMS, key=["id"], version=version, vnodes=4)
    oracle, history = Oracle(["id"], version), [[]]
    for at, (verb, ids, number) in enumerate(steps):
        if verb.startswith("fold"):
            fold_vnodes(table, [number] if verb == "fold one" else range(4))
            continue
        gone = {"upsert": [], "both": ids[1::2], "delete": ids}[verb]
        rows = [{"id": n, "name": str(at), "qty": (n + number) % 4} for n in ids if n not in gone]
        both = prepare_both(pa.Table.from_pylist(rows, schema=ITEMS), gone, table.definition)
        table.log.commit(table.log.write(both, table.definition), operation="BOTH")
        oracle.delete([{"id": n} for n in gone])
        oracle.upsert(rows)
        history.append(oracle.copy())
        assert by_id(table) == {row["id"]: row["name"] for row in history[-1]}
    for seq in reversed(range(len(history))):
        expected = {row["id"]: row["name"] for row in history[seq]}
        assert by_id(table, at=seq) == expected
        found = table.to_arrow(at=seq, where="id = 3", columns=["id", "name"]).to_pylist()
        assert {row["id"]: row["name"] for row in found} == {n: name for n, name in expected.items() if n == 3}
