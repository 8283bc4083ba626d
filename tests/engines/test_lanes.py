"""Lanes: rows become files, files become rows, and failures come back as receipts."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from lane_rows import DEFINITION, receipts, rows_of
from strandline.engines.lanes import (
    CheckLane,
    ExportLane,
    ReadLane,
    files_of,
    receipt,
    staged_of,
)
from strandline.engines.log_lane import LogLane
from strandline.model.change import UPSERT, VNODE
from strandline.storage.contract import StagedFile
from strandline.storage.local import LocalStorage
from strandline.storage.snapshot import DataFile
from support import ITEMS, refused


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path))


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
