"""Rows that do not count are left out by their number in the file."""

import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from folding import fold_vnodes
from strandline.engines.scan import PLACE, PLACE_ROW, duck_scan
from strandline.model.change import OP
from strandline.tables import live_rows
from strandline.tables.live_rows import Slots, dead_rows_sql
from support import no_job, plan_of, rows_of


def rows(ids, name="a", qty=0):
    return [{"id": n, "name": name, "qty": qty} for n in ids]


def assert_equal_reads(table, **read):
    assert rows_of(table.to_spark(**read).toArrow()) == rows_of(table.to_arrow(**read)), read


def dead_keys(table, at=None):
    """(index of a file, key, operation) of each row that does not count, the files in the order of the table."""
    merge = table.merge(at)
    base, log = merge.base_files(), merge.log_files()
    base_scans, log_scans = merge.baseline.scans(base), merge.log.scans(log)
    places = {scan.url: at for at, scan in enumerate([*base_scans, *log_scans])}
    inside = duck_scan(base_scans, merge.baseline_schemas, ["id"], places=places)
    changes = duck_scan(log_scans, merge.definition.log_schemas, ["id", OP], places=places)
    named = f"SELECT id, 'row' AS {OP}, {PLACE}, {PLACE_ROW} FROM ({inside}) UNION ALL SELECT * FROM ({changes})"
    with table.duck.transaction() as cursor, table.lock:
        dead = dead_rows_sql(merge, table.fold_name(merge))
        found = cursor.execute(
            f"SELECT {PLACE}, id, {OP} FROM ({named}) SEMI JOIN ({dead}) USING ({PLACE}, {PLACE_ROW})"
        )
        return sorted(found.fetchall())


def test_replaced_and_deleted_rows_and_deletes_do_not_count(make_table):
    table = make_table(key=["id"], vnodes=1)
    table.upsert(rows(range(5)))
    table.compact(full=True)
    table.upsert(rows([1, 2, 7]))
    table.upsert(rows([2]))
    table.delete([4, 7])
    assert dead_keys(table) == [
        *((0, id_, "row") for id_ in (1, 2, 4)),
        *((1, id_, "upsert") for id_ in (2, 7)),
        *((3, id_, "delete") for id_ in (4, 7)),
    ]
    assert dead_keys(table, at=2) == [(0, id_, "row") for id_ in (1, 2)]


def test_an_older_version_does_not_count(make_table):
    table = make_table(key=["id"], vnodes=1, version="qty")
    table.upsert(rows(range(4), qty=5))
    table.compact(full=True)
    table.upsert(rows([0], qty=4))
    table.upsert(rows([1], qty=6))
    assert dead_keys(table) == [(0, 1, "row"), (1, 0, "upsert")]


def test_rows_of_a_base_commit_in_folded_vnodes_do_not_count(spark, make_table):
    table = make_table(key=["id"], vnodes=2)
    table.upsert(rows(range(20)))
    fold_vnodes(table, [1])
    table.upsert(rows([3, 30]))
    inside = {row["id"] for row in table.to_arrow().to_pylist()}
    dead = {id_ for _, id_, _ in dead_keys(table)}
    assert inside == {*range(20), 30} and len(dead) > 1 and 3 in dead
    assert_equal_reads(table)


def test_many_groups_of_rows_and_tasks_of_one_file(spark, make_table):
    table = make_table(key=["id"], vnodes=1)
    table.upsert(pa.table({"id": range(120_000), "name": ["x"] * 120_000, "qty": [n % 97 for n in range(120_000)]}))
    table.compact(full=True)
    table.upsert(rows(range(0, 120_000, 31), name="y", qty=1000))
    table.delete(list(range(5, 120_000, 1009)))
    size = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(size)
    spark.conf.set(size, "100000")
    try:
        assert table.to_spark().count() == table.count()
        for where in ("id > 119000", "qty = 3", "name = 'y' AND id < 4000"):
            assert_equal_reads(table, where=where)
            assert rows_of(table.to_spark().where(where).toArrow()) == rows_of(table.to_arrow(where=where))
        assert_equal_reads(table)
    finally:
        spark.conf.set(size, before)


