"""Folding: the same rows before and after, once, beside writers, and on Spark as on the driver."""

import pyarrow as pa
import pytest

import strandline as sl
from strandline.consumers import compaction
from support import ITEMS, by_id, claimed_files, data_files, refused, rows_of, trim


def fill(table, commits=6):
    for at in range(commits):
        table.upsert([{"id": at * 3 + n, "name": f"{at}.{n}", "qty": at} for n in range(5)])
        table.delete([at * 3 + 1])


def test_folding_changes_no_row_and_no_seq(items):
    fill(items)
    before = {seq: rows_of(items.to_arrow(at=seq)) for seq in range(items.head + 1)}
    assert items.compact(full=True).upto == items.head
    assert {seq: rows_of(items.to_arrow(at=seq)) for seq in before} == before
    fresh = sl.Lake(items.log.storage.uri).table("items")
    assert {seq: rows_of(fresh.to_arrow(at=seq)) for seq in before} == before


def test_a_second_fold_is_a_no_op(items):
    fill(items)
    items.compact(full=True)
    version, files = items.baseline.refresh().version, data_files(items)
    assert items.compact(full=True).upto == items.head
    assert items.baseline.refresh().version == version
    assert data_files(items) == files


def test_folding_an_empty_table_does_nothing(items):
    assert items.compact(full=True).upto == 0
    assert data_files(items) == set()


def test_a_fold_leaves_untouched_vnodes_alone(lake):
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=16)
    table.upsert([{"id": at} for at in range(500)])
    table.compact(full=True)
    before = set(table.baseline.refresh().snapshot.files)
    table.upsert([{"id": 7, "name": "new"}])
    table.compact(full=True)
    after = set(table.baseline.refresh().snapshot.files)
    assert len(before) == len(after) == 16
    assert len(before - after) == 1


def test_after_everything_is_deleted_the_baseline_has_no_file(items):
    items.upsert([{"id": at} for at in range(50)])
    items.compact(full=True)
    items.delete(list(range(50)))
    items.compact(full=True)
    assert items.baseline.refresh().files() == []
    assert items.to_arrow().num_rows == 0
    items.upsert([{"id": 1, "name": "again"}])
    items.compact(full=True)
    assert by_id(items) == {1: "again"}


def test_a_row_written_while_a_fold_runs_survives(items):
    """The write lands between what the fold read and its commit."""
    items.upsert([{"id": at, "name": "old"} for at in range(10)])
    other = sl.Lake(items.log.storage.uri).table("items")
    plan = items.baseline.commit_fold

    def write_then_commit(*args, **options):
        other.upsert([{"id": 3, "name": "new"}, {"id": 77, "name": "new"}])
        other.delete([4])
        return plan(*args, **options)

    items.baseline.commit_fold = write_then_commit
    assert items.compact(full=True).upto == 1
    del items.baseline.commit_fold
    expected = {at: "old" for at in range(10)} | {3: "new", 77: "new"}
    del expected[4]
    for table in (items, other, sl.Lake(items.log.storage.uri).table("items")):
        assert by_id(table) == expected
    items.compact(full=True)
    assert by_id(items) == expected


def test_of_two_folds_at_once_one_wins_and_nothing_doubles(items):
    fill(items)
    expected = rows_of(items.to_arrow())
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def lose_the_race(*args, **options):
        other.compact(full=True)
        return commit(*args, **options)

    items.baseline.commit_fold = lose_the_race
    report = items.compact(full=True)
    assert (report.vnodes, report.files) == (0, 0), "what the other folded is no longer due"
    del items.baseline.commit_fold
    assert rows_of(items.to_arrow()) == expected
    assert items.compact(full=True).upto == items.head
    assert rows_of(items.to_arrow()) == expected
    assert data_files(items) == claimed_files(items), "the loser's files are gone again"


def test_marks_live_in_the_commit_that_they_describe(items):
    fill(items)
    items.compact(full=True)
    state = items.baseline.refresh()
    assert state.marks == (items.head,) * 4
    assert {txn: seq for txn, seq in state.snapshot.txns.items() if txn.startswith("fold/")} == {
        f"fold/{vnode}": items.head for vnode in range(4)
    }


