"""The change feed as a stream: every change once, whatever is written, folded, trimmed or killed in between."""

from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import strandline as sl
from shapes import OPTIONS, build, plain
from sourcing import Stream, make_source, read_all, spark_struct
from strandline.spark_source import slices
from support import refused, rows_of


def drain(stream):
    batches = []
    while stream.plan():
        batches.append(stream.run())
    return batches


def changes(batches):
    """The rows of batches, with nulls in columns that a batch did not have yet."""
    return pa.concat_tables(batches, promote_options="default")


STEPS = st.sampled_from(["upsert", "delete", "compact", "vacuum", "plan", "run", "crash", "evolve", "configure"])


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=25), st.sampled_from(["0", "backfill", "head"]), st.sampled_from([1, 3, None]))
def test_a_stream_has_every_change_once(make_table, steps, start, most):
    table = make_table(key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": "before"} for n in range(6)])
    options = {} if most is None else {"maxRowsPerTrigger": str(most)}
    with mock.patch.object(slices, "TASK_BYTES", 1):
        # A stream that has not begun holds nothing.
        follow(table, Stream(table, start=start, **options), steps, start)


def follow(table, stream, steps, start):
    stream.plan()
    head = table.head
    batches = []
    every = [table.changes(after=0)]
    for number, step in enumerate(steps):
        if step == "upsert":
            table.upsert([{"id": (number * k) % 9, "name": f"{number}"} for k in range(1, 4)], missing="null")
        elif step == "delete":
            table.delete([number % 9])
        elif step == "compact":
            table.compact(full=True)
        elif step == "vacuum":
            table.vacuum(grace=0, keep=0)
        elif step == "configure":
            table.configure(compact_files=number + 1)
        elif step == "evolve":
            table.add_column(f"c{number}", "int64")
            stream.restart()
        elif step == "crash":
            stream.restart()
        elif step == "plan" or (step == "run" and len(stream.offsets) == len(stream.done)):
            stream.plan()
        elif len(stream.offsets) > len(stream.done):
            batches.append(stream.run())
        if table.head > head:
            every.append(table.changes(after=head))
            head = table.head
    if len(stream.offsets) > len(stream.done):
        batches.append(stream.run())
    batches += drain(stream)
    found = changes(batches) if batches else every[0].slice(0, 0)
    names = ["_op", "_seq", "id", "name"]
    if start == "0":
        assert rows_of(found.select(names)) == rows_of(changes(every).select(names))
        return
    last = {}
    for each in found.sort_by("_seq").to_pylist():
        last[each["id"]] = each
    assert len({(each["id"], each["_seq"]) for each in found.to_pylist()}) == found.num_rows
    have = {key: each["name"] for key, each in last.items() if each["_op"] == "upsert"}
    wanted = {each["id"]: each["name"] for each in table.to_arrow().to_pylist()}
    if start == "backfill":
        assert have == wanted
    else:
        assert have.items() <= wanted.items()


@pytest.mark.parametrize("shape", OPTIONS)
@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
def test_a_stream_has_all_types(tmp_path, monkeypatch, shape, task_bytes):
    monkeypatch.setattr(slices, "TASK_BYTES", task_bytes)
    table = build(tmp_path / "lake", shape)
    names = ["_op", "_seq", *table.schema.names]
    assert plain(changes(drain(Stream(table, start="0"))).select(names)) == plain(table.changes().select(names))
    found = changes(drain(Stream(table, start="backfill")))
    assert plain(found.select(table.schema.names)) == plain(table.to_arrow())
    assert set(found.column("_op").to_pylist()) == {"upsert"}
    seqs = set(found.column("_seq").to_pylist())
    assert seqs == ({table.head} if table.definition.is_keyed else set(table.changes().column("_seq").to_pylist()))


def test_a_batch_is_bounded_by_rows_and_by_bytes_but_never_splits_a_commit(items):
    for count in (3, 5, 1, 1, 9):
        items.upsert([{"id": n, "name": "x" * 100} for n in range(count)])
    sizes = lambda **options: [batch.num_rows for batch in drain(Stream(items, start="0", **options))]  # noqa: E731
    assert sizes() == [19]
    assert sizes(maxRowsPerTrigger="7") == [3, 7, 9]
    assert sizes(maxBytesPerTrigger="1") == [3, 5, 1, 1, 9]
    assert sizes(maxBytesPerTrigger=str(1 << 30), maxRowsPerTrigger="8") == [8, 2, 9]
    stream = Stream(items, start="0", maxRowsPerTrigger="1")
    stream.limit = ReadAllAvailable()
    assert [batch.num_rows for batch in drain(stream)] == [19]


def test_available_now_ends_at_the_head_of_its_start(items):
    items.upsert([{"id": 1, "name": "a"}])
    for start in ("0", "backfill"):
        stream = Stream(items, start=start)
        stream.reader.prepareForTriggerAvailableNow()
        items.upsert([{"id": 2, "name": start}])
        assert [batch.num_rows for batch in drain(stream)] == [items.count(at=items.head - 1)]
        stream.restart()
        assert [batch.num_rows for batch in drain(stream)] == [1]


def test_the_first_batch_after_the_head_survives_a_crash(items):
    items.upsert([{"id": 1, "name": "a"}])
    stream = Stream(items, start="head")
    assert stream.plan()
    assert stream.run().num_rows == 0
    items.upsert([{"id": 2, "name": "b"}])
    early = Stream(items, start="head")
    early.offsets = [{"seq": 2, "after": 1}]
    items.upsert([{"id": 3, "name": "c"}])
    early.restart()
    assert early.run().column("id").to_pylist() == [2]
    assert [batch.column("id").to_pylist() for batch in drain(early)] == [[3]]


def test_a_running_stream_holds_the_log(items):
    items.upsert([{"id": 1, "name": "a"}])
    stream = Stream(items, start="0", maxRowsPerTrigger="1")
    stream.plan()
    for n in range(3):
        items.upsert([{"id": n, "name": "b"}])
    items.compact(full=True)
    items.vacuum(grace=0, keep=0)
    assert [pin.why for pin in items.pins.all()] == ["readStream"]
    assert sum(batch.num_rows for batch in drain(stream)) == 4
    # Without its pin the log is trimmed, and the stream says so.
    for pin in items.pins.all():
        items.unpin(pin.name)
    items.upsert([{"id": 9, "name": "z"}])
    items.compact(full=True)
    items.vacuum(grace=0, keep=0)
    stream.restart()
    with refused(sl.NotRetained, seq=4, oldest=5):
        stream.plan()
    with refused(sl.NotRetained):
        Stream(items, start="0").plan()
    assert Stream(items, start="backfill", pin="0s").plan()


@pytest.mark.parametrize("start", ["0", "head", "backfill"])
@pytest.mark.parametrize("is_planned", [False, True])
def test_a_table_that_was_created_again_is_not_read_from_an_earlier_position(lake, items, start, is_planned):
    items.upsert([{"id": n, "name": "a"} for n in range(3)])
    stream = Stream(items, start=start)
    drain(stream)
    items.upsert([{"id": 3, "name": "a"}])
    assert not is_planned or stream.plan()
    lake.drop("items")
    again = lake.create_table("items", items.schema, key=["id"])
    for n in range(5):
        again.upsert([{"id": n, "name": "other"}])
    stream.table = again
    stream.restart()
    with refused(sl.NotFound, table="items"):
        stream.plan()
        stream.run()
    assert sum(batch.num_rows for batch in drain(Stream(again, start="0"))) == 5


def test_what_a_stream_cannot_do_is_said(items):
    for start in (None, "first", "-1"):
        with refused(sl.Invalid, table="items"):
            Stream(items, **({} if start is None else {"start": start}))
    for wrong in ({"maxRowsPerTrigger": "0"}, {"maxBytesPerTrigger": "x"}, {"at": "0"}, {"pin": "long"}):
        with refused(sl.Invalid):
            Stream(items, start="0", **wrong)
    with refused(sl.Invalid, seq=7):
        Stream(items, start="7").plan()


def test_a_column_that_changes_ends_the_query_until_it_is_started_again(lake):
    table = lake.create_table("t", pa.schema([("id", pa.int64()), ("n", pa.int32())]), key=["id"])
    table.upsert([{"id": 1, "n": 1}])
    stream = Stream(table, start="0")
    assert stream.plan() and stream.run().num_rows == 1
    table.add_column("more", "string")
    table.upsert([{"id": 2, "n": 2, "more": "x"}])
    assert stream.plan()
    assert stream.run().select(["id", "n"]).to_pylist() == [{"id": 2, "n": 2}]
    table.evolve(pa.schema([("n", pa.int64())]))
    table.upsert([{"id": 3, "n": 1 << 40, "more": "y"}])
    with refused(sl.Conflict, column="n"):
        stream.plan()
    stream.restart()
    assert stream.plan() and stream.run().column("more").to_pylist() == ["y"]


def test_a_stream_may_name_its_columns(items):
    items.upsert([{"id": 1, "name": "a"}])
    items.delete([1])
    source = make_source(items, start="0", columns="_seq,name")
    reader = source.streamReader(spark_struct(items, changes=True, columns="_seq,name"))
    end = reader.latestOffset({"seq": 0}, ReadAllAvailable())
    found = read_all(reader, reader.partitions({"seq": 0}, end))
    assert found.to_pylist() == [{"_seq": 1, "name": "a"}, {"_seq": 2, "name": None}]
    assert reader.reportLatestOffset() == {"seq": 2}
