"""The number of rows: by statistics when they suffice, and always the number of rows that a read returns."""

import datetime as dt

import pytest

import strandline as sl
from strandline.tables.count import bound_rows, count_rows
from strandline.tables.packing import Bundle, pack_files
from support import ITEMS, data_files


def hide_data_files(lake: sl.Lake, table: sl.Table) -> None:
    """A read of a row fails from here on."""
    for path in data_files(table):
        lake.storage.delete([f"{table.entry.folder}/{path}"])


def test_a_first_load_and_a_folded_table_are_counted_without_reading_a_file(lake, items):
    items.upsert([{"id": n} for n in range(10)])
    hide_data_files(lake, items)
    assert items.count() == 10


def test_a_folded_table_is_counted_without_reading_a_file(lake, items):
    items.upsert([{"id": n} for n in range(10)])
    items.delete([1, 2])
    assert (items.count(), items.count("id > 7")) == (8, 2)
    items.compact(full=True)
    hide_data_files(lake, items)
    assert items.count() == 8


def test_each_change_of_a_key_is_one_row_at_every_seq(items):
    items.upsert([{"id": n, "name": "a"} for n in range(10)])
    items.upsert([{"id": n, "name": "b"} for n in range(5, 15)])
    items.delete([0, 99])
    assert [items.count(at=seq) for seq in range(4)] == [0, 10, 15, 14]
    assert items.count("name = 'b'") == items.to_arrow(where="name = 'b'").num_rows == 10
    assert items.count("name = 'b'", at=1) == 0
    items.compact(full=True)
    items.upsert([{"id": 100}])
    assert (items.count(), items.count(at=1)) == (15, 10)


def test_a_table_without_a_key_is_counted_rightly_when_only_some_vnodes_are_folded(lake):
    log = lake.create_table("log", ITEMS, vnodes=4)
    log.append([{"id": n} for n in range(20)])
    assert (bound_rows(log.merge()), log.count()) == ((20, True), 20)
    log.compact(full=True)
    log.append([{"id": n} for n in range(5)])
    merge = log.merge()
    assert (bound_rows(merge), count_rows(log, merge)) == ((25, True), 25)
    assert log.count("id < 3") == 6


def test_expired_rows_do_not_count(lake):
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    seen = lake.create_table("seen", "id:int64, at:timestamp", key=["id"], time="at")
    seen.upsert([{"id": n, "at": day + dt.timedelta(days=n)} for n in range(10)])
    seen.expire(day + dt.timedelta(days=4))
    assert seen.count() == seen.to_arrow().num_rows == 6
    assert lake.status(exact=True).tables[0].rows == 6


def test_a_condition_over_an_unknown_column_is_refused(items):
    with pytest.raises(sl.Invalid):
        items.count("nothing = 1")


def test_a_pack_that_reaches_beyond_a_seq_is_counted_in_part(lake):
    rows = lake.create_table("rows", ITEMS, vnodes=2)
    for n in range(6):
        rows.append([{"id": n}] * (n + 1))
        if n == 2:
            rows.compact(full=True)
    files = [pair for pair in rows.log.refresh().by_seq if pair[1].pack is None]
    pack_files(rows.log, [Bundle(tuple(files[1:5]), 1)])
    assert [rows.count(at=seq) for seq in range(1, 7)] == [1, 3, 6, 10, 15, 21]
    assert rows.count() == 21
