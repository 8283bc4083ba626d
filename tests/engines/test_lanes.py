"""Lanes: rows become files, files become rows, and failures come back as receipts."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.engines.lanes import (
    CheckLane,
    ExportLane,
    ReadLane,
    files_of,
    receipt,
    staged_of,
)
from strandline.engines.log_lane import LogLane
from strandline.model.change import HASH, OP, ROW, UPSERT, VNODE
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys
from strandline.storage.contract import StagedFile
from strandline.storage.local import LocalStorage
from strandline.storage.snapshot import DataFile
from strandline.tables.merge import vnodes_of
from support import ITEMS, files_below, refused

DEFINITION = TableDef.declare(ITEMS, key=["id"], vnodes=4)
VERSIONED = TableDef.declare(ITEMS, key=["id"], vnodes=4, version="qty")


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


def rows_of(*triples):
    """Rows as Spark sorts them for a log: by hash and key."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*triples, strict=True), ITEMS, strict=True)]
    table = pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in ITEMS]))
    hashes = hash_keys([table.column("id")]) if table.column("id").null_count == 0 else pa.array([0] * len(table))
    return table.append_column(HASH, hashes).sort_by([(HASH, "ascending")])


def receipts(lane, table, batch_rows=None):
    return [row for batch in lane(iter(table.to_batches(batch_rows))) for row in batch.to_pylist()]


def written(storage, lane, table, batch_rows=None):
    files, failure = files_of(receipts(lane, table, batch_rows))
    if failure is not None:
        raise failure
    rows = [row for file in files for row in pq.read_table(storage.url(f"log/{file.path}")).to_pylist()]
    return sorted((row["id"], row["name"], row[OP]) for row in rows)


def test_a_receipt_says_what_was_written_staged_or_wrong():
    file = DataFile("a.parquet", 7, {VNODE: "3"}, 0, '{"numRecords": 2}', 99, 5)
    staged = StagedFile("a", "b", 1, ("tag",))
    first = sl.Invalid("no", column="x")
    rows = [
        receipt(file, staged=staged),
        receipt(error=first),
        receipt(error=sl.Internal("later")),
        receipt(counts="[]"),
    ]
    found, stage, failure = staged_of(row for batch in rows for row in batch.to_pylist())
    assert (found, stage) == ([file], [staged])
    assert (type(failure), failure.fields) == (sl.Invalid, {"column": "x"})


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


@pytest.mark.parametrize(
    ("error", "kind"),
    [(sl.Corrupt("torn"), sl.Corrupt), (OSError("disk"), sl.Unavailable), (KeyError("oops"), sl.Internal)],
    ids=repr,
)
def test_whatever_fails_in_a_lane_comes_back_as_a_receipt(storage, error, kind):
    def failing():
        yield rows_of((1, "a", 1)).to_batches()[0]
        raise error

    lane = pickle.loads(pickle.dumps(LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=False)))
    files, failure = files_of(row for batch in lane(failing()) for row in batch.to_pylist())
    assert files == [] and type(failure) is kind


def test_an_export_is_invisible_until_its_files_are_published(storage):
    lane = ExportLane(storage, "run", ITEMS, ())
    table = pa.table({"id": [1, 2], "name": ["a", "b"], "qty": [1, 2]})  # qty is cast to the schema
    files, staged, failure = staged_of(receipts(lane, table))
    assert failure is None and list(storage.list("")) == []
    storage.publish(staged)
    (file,) = files
    assert file.path.startswith("run-")
    assert pq.read_table(storage.url(file.path)).schema.field("qty").type == pa.int32()


@pytest.fixture
def stored(storage):
    """A file of an older schema, and what a commit says of it."""
    lane = LogLane(storage, "log", DEFINITION, UPSERT, is_ordered=True)
    (file,), _ = files_of(receipts(lane, rows_of((1, "a", 1), (2, "b", 2))))
    return f"log/{file.path}", file


def read(lane, path):
    return [row for batch in lane(iter(named(path))) for row in batch.to_pylist()]


def named(path):
    return pa.table({"path": [path], "schema_id": [0], "number": [9]}).to_batches()


def test_a_file_is_read_in_the_columns_of_the_newest_schema_with_its_number(storage, stored):
    newest = pa.schema([("id", pa.int64()), ("qty", pa.int64()), ("more", pa.string())])
    lane = ReadLane(storage, (ITEMS, newest), ("id", "qty", "more"), "_seq", {stored[0]: stored[1]})
    assert sorted(map(str, read(lane, stored[0]))) == [
        "{'id': 1, 'qty': 1, 'more': None, '_seq': 9}",
        "{'id': 2, 'qty': 2, 'more': None, '_seq': 9}",
    ]
    coded = [row for batch in lane.read_coded(iter(named(stored[0]))) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in coded) == [1, 2] and {row["_seq"] for row in coded} == {9}


def test_a_file_that_is_missing_or_damaged_is_corrupt_by_its_path(storage, stored, tmp_path):
    path, file = stored
    checked = CheckLane(storage, {path: file}, None)
    assert read(checked, path) == []
    data = bytearray((tmp_path / path).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / path).write_bytes(data)
    (found,) = read(checked, path)
    assert found["path"] == path and found["fault"]
    with refused(sl.Corrupt, path=path):
        read(ReadLane(storage, (ITEMS,), ("id",), None, {path: file}), path)
    (tmp_path / path).unlink()
    with refused(sl.Corrupt, path=path):
        read(ReadLane(storage, (ITEMS,), ("id",), None), path)
