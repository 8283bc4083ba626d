"""Reads of one table: at seqs and times, whole and in batches, beside writers and behind damage."""

import datetime as dt
import os
import threading

import pyarrow as pa
import pytest

import strandline as sl
from strandline.storage import delta as deltas
from support import ITEMS, by_id, data_files, refused, rows_of

UTC = dt.UTC


def test_reads_at_every_seq_are_what_they_were(items):
    history = [{}]
    for at in range(12):
        now = dict(history[-1])
        if at % 3 == 2:
            items.delete([at % 4])
            now.pop(at % 4, None)
        else:
            items.upsert([{"id": at % 4, "name": str(at)}])
            now[at % 4] = str(at)
        history.append(now)
        if at in (4, 9):
            items.compact(full=True)
    for table in (items, sl.Lake(items.log.storage.uri).table("items")):
        assert [by_id(table, at=seq) for seq in range(13)] == history
        assert by_id(table) == history[-1]


def test_a_batch_stream_gives_the_rows_of_the_whole(items):
    items.upsert([{"id": at, "name": str(at)} for at in range(1000)])
    items.compact(full=True)
    items.upsert([{"id": at, "name": "new"} for at in range(500, 1500)])
    batches = list(items.to_batches(batch_rows=100))
    assert len(batches) > 5
    assert all(batch.schema.equals(items.schema) for batch in batches)
    assert rows_of(pa.Table.from_batches(batches)) == rows_of(items.to_arrow())


def test_a_batch_stream_keeps_its_seq_while_others_write_fold_and_read(items):
    items.upsert([{"id": at, "name": "old"} for at in range(5000)])
    stream = items.to_batches(batch_rows=100)
    seen = next(stream).num_rows
    items.upsert([{"id": at, "name": "new"} for at in range(5000)])
    items.compact(full=True)
    items.delete(list(range(4000)))
    assert items.to_arrow().num_rows == 1000
    names = set()
    for batch in stream:
        seen += batch.num_rows
        names |= set(batch.column("name").to_pylist())
    assert (seen, names) == (5000, {"old"})


def test_an_abandoned_batch_stream_disturbs_nobody(items):
    items.upsert([{"id": at} for at in range(1000)])
    for _ in range(5):
        next(items.to_batches(batch_rows=10))
    items.compact(full=True)
    items.delete([1])
    assert items.to_arrow().num_rows == 999


def test_columns_are_read_in_the_order_asked_for(items):
    items.upsert([{"id": 1, "name": "a", "qty": 5}])
    for _ in range(2):
        assert items.to_arrow(columns=["qty", "id"]).to_pylist() == [{"qty": 5, "id": 1}]
        assert items.to_arrow(columns=["name"]).column_names == ["name"]
        assert next(items.to_batches(columns=["qty"])).schema.names == ["qty"]
        items.compact(full=True)


# Names that DuckDB, Spark or the SQL in between use themselves.
BORROWED = ["file_index", "filename", "file_row_number", "rowid", "t", "n", "o", "b", "f", "select", "ordinal", "key"]


@pytest.mark.parametrize("name", BORROWED)
def test_a_column_may_have_a_name_that_an_engine_uses_itself(make_table, name):
    schema = pa.schema([(name, pa.int64()), ("v", pa.string())])
    keyed, valued = make_table(schema, key=[name], vnodes=2), make_table(schema, key=["v"], vnodes=2)
    for at in range(4):
        keyed.upsert([{name: n, "v": str(at)} for n in range(at, 4)])
        valued.upsert([{name: at + n, "v": str(n)} for n in range(3)])
        if at == 1:
            keyed.compact(full=True)
            valued.compact(full=True)
    for _ in range(2):
        assert rows_of(keyed.to_arrow()) == [(n, str(n)) for n in range(4)]
        assert rows_of(valued.to_arrow()) == [(n + 3, str(n)) for n in range(3)]
        assert set(keyed.changes()["_seq"].to_pylist()) == {1, 2, 3, 4}
        keyed.compact(full=True)
        valued.compact(full=True)


BAD_COLUMNS = [[], "id", ["nope"], ["id", "nope"], ["ID"], [1], [None], 5, ["_hash"], ["_seq"], ["id", "id"]]


@pytest.mark.parametrize("columns", BAD_COLUMNS, ids=repr)
def test_columns_that_are_not_there_are_refused(items, columns):
    items.upsert([{"id": 1}])
    for read in (items.to_arrow, lambda **options: list(items.to_batches(**options))):
        with refused(sl.Invalid):
            read(columns=columns)


@pytest.mark.parametrize("at", [-1, 99, True, 1.0, "x", "", [], dt.date(2026, 1, 1), 10**30, "1"], ids=repr)
def test_a_point_in_time_that_cannot_be_is_refused(items, at):
    items.upsert([{"id": 1}])
    with refused(sl.Invalid):
        items.to_arrow(at=at)