@pytest.mark.parametrize("vnodes", [1, 8])
def test_a_table_without_a_key_keeps_every_row(lake, vnodes):
    table = lake.create_table("events", ITEMS, vnodes=vnodes)
    for at in range(6):
        table.append([{"id": 1, "name": "same"}, {"id": at}])
        if at in (2, 4):
            table.compact(full=True)
    assert table.to_arrow().num_rows == 12
    assert [table.to_arrow(at=seq).num_rows for seq in range(7)] == [0, 2, 4, 6, 8, 10, 12]
    table.compact(full=True)
    assert [table.to_arrow(at=seq).num_rows for seq in range(7)] == [0, 2, 4, 6, 8, 10, 12]


def test_what_was_trimmed_is_not_retained_and_says_what_is(items):
    for at in range(1, 11):
        items.upsert([{"id": at, "name": str(at)}])
        if at in (4, 8):
            items.compact(full=True)
    trim(items, 6)
    fresh = sl.Lake(items.log.storage.uri).table("items")
    for table in (items, fresh):
        for seq in (0, 1, 4, 5, 7):
            with refused(sl.NotRetained, seq=seq, oldest=8):
                table.to_arrow(at=seq)
        for seq in (8, 9, 10, 11):
            assert len(by_id(table, at=seq)) == min(seq, 10)
        with refused(sl.NotRetained, oldest=6):
            table.changes(5)
        assert table.changes(6)["id"].to_pylist() == [7, 8, 9, 10]


def test_folding_goes_on_after_a_trim(items):
    items.upsert([{"id": 1, "name": "a"}])
    items.compact(full=True)
    trim(items, 1)
    items.upsert([{"id": 2, "name": "b"}])
    items.compact(full=True)
    assert by_id(sl.Lake(items.log.storage.uri).table("items")) == {1: "a", 2: "b"}


KEYED = {"key": ["id"], "vnodes": 4}
SHAPES = {
    "keyed": (ITEMS, KEYED),
    "one vnode": (ITEMS, {"key": ["id"], "vnodes": 1}),
    "composite": (ITEMS, {"key": ["name", "qty"], "vnodes": 4}),
    "versioned": (ITEMS, {"key": ["id"], "version": "qty", "vnodes": 4}),
    "unkeyed": (ITEMS, {"vnodes": 4}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fold_on_spark_writes_the_same_baseline_as_one_on_the_driver(spark, tmp_path, shape):
    schema, options = SHAPES[shape]
    tables = []
    for name in ("driver", "spark"):
        table = sl.Lake(tmp_path / name).create_table("t", schema, **options)
        for round_ in range(2):
            for at in range(3):
                rows = [{"id": at * 3 + n, "name": f"n{(at + n) % 5}", "qty": (at * n + round_) % 4} for n in range(8)]
                (table.upsert if table.definition.is_keyed else table.append)(rows)
            if table.definition.is_keyed:
                table.delete(pa.table(rows_by_key(table, rows[:2])))
            assert table.head == (4 if table.definition.is_keyed else 3) * (round_ + 1)
            if name == "driver":
                table.compact(full=True)
            else:
                compaction.compact(table, full=True, driver_rows=0)
        tables.append(table)
    one, two = tables
    assert rows_of(one.to_arrow()) == rows_of(two.to_arrow())
    assert one.baseline.refresh().marks == two.baseline.refresh().marks
    per_vnode = [{(f.partition["_vnode"], f.rows) for f in table.baseline.refresh().files()} for table in tables]
    if one.definition.is_keyed:
        assert per_vnode[0] == per_vnode[1]
    for seq in range(one.head + 1):
        assert rows_of(one.to_arrow(at=seq)) == rows_of(two.to_arrow(at=seq))


def rows_by_key(table, rows):
    return {name: pa.array([row[name] for row in rows], table.schema.field(name).type) for name in table.definition.key}


def test_a_fold_on_spark_that_loses_its_race_leaves_no_file(spark, items):
    fill(items, commits=2)
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def lose_the_race(*args, **options):
        other.compact(full=True)
        return commit(*args, **options)

    items.baseline.commit_fold = lose_the_race
    assert compaction.compact(items, full=True, driver_rows=0).files == 0
    assert data_files(items) == claimed_files(items)