def test_files_without_a_row_that_counts_are_not_scanned(spark, items):
    items.upsert(rows(range(9)))
    items.compact(full=True)
    items.upsert(rows([1], name="b"))
    items.upsert(rows([1], name="c"))
    items.delete([2])
    scanned = {path.split("/")[-1] for path in items.to_spark().inputFiles()}
    merge = items.merge()
    log = [file.path.split("/")[-1] for _, file in merge.log_files()]
    assert scanned == {*(file.path.split("/")[-1] for file in merge.base_files()), log[1]}
    assert_equal_reads(items)
    items.delete(list(range(9)))
    assert items.to_spark().count() == 0 and items.to_spark().columns == ["id", "name", "qty"]


def test_new_rows_alone_need_no_filter(spark, items):
    items.upsert(rows(range(9)))
    items.compact(full=True)
    items.upsert(rows([11]))
    items.upsert(rows([12]))
    assert " Filter " not in plan_of(items.to_spark()) and "LocalTableScan" not in plan_of(items.to_spark())
    assert_equal_reads(items)


def test_rows_are_looked_up_once_a_seq(spark, items, monkeypatch):
    calls = []
    find = live_rows.dead_rows_sql
    monkeypatch.setattr(live_rows, "dead_rows_sql", lambda *args: calls.append(args) or find(*args))
    items.upsert(rows(range(9)))
    items.upsert(rows([1], name="b"))
    with no_job(spark):
        items.to_spark()
        items.to_spark(where="qty = 0")
        items.to_spark(columns=["name"])
    assert len(calls) == 1
    items.upsert(rows([2], name="c"))
    assert_equal_reads(items)
    assert len(calls) == 2
    items.compact(full=True)
    assert_equal_reads(items)
    assert len(calls) == 2, "without changes all rows count"


@pytest.mark.parametrize("name", ["file_row_number", "File_Index"])
def test_a_column_that_hides_the_number_of_a_row_leads_to_a_join(spark, tmp_path, name):
    table = sl.Lake(tmp_path).create_table("t", f"id:int64, {name}:int64", key=["id"])
    table.upsert([{"id": n, name: -n} for n in range(9)])
    table.upsert([{"id": 3, name: 5}])
    assert "LeftAnti" in plan_of(table.to_spark())
    assert_equal_reads(table)


def test_a_column_of_the_name_metadata_stays_what_it_is(spark, tmp_path):
    table = sl.Lake(tmp_path).create_table("t", "id:int64, _metadata:string", key=["id"])
    table.upsert([{"id": n, "_metadata": str(n)} for n in range(9)])
    table.upsert([{"id": 3, "_metadata": "new"}])
    assert "Join" not in plan_of(table.to_spark())
    assert_equal_reads(table)


def test_slots_tell_numbers_apart():
    hashes = np.array([n * 2654435761 % 2**32 for n in range(700)])
    slots = Slots.find(hashes)
    assert len(set(slots.of(hashes).tolist())) == 700 and slots.of(hashes).max() < slots.count
    assert Slots.find(np.array([7, 8, 7])) is None
    assert Slots.find(np.array([], dtype=np.int64)).count == 1


def test_files_of_one_size_are_told_apart_by_their_names(spark, items):
    items.upsert(rows(range(100, 300), name="first"))
    for n in range(0, 40, 2):
        items.upsert(rows([n, n + 1]))
    items.upsert(rows([1, 4, 9, 10, 11, 39, 150], name="b"))
    frame = items.to_spark()
    live = items._live_rows[1]
    assert live.names is not None and live.sizes.bits > 0, "some files have one size, others have not"
    assert rows_of(frame.toArrow()) == rows_of(items.to_arrow())
    for at in range(15, 22):
        assert_equal_reads(items, at=at)
