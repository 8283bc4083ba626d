"""The account of a fold: one that loses a row, on whichever engine and for whatever reason, does not commit."""

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.consumers import compaction, fold_files, fold_lane
from strandline.consumers.account import FoldAccount
from strandline.model.change import CAME, FATE, GONE, KEPT, LOST, VNODE
from strandline.storage.parquet import writer
from strandline.storage.snapshot import Draft, data_file
from strandline.tables import merge
from support import ITEMS, data_files, refused, rows_of

ENGINES = ["driver", "spark"]


@pytest.fixture(params=ENGINES)
def fold(request):
    """Folds a table on one of the engines."""
    if request.param == "spark":
        request.getfixturevalue("spark")

    def run(table):
        report = compaction.compact(table, full=True, driver_rows=-1 if request.param == "spark" else 1 << 40)
        assert report.engine in (request.param, "none")
        return report

    return run


def grown(lake, **options):
    """A table with rows that stay, that are replaced, deleted, new, and replaced several times."""
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=4, **options)
    table.upsert([{"id": at, "name": "old", "qty": at} for at in range(100)])
    table.compact(full=True)
    table.upsert([{"id": at, "name": "new", "qty": at} for at in range(50, 150)])
    table.upsert([{"id": at, "name": "newer", "qty": at} for at in range(140, 160)])
    table.delete(list(range(0, 20)))
    table.delete([500])
    return table


def forged(table, path, rows_more):
    """Let the commit say that a baseline file has more rows than it does, as if the file had lost some."""
    state = table.baseline.refresh()
    file = state.snapshot.files[path]
    stats = json.loads(file.stats_text) | {"numRecords": file.rows + rows_more}
    changed = {**file.add()["add"], "stats": json.dumps(stats)}
    table.baseline.delta.commit("FORGE", lambda snapshot, now_ms: Draft(remove=[file], add=[data_file(changed)]))


@pytest.mark.parametrize("options", [{}, {"version": "qty"}])
def test_a_fold_accounts_for_every_row(lake, fold, options):
    table = grown(lake, **options)
    expected = rows_of(table.to_arrow())
    assert fold(table).vnodes == 4
    assert rows_of(table.to_arrow()) == expected
    assert rows_of(sl.Lake(lake.storage.uri).table("t").to_arrow()) == expected


def test_rows_that_the_baseline_should_have_and_has_not_are_corrupt(lake, fold):
    table = grown(lake)
    expected, before = rows_of(table.to_arrow()), data_files(table)
    path = sorted(table.baseline.refresh().snapshot.files)[0]
    forged(table, path, 1)
    version = table.baseline.refresh().version
    with refused(sl.Corrupt) as caught:
        fold(table)
    assert "vnode" in caught.value.fields
    assert table.baseline.refresh().version == version
    assert data_files(table) == before, "what was written is gone again"
    assert rows_of(table.to_arrow()) == expected


def test_a_fold_on_the_driver_that_loses_a_row_of_the_baseline_does_not_commit(lake, monkeypatch):
    table = grown(lake)
    scan = merge.duck_scan
    cut = lambda *args, **options: f"SELECT * FROM ({scan(*args, **options)}) WHERE id <> 30"  # noqa: E731
    monkeypatch.setattr(merge, "duck_scan", cut)
    version = table.baseline.refresh().version
    with refused(sl.Corrupt):
        compaction.compact(table, full=True)
    assert table.baseline.refresh().version == version


def test_a_fold_on_the_driver_that_loses_a_change_does_not_commit(lake, monkeypatch):
    table = grown(lake)
    keyed = merge._keyed_sql

    def lose(*args):
        base, log = keyed(*args)
        return base, f"(SELECT * FROM {log} WHERE id <> 145)"

    monkeypatch.setattr(merge, "_keyed_sql", lose)
    version = table.baseline.refresh().version
    with refused(sl.Internal):
        compaction.compact(table, full=True)
    assert table.baseline.refresh().version == version


def test_a_writer_that_loses_a_row_does_not_commit(lake, monkeypatch):
    table = grown(lake)
    real = writer.write_files

    def lose(storage, folder, name, batches, schema, **options):
        return real(storage, folder, name, (batch.slice(1) for batch in batches), schema, **options)

    monkeypatch.setattr(writer, "write_files", lose)
    with refused(sl.Internal):
        compaction.compact(table, full=True)


def test_a_table_without_a_key_is_accounted_for_too(lake, fold):
    table = lake.create_table("t", ITEMS, vnodes=4)
    for at in range(5):
        table.append([{"id": at, "name": "x", "qty": at}] * 10)
        if at == 2:
            table.compact(full=True)
    expected = rows_of(table.to_arrow())
    assert fold(table).vnodes
    assert rows_of(table.to_arrow()) == expected


def test_expired_rows_are_accounted_for(lake, fold):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    table = lake.create_table("t", schema, key=["id"], vnodes=2, time="at")
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table.upsert([{"id": at, "at": day + dt.timedelta(days=at)} for at in range(100)] + [{"id": 999, "at": None}])
    table.compact(full=True)
    table.upsert([{"id": at, "at": day + dt.timedelta(days=at - 50)} for at in range(90, 120)])
    table.expire(dt.datetime(2024, 2, 20, tzinfo=dt.UTC))
    expected = rows_of(table.to_arrow())
    fold(table)
    assert rows_of(table.to_arrow()) == expected


def test_rows_that_are_not_written_are_counted(lake):
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=4)
    fates = [KEPT, GONE, CAME, LOST, KEPT, GONE]
    rows = pa.table({"id": range(6), "name": ["x"] * 6, "qty": pa.array(range(6), pa.int32())})
    rows = rows.append_column(VNODE, pa.array([0, 0, 0, 0, 1, 2])).append_column(FATE, pa.array(fates))
    account = FoldAccount()
    files = list(fold_lane._write_rows(table.merge(), iter(rows.to_batches(max_chunksize=2)), account))
    assert account.counts == {
        (0, KEPT): 1,
        (0, GONE): 1,
        (0, CAME): 1,
        (0, LOST): 1,
        (1, KEPT): 1,
        (2, GONE): 1,
    }
    root = Path(lake.storage.uri) / table.baseline.folder
    assert {f.partition[VNODE]: pq.read_table(root / f.path)["id"].to_pylist() for f in files} == {
        "0": [0, 2],
        "1": [4],
    }


def test_accounts_add_up(lake):
    one = FoldAccount([0], {"a"}, Counter({(0, KEPT): 3}), Counter({0: 3}), {0: None})
    two = FoldAccount([2, 1], {"b"}, Counter({(1, CAME): 2, (2, LOST): 1}), Counter(), {1: 2, 2: 1})
    both = FoldAccount.sum_texts([one.to_text(), two.to_text()])
    counts = Counter({(0, KEPT): 3, (1, CAME): 2, (2, LOST): 1})
    assert both == FoldAccount([0, 2, 1], {"a", "b"}, counts, Counter({0: 3}), {0: None, 1: 2, 2: 1})


def test_a_vnode_that_no_task_folded_does_not_commit(spark, lake, monkeypatch):
    table = grown(lake)
    version, before = table.baseline.refresh().version, data_files(table)
    real = fold_files._split_vnodes
    monkeypatch.setattr(fold_files, "_split_vnodes", lambda *args: list(real(*args))[1:])
    with refused(sl.Internal):
        compaction.compact(table, full=True, driver_rows=-1)
    assert table.baseline.refresh().version == version
    assert data_files(table) == before, "what the other tasks wrote is gone again"
