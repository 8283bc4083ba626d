"""Rows of a Spark partition become log files: sorted by key, one change a key, large vnodes in files of their own."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from lane_rows import DEFINITION, VERSIONED, receipts, rows_of, written
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.model.change import HASH, OP, ROW, UPSERT
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys
from strandline.storage.local import LocalStorage
from strandline.tables.merge import vnodes_of
from support import ITEMS, files_below, refused


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_of_ordered_rows_with_one_key_the_last_one_wins_wherever_batches_are_cut(storage, batch_rows):
    lane = LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=True)
    rows = rows_of((1, "a", 1), (1, "b", 1), (1, "c", 1), (2, "d", 1))
    assert written(storage, lane, rows, batch_rows) == [(1, "c", UPSERT), (2, "d", UPSERT)]


def test_without_an_order_equal_keys_are_refused_unless_versions_decide(storage):
    rows = rows_of((1, "a", 1), (1, "b", 2))
    with refused(sl.Invalid, column="id"):
        written(storage, LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False), rows)
    assert files_below(storage.uri) == set()
    lane = LogLane(storage, "log", VERSIONED, UPSERT, is_ordered=False)
    assert written(storage, lane, rows) == [(1, "b", UPSERT)]


@pytest.mark.parametrize("budget_bytes", [1, 1 << 30])
def test_equal_keys_are_found_wherever_memory_ends(storage, budget_bytes):
    rows = rows_of(*((number % 500, str(number), number) for number in range(1000)))
    rows = rows.take(pa.array([*range(1, 1000, 2), *range(0, 1000, 2)]))
    lane = LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False, budget_bytes=budget_bytes)
    with refused(sl.Invalid, column="id"):
        written(storage, lane, rows, 100)
    lane = LogLane(storage, "log", VERSIONED, UPSERT, is_ordered=False, budget_bytes=budget_bytes)
    assert [row[0] for row in written(storage, lane, rows, 100)] == list(range(500))
    assert {row[1] for row in written(storage, lane, rows, 100)} == {str(number) for number in range(500, 1000)}


def test_a_large_vnode_has_files_of_its_own_sorted_by_key(storage):
    definition = TableDef.declare(pa.schema([("id", pa.int64()), ("text", pa.string())]), key=["id"], vnodes=4)
    ids = pa.array(range(3000))
    rows = pa.table([ids, [f"{number:04d}" * 2000 for number in range(3000)], hash_keys([ids])], ["id", "text", HASH])
    files, failure = files_of(receipts(LogLane(storage, "log", definition, UPSERT, is_ordered=False), rows, 100))
    assert failure is None
    assert [list(vnodes_of(file, 4)) for file in files] == [[0], [1], [2], [3]]
    for file in files:
        found = pq.read_table(storage.url(f"log/{file.path}"))["id"].to_pylist()
        assert found == sorted(found)


def test_small_vnodes_share_a_file(storage):
    rows = rows_of(*((number, "a", 1) for number in range(100)))
    files, _ = files_of(receipts(LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False), rows))
    assert [list(vnodes_of(file, 4)) for file in files] == [[0, 1, 2, 3]]


def test_a_null_key_is_refused_by_its_column(storage):
    lane = LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False)
    with refused(sl.Invalid, column="id"):
        written(storage, lane, rows_of((None, "a", 1)))


def test_each_row_may_say_its_own_operation(storage):
    rows = rows_of((1, "a", 1), (2, None, None))
    rows = rows.append_column(OP, pa.array(["delete" if name is None else UPSERT for name in rows["name"].to_pylist()]))
    lane = LogLane(storage, "log", DEFINITION, None, is_ordered=True)
    assert sorted(each[::2] for each in written(storage, lane, rows)) == [(1, UPSERT), (2, "delete")]


def test_rows_without_a_key_are_kept_all(storage):
    lane = LogLane(storage, "log", TableDef.declare(ITEMS, vnodes=4), UPSERT, is_ordered=False)
    rows = rows_of((1, "a", 1), (1, "a", 1)).drop([HASH])
    assert len(written(storage, lane, rows.append_column(ROW, pa.array([0, 1])))) == 2


def test_no_rows_make_no_file(storage):
    lane = LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False)
    assert receipts(lane, rows_of((1, "a", 1)).slice(0, 0)) == []
