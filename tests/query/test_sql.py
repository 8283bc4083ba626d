"""SQL over a lake: right over several tables at once, and safe to take from strangers."""

import threading

import pytest

import strandline as sl
from support import ITEMS, refused

JOIN = "SELECT id, name, owner FROM items JOIN owners USING (id) ORDER BY id"


def test_two_tables_with_a_log_each_are_joined(filled):
    assert filled.sql(JOIN).to_pylist() == [
        {"id": 1, "name": "a", "owner": "x"},
        {"id": 2, "name": "B", "owner": "y"},
    ]


def test_a_join_sees_the_newest_rows_of_each_table_every_time(lake, items, owners):
    """Each statement refreshes the folds of all its tables before it looks at any."""
    for at in range(4):
        items.upsert([{"id": at, "name": f"n{at}"}, {"id": 100, "name": f"n{at}"}])
        owners.upsert([{"id": at, "owner": f"o{at}"}, {"id": 100, "owner": f"o{at}"}])
        found = {row["id"]: (row["name"], row["owner"]) for row in lake.sql(JOIN).to_pylist()}
        assert found == {n: (f"n{n}", f"o{n}") for n in range(at + 1)} | {100: (f"n{at}", f"o{at}")}
        if at == 2:
            owners.compact(full=True)


def test_a_table_joined_with_itself_is_at_one_seq(filled):
    rows = filled.sql("SELECT a.id FROM items a JOIN items b ON a.id = b.id AND a.name = b.name")
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


def test_a_query_that_needs_too_much_memory_is_unavailable(tmp_path):
    lake = sl.Lake(tmp_path, cache_bytes=20 << 20)
    lake.create_table("t", ITEMS, key=["id"]).upsert([{"id": 1}])
    with refused(sl.Unavailable):
        lake.sql("SELECT list(range) FROM range(100000000)")
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]


def test_a_failing_query_leaves_the_next_one_unharmed(filled):
    for _ in range(3):
        with refused(sl.Invalid):
            filled.sql("SELECT CAST(name AS INTEGER) FROM items")
        assert filled.sql(JOIN).num_rows == 2


def test_queries_of_many_threads_see_whole_commits(filled, items, owners):
    """Both tables get the same text in turn; a query may see one ahead of the other by one commit, never more."""
    failures = []
    done = threading.Event()

    def ask():
        try:
            while not done.is_set():
                rows = filled.sql("SELECT name, owner FROM items JOIN owners USING (id) WHERE id >= 1000")
                names, texts = set(rows["name"].to_pylist()), set(rows["owner"].to_pylist())
                assert len(names) <= 1
                assert len(texts) <= 1
                assert rows.num_rows in (0, 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for at in range(15):
        items.upsert([{"id": 1000 + n, "name": str(at)} for n in range(3)])
        owners.upsert([{"id": 1000 + n, "owner": str(at)} for n in range(3)])
        if at % 5 == 4:
            items.compact(full=True)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("statement", ["SELECT CAST(name AS INT) FROM items", "SELECT strptime(name, '%d') FROM items"])
def test_a_value_that_looks_like_a_file_is_no_damage(lake, items, statement):
    items.upsert([{"id": 1, "name": "/data/a.parquet", "qty": 1}])
    with refused(sl.Invalid):
        lake.sql(statement)


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_condition_does_not_fail_on_rows_that_are_superseded(lake, items, is_folded):
    items.upsert([{"id": n, "name": "abc", "qty": (1 << 31) - 1} for n in range(9)])
    if is_folded:
        items.compact(full=True)
    items.upsert([{"id": n, "name": "5", "qty": 5} for n in range(8)])
    items.delete([8])
    for condition in ("CAST(name AS INT) = 5", "qty + 1 = 6", "sqrt(6 - qty) = 1", "regexp_matches('5', name)"):
        assert lake.sql(f"SELECT * FROM items WHERE {condition}").num_rows == 8
    assert items.to_arrow(where="qty + 1 = 6").num_rows == 8
    assert items.to_arrow(where="qty * 2 = 10 AND id = 3").num_rows == 1
