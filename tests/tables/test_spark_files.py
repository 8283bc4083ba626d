"""The files of a table in Spark: the rows that the driver reads, and what is wrong with a file."""

from pathlib import Path

import strandline as sl
from folding import again
from shapes import OPTIONS, build, plain, row
from strandline.engines.choice import DriverLimit
from strandline.tables import spark_read
from strandline.tables.packing import Bundle, pack_files
from strandline.tables.spark_files import changed_keys, check_files, log_scan, winners_sql
from support import refused


def test_a_dataframe_stays_at_its_seq_however_late_it_runs(spark, tmp_path):
    table = build(tmp_path, "keyed")
    expected = plain(table.to_arrow())
    frame = table.to_spark()
    table.upsert([row(n, rev=9) for n in range(5)])
    table.delete([{"part": "p1", "id": 1}])
    table.compact(full=True)
    assert plain(frame.toArrow()) == expected


def test_spark_computes_a_large_fold_itself_and_finds_the_same(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(spark_read, "BULK", DriverLimit(0, 0))
    for shape in OPTIONS:
        table = build(tmp_path / shape, shape)
        assert plain(table.to_spark().toArrow()) == plain(table.to_arrow()), shape


def test_spark_finds_the_rows_and_the_changes_of_packs(spark, tmp_path, monkeypatch):
    for shape in OPTIONS:
        table = build(tmp_path / shape, shape)
        files = [pair for pair in table.log.refresh().by_seq if pair[1].path.startswith("0000-")]
        pack_files(table.log, [Bundle(tuple(files), 1)])
        assert any(file.pack for _, file in table.log.refresh().by_seq)
        for seq in (table.head, table.oldest, (table.head + table.oldest) // 2):
            assert plain(table.to_spark(at=seq).toArrow()) == plain(table.to_arrow(at=seq)), (shape, seq)
        log, names = table.log.refresh(), ["_op", *table.schema.names]
        for after, upto in ((0, log.head), (1, log.head - 2), (2, 3)):
            found = log_scan(spark, log, log.files(after, upto), names).toArrow()
            assert plain(found.select(["_op", "_seq", *table.schema.names])) == plain(table.changes(after, upto)), shape
        with monkeypatch.context() as patch:
            patch.setattr(spark_read, "BULK", DriverLimit(0, 0))
            fresh = again(table)
            assert plain(fresh.to_spark().toArrow()) == plain(fresh.to_arrow()), shape


def test_a_fold_for_spark_says_which_seq_wins_and_where_a_delete_does(lake, items):
    items.upsert([{"id": 1}, {"id": 2}, {"id": 3}])
    items.upsert([{"id": 1}])
    items.delete([2])
    with items.lock:
        name = items.fold_name(items.merge())
        rows = items.duck.table(winners_sql(name, items.definition)).to_pylist()
    assert {row["id"]: row["_sl_winner"] for row in rows} == {1: 2, 2: -1}


def test_the_keys_that_changed_are_found_once_each(spark, items):
    items.upsert([{"id": 1}, {"id": 2}])
    items.upsert([{"id": 2}, {"id": 3}])
    merge = items.merge()
    found = changed_keys(spark, merge, merge.log_files()).collect()
    assert sorted(row["id"] for row in found) == [1, 2, 3]


def test_a_file_that_is_missing_or_cut_is_corrupt_before_spark_reads_it(spark, items):
    items.upsert([{"id": 1}])
    ((_, file),) = items.log.refresh().by_seq
    path = Path(items.log.storage.url(f"{items.log.folder}/{file.path}"))
    with path.open("ab") as stream:
        stream.write(b"more")
    with refused(sl.Corrupt, path=f"{items.log.folder}/{file.path}"):
        items.to_spark()
    path.unlink()
    with refused(sl.Corrupt, path=f"{items.log.folder}/{file.path}"):
        items.to_spark()


def test_damage_that_leaves_the_length_is_found_by_the_tasks_that_look(spark, items):
    items.upsert([{"id": at} for at in range(100)])
    ((_, file),) = items.log.refresh().by_seq
    named = {f"{items.log.folder}/{file.path}": file}
    check_files(spark, items.log.storage, ())
    path = Path(items.log.storage.url(next(iter(named))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with refused(sl.Corrupt, path=next(iter(named))):
        check_files(spark, items.log.storage, named.items())