def test_a_table_is_read_as_of_a_time(items, monkeypatch):
    moments = [dt.datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    for day, moment in enumerate(moments, 1):
        monkeypatch.setattr(deltas.time, "time", lambda moment=moment: moment.timestamp())
        items.upsert([{"id": day, "name": "x"}])
    monkeypatch.undo()
    items.compact(full=True)
    second = dt.timedelta(seconds=1)
    assert len(by_id(items, at=moments[1] - second)) == 1
    assert len(by_id(items, at=moments[1])) == 2
    assert len(by_id(items, at="2030-01-02T00:00:00Z")) == 2
    assert len(by_id(items, at="2030-01-02T01:00:00+01:00")) == 2
    assert len(by_id(items, at="2030-01-02")) == 2, "a time without a zone is UTC"
    assert len(by_id(items, at="2030-01-03")) == 3
    with refused(sl.Invalid):
        items.to_arrow(at="2031-01-01")
    with refused(sl.NotRetained):
        items.to_arrow(at="2000-01-01")


def test_a_read_as_of_this_moment_is_not_confused_by_a_commit_that_lands_meanwhile(items):
    """The seq of a time is looked up in commits that the read's own snapshot may not have seen."""
    items.upsert([{"id": 1, "name": "a"}])
    other = sl.Lake(items.log.storage.uri).table("items")
    look_up = items._seq_at

    def write_then_look(at, head):
        other.upsert([{"id": 2, "name": "b"}])
        return look_up(dt.datetime.now(UTC), head)

    items._seq_at = write_then_look
    first = by_id(items, at="2024-01-01")
    del items._seq_at
    assert first in ({1: "a"}, {1: "a", 2: "b"})
    assert by_id(items) == {1: "a", 2: "b"}
    assert by_id(items, at=2) == {1: "a", 2: "b"}


def test_a_missing_log_file_is_corrupt_and_named(items):
    items.upsert([{"id": 1, "name": "a"}])
    (name,) = data_files(items)
    os.unlink(f"{items.log.storage.uri}/{items.entry.folder}/{name}")
    for read in (items.to_arrow, items.changes, lambda: list(items.to_batches())):
        with refused(sl.Corrupt):
            read()


def test_a_missing_baseline_file_is_corrupt(items):
    items.upsert([{"id": at} for at in range(20)])
    items.compact(full=True)
    victim = items.baseline.refresh().files()[0].path
    os.unlink(items.log.storage.url(f"{items.baseline.folder}/{victim}"))
    with refused(sl.Corrupt):
        items.to_arrow()


def test_a_torn_file_is_corrupt(items):
    items.upsert([{"id": at} for at in range(20)])
    (name,) = data_files(items)
    path = f"{items.log.storage.uri}/{items.entry.folder}/{name}"
    with open(path, "r+b") as file:
        file.truncate(50)
    with refused(sl.Corrupt):
        items.to_arrow()


def test_a_read_that_needs_more_memory_than_allowed_is_unavailable(tmp_path):
    table = sl.Lake(tmp_path, cache_bytes=24 << 20).create_table("t", ITEMS, key=["id"])
    rows = pa.table({"id": pa.array(range(1_200_000)), "name": ["x" * 20] * 1_200_000})
    table.upsert(rows)
    table.upsert(rows)
    with refused(sl.Unavailable):
        table.to_arrow()
    assert table.head == 2


def test_a_read_that_failed_half_way_leaves_the_next_one_right(items):
    items.upsert([{"id": 1, "name": "a"}])
    assert by_id(items) == {1: "a"}
    items.upsert([{"id": 2, "name": "b"}])
    path = items.log.storage.url(f"{items.log.folder}/{items.merge().log_files()[1][1].path}")
    os.rename(path, path + ".away")
    with refused(sl.Corrupt):
        items.to_arrow()
    os.rename(path + ".away", path)
    assert by_id(items) == {1: "a", 2: "b"}


def test_threads_share_a_table(items):
    """Writers, readers at seqs, folds and SQL at once: each read is one of the states that were."""
    failures = []
    done = threading.Event()

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def write(number):
        for at in range(15):
            items.upsert([{"id": number * 100 + n, "name": f"{number}-{at}"} for n in range(4)])

    def read():
        while not done.is_set():
            head = items.head
            rows = items.to_arrow(at=head).to_pylist()
            groups = {}
            for row in rows:
                groups.setdefault(row["id"] // 100, set()).add(row["name"])
            assert all(len(names) == 1 for names in groups.values()), "half a commit was seen"
            assert len({row["id"] for row in rows}) == len(rows)

    def fold():
        while not done.is_set():
            items.compact(full=True)

    writers = [guarded(lambda number=number: write(number)) for number in range(3)]
    others = [guarded(read), guarded(read), guarded(fold)]
    for thread in writers + others:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert failures == []
    assert len(set(items.changes()["_seq"].to_pylist())) == 45, "the folds may pack, which takes seqs"
    assert by_id(items) == {number * 100 + n: f"{number}-14" for number in range(3) for n in range(4)}
