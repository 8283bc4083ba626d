"""A write is one commit of all its tasks, or nothing: what `upsert` would have written."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import strandline as sl
from shapes import OPTIONS, SCHEMA, plain, row
from sourcing import make_source, run_task, write_rows
from strandline.model.keys import shift_for
from strandline.model.types import conform, storage_schema
from strandline.spark_source import batch_writer as writers
from strandline.spark_source import task_rows
from support import claimed_files, data_files, files_below, nothing_written, python, refused


def writer(table, rows, **options):
    return make_source(table, **options).writer(from_arrow_schema(rows.schema), False)


def write(table, *tasks, **options):
    write_rows(writer(table, tasks[0], **options), tasks)


def items_table(ids, **columns):
    ids = list(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{n}" for n in ids], **columns})


@pytest.mark.parametrize("shape", OPTIONS)
def test_a_write_equals_an_upsert_for_all_types(lake, shape):
    given_rows = pa.Table.from_pylist([row(n) for n in range(40)], SCHEMA)
    arrow = conform(given_rows, storage_schema(SCHEMA))
    one, two = (lake.create_table(name, SCHEMA, **OPTIONS[shape]) for name in ("one", "two"))
    (one.upsert if one.definition.is_keyed else one.append)(given_rows)
    write(two, arrow.slice(0, 15), arrow.slice(15), arrow.slice(0, 0))
    assert plain(two.to_arrow()) == plain(one.to_arrow())
    assert two.head == 1
    two.compact(full=True)
    assert plain(two.to_arrow()) == plain(one.to_arrow())


def test_a_task_lays_its_rows_by_vnode_and_key(items):
    rows = items_table((n * 7919) % 5000 for n in range(5000))
    written = run_task(writer(items, rows), rows, rows=700)
    assert written.failure is None and len(written.files) == 1
    write(items, rows)
    assert items.to_arrow().sort_by("id").column("id").to_pylist() == list(range(5000))
    (file,) = [file for _, file in items.log.refresh().by_seq]
    found = pq.read_table(f"{items.log.storage.uri}/{items.log.folder}/{file.path}", columns=["_hash", "id"])
    places = [(row["_hash"] >> shift_for(4), row["id"]) for row in found.to_pylist()]
    assert places == sorted(places)


def test_two_rows_of_one_key_never_land(items):
    items.upsert([{"id": 1, "name": "before"}])
    for tasks in ([items_table([5, 6, 5])], [items_table([5, 6]), items_table([7, 5])]):
        with nothing_written(items), refused(sl.Invalid, column="id"):
            write(items, *tasks)


@given(st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=4))
def test_a_write_lands_when_no_key_comes_twice(make_table, tasks):
    table = make_table(key=["id"], vnodes=4)
    flat = [n for task in tasks for n in task]
    if len(set(flat)) == len(flat):
        write(table, *map(items_table, tasks))
        assert sorted(table.to_arrow().column("id").to_pylist()) == sorted(flat)
    else:
        with refused(sl.Invalid, column="id"):
            write(table, *map(items_table, tasks))
        assert table.head == 0


def test_order_by_chooses_among_the_rows_of_a_task(items, monkeypatch):
    monkeypatch.setattr(task_rows, "HELD_BYTES", 0)
    rows = items_table([1, 2, 1, 1], _seq=pa.array([3, 1, 9, None], pa.int64())).set_column(1, "name", [list("abcd")])
    write_rows(writer(items, rows, orderBy="_seq"), [rows], rows=1)
    assert {each["id"]: each["name"] for each in items.to_arrow().to_pylist()} == {1: "c", 2: "b"}
    with refused(sl.Invalid, column="_seq"):
        writer(items, rows)


def test_a_row_may_say_that_it_is_a_delete(items):
    items.upsert([{"id": n, "name": f"n{n}"} for n in range(5)])
    rows = pa.table({"id": [1, 2, 9], "name": [None, "new", "more"], "_op": ["delete", "upsert", "upsert"]})
    write(items, rows)
    assert items.to_arrow().sort_by("id").column("name").to_pylist() == ["n0", "new", "n3", "n4", "more"]
    assert items.changes(after=1).sort_by("id").column("_op").to_pylist() == ["delete", "upsert", "upsert"]
    for ops in (["remove", "upsert", "upsert"], [None, "upsert", "upsert"]):
        with nothing_written(items), refused(sl.Invalid, column="_op"):
            write(items, rows.set_column(2, "_op", [ops]))
    keys = pa.table({"id": pa.array([0, 2], pa.int64()), "_op": ["delete", "delete"]})
    write(items, keys)
    assert items.count() == 3


def test_the_checks_of_an_upsert_hold(items, lake):
    items.upsert([{"id": 1, "name": "kept"}])
    null_key = pa.table({"id": pa.array([None, 2], pa.int64()), "name": ["a", "b"]})
    bad_time = lake.create_table("times", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]), key=["id"])
    with nothing_written(items), refused(sl.Invalid, column="id"):
        write(items, null_key)
    with nothing_written(items), refused(sl.Invalid, column="id"):
        write(items, null_key.append_column("_op", [["upsert", "upsert"]]))
    with nothing_written(items), refused(sl.Invalid, column="name"):
        write(items, items_table([1]).select(["id"]))
    write(items, items_table([2]).select(["id"]), missing="null")
    late = pa.table({"id": [1], "at": pa.array([-(2**63) + 5], pa.timestamp("us"))})
    for rows in (late, late.append_column("_op", [["upsert"]])):
        with refused(sl.Invalid, column="at"):
            write(bad_time, rows)
    for wrong in ({"id": ["1"]}, {"id": [1], "other": [1]}):
        with refused(sl.Invalid):
            writer(items, pa.table(wrong))
    for options in ({"missing": "keep"}, {"foo": "1"}, {"orderBy": "nope"}):
        with refused(sl.Invalid):
            writer(items, items_table([1]), **options)
    with refused(sl.Invalid):
        make_source(items).writer(from_arrow_schema(items_table([1]).schema), True)


def test_a_token_makes_a_repeated_write_safe(items):
    for _ in range(2):
        write(items, items_table([1]), items_table([2]), token="a")
    assert items.head == 1
    assert (
        len([path for path in files_below(items.log.storage.uri) if "/log/" in path and path.endswith("parquet")]) == 2
    )


def test_failed_and_repeated_tasks_leave_nothing(items):
    rows = [items_table(range(0, 9)), items_table(range(9, 20))]
    work = writer(items, rows[0])
    run_task(work, rows[0])  # a task that ran twice: speculation, or a lost executor
    with nothing_written(items):
        work.abort([run_task(work, rows[0]), None])
    write_rows(work, rows)
    assert items.count() == 20 and items.head == 1
    # Every task has ended, so a commit was tried: the files may count.
    work.abort([run_task(work, rows[0])])
    assert items.count() == 20
    items.vacuum(grace=0)
    assert items.count() == 20


def test_a_vacuum_before_the_commit_is_noticed(items, monkeypatch):
    work = writer(items, items_table([1]))
    message = run_task(work, items_table([1]))
    items.vacuum(grace=0)
    monkeypatch.setattr(writers, "QUIET_S", -1e9)
    with refused(sl.Conflict, table="items"):
        work.commit([message])
    message = run_task(work, items_table([1]))
    items.vacuum(grace=0)
    work.commit([message])
    assert items.count() == 1 and not items.pins.all()


def test_a_batch_of_a_stream_lands_once(items, monkeypatch):
    class Task:
        query = "a"

        @staticmethod
        def get():
            return Task()

        def getLocalProperty(self, name):
            return self.query if name == "sql.streaming.queryId" else None

        def partitionId(self):
            return 0

    monkeypatch.setattr(writers, "TaskContext", Task)

    def batch(number, *tasks):
        source = make_source(items)
        write_rows(source.streamWriter(from_arrow_schema(tasks[0].schema), False), tasks, number)

    batch(0, items_table([1]), items_table([2]))
    batch(0, items_table([1]), items_table([2]))
    batch(1, items_table([1]))
    batch(0, items_table([2]))
    batch(2, items_table([]))
    assert items.head == 2
    monkeypatch.setattr(Task, "query", "b")
    batch(0, items_table([7]))
    assert items.head == 3
    late = make_source(items).streamWriter(from_arrow_schema(items_table([8]).schema), False)
    message = run_task(late, items_table([8]))
    batch(1, items_table([9]))
    late.commit([message], 1)
    assert items.head == 4
    with refused(sl.Invalid):
        make_source(items).streamWriter(from_arrow_schema(items_table([8]).schema), True)
    monkeypatch.setattr(Task, "query", None)
    with refused(sl.Internal):
        batch(5, items_table([1]))


FLOATS = {"nan": float("nan"), "inf": float("inf"), "one": 1.0, "zero": -0.0, "low": float("-inf"), "null": None}


@pytest.mark.parametrize("held_bytes", [0, 1 << 30])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_order_by_takes_nan_as_the_largest_and_null_as_the_smallest(items, monkeypatch, held_bytes, kind):
    monkeypatch.setattr(task_rows, "HELD_BYTES", held_bytes)
    # Each key has all values from some place on, so that each value is once the largest.
    ordered = list(FLOATS)
    chosen = [(at, name) for at in range(len(ordered)) for name in ordered[at:]]
    for rows in (chosen, chosen[::-1]):
        ids, names = [at for at, _ in rows], [name for _, name in rows]
        by = pa.array([FLOATS[name] for name in names], kind)
        table = pa.table({"id": pa.array(ids, pa.int64()), "name": names, "by": by})
        write_rows(writer(items, table, orderBy="by"), [table], rows=3)
        assert {each["id"]: each["name"] for each in items.to_arrow().to_pylist()} == dict(enumerate(ordered))


KILLED = """
import sys
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
import strandline as sl
from sourcing import make_source, write_rows
rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
table = sl.Lake(sys.argv[1]).table("items")
write_rows(make_source(table, token="once").writer(from_arrow_schema(rows.schema), False), [rows[:1], rows[1:]])
"""


@pytest.mark.parametrize("point", ["spark_write.task_done", "spark_write.checked", "delta.committed"])
def test_a_write_that_is_killed_and_repeated_lands_once(items, point):
    lake = items.log.storage.uri
    assert python(KILLED, lake, crash=point).returncode == -9
    assert items.head == (1 if point == "delta.committed" else 0)
    assert python(KILLED, lake).returncode == 0
    assert items.head == 1 and items.to_arrow().sort_by("id").column("name").to_pylist() == ["a", "b"]
    items.vacuum(grace=0)
    assert claimed_files(items) == data_files(items) and items.count() == 2
