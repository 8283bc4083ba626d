"""Batches of changes: one seq each, one change a key, once."""

import threading

import pyarrow as pa
import pytest

import strandline as sl
from strandline.tables.log import prepare
from support import ITEMS, by_id, data_files, refused


def test_seqs_rise_by_commit_and_a_batch_is_one_commit(items):
    assert items.head == 0
    commits = [items.upsert([{"id": at}, {"id": at + 1}]) for at in range(5)]
    assert [commit.seq for commit in commits] == [1, 2, 3, 4, 5]
    assert {commit.rows for commit in commits} == {2}
    assert items.delete([1]) == sl.Commit(6, 1)
    assert items.head == 6


def test_a_batch_is_sorted_by_hash_and_key_with_one_change_a_key(items):
    rows = pa.table({"id": [5, 1, 5, 3, 1], "name": list("abcde")})
    changes = prepare(rows, items.definition, "upsert")
    hashes = changes["_hash"].to_pylist()
    assert hashes == sorted(hashes)
    assert dict(zip(changes["id"].to_pylist(), changes["name"].to_pylist(), strict=True)) == {5: "c", 3: "d", 1: "e"}


def test_a_token_is_applied_once_whatever_comes_between(items):
    first = items.upsert([{"id": 1, "name": "a"}], token="t")
    items.upsert([{"id": 1, "name": "b"}])
    files = data_files(items)
    again = items.upsert([{"id": 1, "name": "a"}], token="t")
    assert again == sl.Commit(first.seq, first.rows, is_replay=True)
    assert by_id(items) == {1: "b"}
    assert items.head == 2
    assert data_files(items) == files, "a replay leaves no file"


def test_a_token_counts_for_every_verb_and_survives_folding_and_reopening(tmp_path, lake, items):
    items.upsert([{"id": 1, "name": "a"}], token="t")
    items.delete([1], token="d")
    items.compact(full=True)
    fresh = sl.Lake(lake.storage.uri).table("items")
    assert fresh.delete([1], token="t").is_replay
    assert fresh.upsert([{"id": 1, "name": "x"}], token="d").is_replay
    assert by_id(fresh) == {}
    assert not lake.create_table("other", ITEMS, key=["id"]).upsert([{"id": 1}], token="t").is_replay


def test_one_token_from_many_threads_lands_once(lake):
    table = lake.create_table("plain", ITEMS)
    handles = [sl.Lake(lake.storage.uri).table("plain") for _ in range(3)] + [table]
    commits = []

    def send(handle):
        commits.append(handle.append([{"id": 7}], token="once"))

    threads = [threading.Thread(target=send, args=[handles[at % 4]]) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({commit.seq for commit in commits}) == 1
    assert [commit.is_replay for commit in commits].count(False) == 1
    assert table.to_arrow().num_rows == 1


def test_a_dropped_tables_writer_is_refused_and_leaves_nothing(lake, items):
    items.upsert([{"id": 1}])
    stale = sl.Lake(lake.storage.uri).table("items")
    lake.drop("items")
    files = data_files(items)
    for call in (
        lambda: stale.upsert([{"id": 2}]),
        lambda: stale.delete([1]),
        lambda: stale.evolve(pa.schema([("more", pa.string())])),
    ):
        with refused(sl.NotFound):
            call()
    assert data_files(items) == files, "files of a refused write are gone again"


def test_changes_come_in_seq_order_with_their_op(items):
    items.upsert([{"id": 2, "name": "b"}, {"id": 1, "name": "a"}])
    items.delete([2])
    items.compact(full=True)
    items.upsert([{"id": 2, "name": "c"}])
    changes = items.changes().to_pylist()
    assert [(c["_seq"], c["_op"], c["id"], c["name"]) for c in changes] == [
        (1, "upsert", 1, "a"),
        (1, "upsert", 2, "b"),
        (2, "delete", 2, None),
        (3, "upsert", 2, "c"),
    ]
    assert items.changes(1, 2).num_rows == 1
    assert items.changes(3).num_rows == 0
    assert items.changes(0, 1)["_seq"].to_pylist() == [1, 1]


@pytest.mark.parametrize("bounds", [("x", None), (0, "x"), (None, 1), (1.5, 2), (True, 2)])
def test_bounds_of_changes_are_seqs(items, bounds):
    items.upsert([{"id": 1}])
    with refused(sl.Invalid):
        items.changes(*bounds)


def test_history_names_every_commit(lake):
    table = lake.create_table("t", ITEMS, key=["id"])
    table.upsert([{"id": 1}, {"id": 2}])
    table.delete([1])
    table.evolve(pa.schema([("more", pa.string())]))
    entries = table.history()
    assert [(e.seq, e.operation, e.rows) for e in entries] == [
        (0, "CREATE TABLE", 0),
        (1, "UPSERT", 2),
        (2, "DELETE", 1),
        (3, "EVOLVE", 0),
    ]
    assert [e.at for e in entries] == sorted(e.at for e in entries)


def test_files_cleared_away_before_their_commit_are_noticed_and_nothing_is_acknowledged(items):
    definition = items.definition
    changes = prepare(pa.table({"id": [1], "name": ["a"], "qty": pa.array([1], pa.int32())}), definition, "upsert")
    files = items.log.write(changes, definition)
    # Another process takes them for leftovers, because they are older than its grace time.
    other = sl.Lake(items.log.storage.uri).table("items")
    assert other.vacuum(grace=0, keep=0).deleted_files == 1
    with refused(sl.Conflict):
        items.log.commit(files, operation="UPSERT")
    assert items.to_arrow().num_rows == 0
