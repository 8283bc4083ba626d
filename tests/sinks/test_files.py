"""What sinks of files share: a lane that leaves whole files or nothing, and the place as a value."""

import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from deliveries import (
    FIRST,
    PRODUCER,
    ROWS,
    batches_of,
    changes,
    deliver,
    run_lanes,
)
from strandline.sinks.contract import Result
from strandline.sinks.files import FileLane, clear_unfinished, collect_files, translate_errors
from strandline.sinks.parquet import ParquetSink
from strandline.storage.local import LocalStorage
from support import files_below, refused


@pytest.fixture
def place(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def delivery(place):
    return ParquetSink(place).open(PRODUCER)


def held(delivery):
    """The changes that anyone who reads all files sees."""
    paths = [info.path for info in delivery.storage.list("data")]
    found = []
    for path in paths:
        with delivery.storage.input(path) as stream:
            found += pq.read_table(stream).to_pylist()
    return found


def test_the_same_rows_give_the_same_files_wherever_and_whenever(tmp_path):
    found = []
    for name in ("one", "two"):
        delivery = ParquetSink(tmp_path / name).open(PRODUCER)
        deliver(delivery, FIRST, ROWS[:12], ROWS[12:])
        data = tmp_path / name / "data"
        found.append({path: (data / path).read_bytes() for path in files_below(data)})
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_a_lane_that_fails_says_so_and_leaves_nothing(delivery, place):
    def broken():
        yield from batches_of(FIRST, ROWS)
        raise OSError("the disk is gone")

    (result,) = delivery.lane(FIRST)(broken())
    assert isinstance(result.error, sl.Unavailable)
    assert result.files == ()
    assert not place.exists() or files_below(place) == set()
    with refused(sl.Unavailable):
        delivery.finish(FIRST, [*run_lanes(delivery, FIRST, [ROWS]), result])
    assert not delivery.is_delivered(FIRST)
    assert held(delivery) == []


def test_a_lane_travels_to_other_processes(delivery):
    lane = pickle.loads(pickle.dumps(delivery.lane(FIRST)))
    results = pickle.loads(pickle.dumps(list(lane(iter(batches_of(FIRST, ROWS))))))
    delivery.finish(FIRST, results)
    assert changes(held(delivery)) == changes(ROWS)


def test_a_secret_is_kept_as_a_reference_only(monkeypatch):
    options = {"access_key_id": "key", "secret_access_key": "hush", "session_token": "file:/run/token"}
    sink = ParquetSink("s3://bucket/archive/", options=options)
    kept = sink.to_dict()
    assert kept["options"] == {"access_key_id": "key", "secret_access_key": "given", "session_token": "file:/run/token"}
    assert "hush" not in repr(sink) + sink.destination
    assert {sink, replace(sink)} == {sink}
    named = {"aws_web_identity_token_file": "/run/token"}
    assert ParquetSink("s3://bucket/archive", options=named).to_dict()["options"] == named
    with refused():
        ParquetSink.from_dict(kept).open(PRODUCER)
    monkeypatch.setenv("ARCHIVE_SECRET", "hush")
    by_name = ParquetSink("s3://bucket/archive", options={"secret_access_key": "env:ARCHIVE_SECRET"})
    assert by_name.to_dict()["options"] == {"secret_access_key": "env:ARCHIVE_SECRET"}
    assert by_name.open(PRODUCER).storage.options == {"secret_access_key": "hush"}
    monkeypatch.delenv("ARCHIVE_SECRET")
    with refused():
        by_name.open(PRODUCER)


@pytest.mark.parametrize("uri", ["", "ftp://host/place", "s3://", "s3://bucket/a*", 7])
def test_an_address_that_is_none_is_refused_when_it_is_declared(uri):
    with refused():
        ParquetSink(uri)


def test_options_for_a_folder_and_a_file_for_a_folder_are_refused(tmp_path):
    with refused():
        ParquetSink(tmp_path, options={"region": "x"})
    (tmp_path / "file").write_text("")
    with refused():
        ParquetSink(tmp_path / "file")


def lane_to(storage, batch=FIRST, **options):
    return FileLane(storage, batch, "data", "p", **{"is_staged": False, **options})


def test_files_lie_where_nothing_looks_or_are_staged(tmp_path):
    storage = LocalStorage(str(tmp_path))
    (direct,) = lane_to(storage)(iter(batches_of(FIRST, ROWS)))
    assert {file.path for file, _ in direct.files} == {info.path for info in storage.list("data")}
    (staged,) = lane_to(storage, is_staged=True)(iter(batches_of(FIRST, ROWS)))
    assert not any(storage.exists(file.path) for file, _ in staged.files)
    storage.publish([each for _, each in staged.files])
    assert all(storage.exists(file.path) for file, _ in staged.files)
    assert direct.rows == staged.rows == len(ROWS) and direct.bytes == sum(file.size for file, _ in direct.files)


def test_a_file_named_by_its_content_has_one_name_for_the_same_rows(tmp_path):
    storage = LocalStorage(str(tmp_path))
    lane = lane_to(storage, is_staged=True)
    names = [
        {file.path for file, _ in result.files} for _ in range(2) for result in lane(iter(batches_of(FIRST, ROWS)))
    ]
    assert names[0] == names[1]
    (other,) = lane(iter(batches_of(FIRST, ROWS[:3])))
    assert {file.path for file, _ in other.files} != names[0]


def test_a_value_that_the_destination_requires_or_cannot_hold_is_named_by_its_column(tmp_path):
    storage = LocalStorage(str(tmp_path))
    columns = FIRST.file_schema
    for at, field in enumerate(columns):
        if field.name == columns.names[-1]:
            strict = columns.set(at, field.with_nullable(False))
            narrow = columns.set(at, pa.field(field.name, pa.int8()))
    gone = [row for row in ROWS if row["_op"] == "delete"]
    for schema, rows in ((strict, gone), (narrow, ROWS)):
        (result,) = lane_to(storage, schema=schema)(iter(batches_of(FIRST, rows)))
        assert isinstance(result.error, sl.Invalid), result
        assert result.error.fields["column"] == columns.names[-1]
    assert files_below(tmp_path) == set()


def test_half_a_batch_is_not_claimed():
    with refused(sl.Unavailable):
        collect_files([Result(rows=1), Result(error=sl.Unavailable("gone"))])
    assert collect_files([Result(), Result()]) == []


def test_what_a_store_says_is_told_with_the_place(tmp_path):
    storage = LocalStorage(str(tmp_path))
    with refused(sl.NotFound, path=str(tmp_path)), translate_errors(storage):
        raise FileNotFoundError("no bucket")
    with refused(sl.Unavailable, path=str(tmp_path)), translate_errors(storage):
        raise OSError("reset by peer")


def test_what_an_attempt_left_unfinished_is_removed(tmp_path):
    storage = LocalStorage(str(tmp_path))
    list(lane_to(storage, is_staged=True)(iter(batches_of(FIRST, ROWS))))
    assert list(storage.temporaries("data"))
    clear_unfinished(storage, "data")
    assert list(storage.temporaries("data")) == []
