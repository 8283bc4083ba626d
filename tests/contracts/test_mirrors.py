"""What every mirror promises: the destination equals the table, whatever happens to the table."""

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from forks import Interrupted, at_crash_points
from strandline.sinks import mirror as mirrors
from support import ITEMS, refused


def some(*ids, name="a", qty=1):
    return [{"id": id_, "name": name, "qty": qty} for id_ in ids]


def tick(lake):
    """The report of a sink that had something to do and did it."""
    (report,) = lake.tick().sinks
    assert report.error is None, report.error
    return report


def rows_of(place):
    return sorted(({k: v for k, v in row.items() if k not in ("_op", "_seq")} for row in place.changes()), key=repr)


def check_equal(lake, place, table, **only):
    report = tick(lake)
    expected = table.to_arrow(**only).to_pylist()
    assert rows_of(place) == sorted(expected, key=repr)
    return report


def test_updates_deletes_inserts_and_a_restore_arrive_as_rows(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(*range(20)))
    assert check_equal(lake, mirror, items).is_full
    items.upsert(some(3, 30, name="b"))
    then = items.upsert(some(3, name="c")).seq
    items.delete([4, 999])
    assert not check_equal(lake, mirror, items).is_full
    items.delete([*range(10)])
    items.upsert(some(40))
    check_equal(lake, mirror, items)
    items.restore(then)
    check_equal(lake, mirror, items)
    items.delete([row["id"] for row in items.to_arrow().to_pylist()])
    check_equal(lake, mirror, items)
    assert lake.tick().is_idle


def test_a_row_that_the_condition_refuses_leaves_and_hidden_columns_stay_hidden(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink(), where="qty > 0", columns=["qty"], mask={"id": "hash"}, salt="s")
    items.upsert(some(1, 2, 3))
    tick(lake)
    assert [sorted(row) for row in rows_of(mirror)] == [["id", "qty"]] * 3
    items.upsert(some(2, qty=-1))
    items.upsert(some(3, qty=7))
    tick(lake)
    assert sorted(row["qty"] for row in rows_of(mirror)) == [1, 7]


def test_another_condition_writes_the_mirror_again(lake, items, mirror):
    items.upsert([*some(1), *some(2, qty=5)])
    lake.sink("out", "items", to=mirror.sink(), where="qty > 3")
    check_equal(lake, mirror, items, where="qty > 3")
    lake.declared.clear()
    lake.sink("out", "items", to=mirror.sink(), where="qty < 3")
    report = check_equal(lake, mirror, items, where="qty < 3")
    assert report.is_new and "written again" in report.why


def test_added_widened_and_dropped_columns_flow_to_the_mirror(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1, 2))
    check_equal(lake, mirror, items)
    items.evolve(pa.schema([("colour", pa.string())]))
    items.upsert([{"id": 2, "colour": "red"}], missing="null")
    assert not check_equal(lake, mirror, items).is_full
    items.evolve(pa.schema([("qty", pa.int64())]))
    items.upsert([{"id": 3, "qty": 1 << 40}])
    check_equal(lake, mirror, items)
    items.drop_column("colour")
    check_equal(lake, mirror, items)
    items.upsert(some(2, name="b"))
    assert not check_equal(lake, mirror, items).is_full


def test_an_added_column_is_in_the_mirror_after_the_next_tick_without_a_change(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1, 2))
    check_equal(lake, mirror, items)
    items.add_column("colour", "string")
    report = check_equal(lake, mirror, items)
    assert (report.rows, report.is_full, report.facts["columns"]) == (0, False, [*ITEMS.names, "colour"])
    assert rows_of(mirror) == [{**row, "colour": None} for row in some(1, 2)]
    assert lake.tick().is_idle
    items.upsert([{"id": 3, "name": "c", "qty": 1, "colour": "red"}])
    items.add_column("size", "int64")
    report = check_equal(lake, mirror, items)
    assert (report.rows, report.upto) == (1, items.head)
    assert lake.tick().is_idle


def test_settings_are_no_work_for_a_mirror(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1))
    check_equal(lake, mirror, items)
    items.configure(keep="9d")
    assert lake.tick().is_idle


def test_a_renamed_column_writes_the_mirror_again(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1, 2))
    check_equal(lake, mirror, items)
    items.rename_column("name", "title")
    assert check_equal(lake, mirror, items).is_new
    items.upsert([{"id": 2, "title": "b", "qty": 1}, {"id": 3, "title": "c", "qty": 1}])
    assert not check_equal(lake, mirror, items).is_full


def test_the_same_holds_for_a_sink_that_only_the_state_knows(lake, items, mirror):
    lake.add_sink(lake.sink("out", "items", to=mirror.sink()))
    lake.declared.clear()
    items.upsert(some(1, 2))
    check_equal(lake, mirror, items)
    items.drop_column("name")
    items.upsert([{"id": 2, "qty": 9}])
    assert check_equal(lake, mirror, items).is_new
    items.upsert([{"id": 3, "qty": 9}])
    assert not check_equal(lake, mirror, items).is_new


def test_rows_that_expire_leave_the_mirror(lake, mirror):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    visits = lake.create_table("visits", schema, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    lake.sink("out", "visits", to=mirror.sink())
    visits.upsert([{"id": id_, "at": dt.datetime(2020, 1, 1 + id_)} for id_ in range(9)])
    visits.upsert([{"id": 50, "at": None}])
    check_equal(lake, mirror, visits)
    visits.expire(dt.datetime(2020, 1, 5))
    check_equal(lake, mirror, visits)
    assert len(rows_of(mirror)) == 6
    visits.upsert([{"id": 8, "at": dt.datetime(2020, 1, 2)}, {"id": 60, "at": dt.datetime(2020, 1, 3)}])
    check_equal(lake, mirror, visits)
    assert len(rows_of(mirror)) == 5


@pytest.mark.parametrize("point", ["marks.intent_saved", "sink.files_written", "sink.committed"])
def test_an_expiry_that_was_interrupted_is_repeated(lake, place_of, point):
    schema = pa.schema([("id", pa.int64()), ("at", pa.date32())])
    visits = lake.create_table("visits", schema, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    place = place_of("delta-mirror")
    lake.sink("out", "visits", to=place.sink())
    visits.upsert([{"id": id_, "at": dt.date(2020, 1, 1 + id_)} for id_ in range(9)])
    check_equal(lake, place, visits)
    visits.expire(dt.datetime(2020, 1, 5, 12))

    def stop(name):
        if name == point:
            raise Interrupted

    with at_crash_points(stop), pytest.raises(Interrupted):
        lake.tick()
    visits.upsert([{"id": 60, "at": dt.date(2020, 1, 3)}])
    check_equal(lake, place, visits)
    assert len(rows_of(place)) == 4


def test_rows_that_expire_by_a_column_that_is_not_sent_stop_the_sink(lake, mirror):
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    visits = lake.create_table("visits", schema, key=["id"], vnodes=2, time="at", compact_ratio=1e9)
    lake.sink("out", "visits", to=mirror.sink(), columns=["id"])
    visits.upsert([{"id": 1, "at": dt.datetime(2020, 1, 1)}])
    tick(lake)
    visits.expire(dt.datetime(2020, 1, 5))
    error = lake.tick().sinks[0].error
    assert type(error) is sl.Invalid and error.fields["column"] == "at"


def test_a_table_without_a_key_arrives_row_by_row_without_hidden_columns(lake, mirror):
    notes = lake.create_table("notes", pa.schema([("text", pa.string())]), vnodes=2, compact_ratio=1e9)
    lake.sink("out", "notes", to=mirror.sink())
    for number in range(3):
        notes.append([{"text": "same"}, {"text": f"{number}"}])
        check_equal(lake, mirror, notes)
    assert len(rows_of(mirror)) == 6


def test_small_files_are_packed_and_nothing_is_lost(lake, items, mirror, monkeypatch):
    monkeypatch.setattr(mirrors, "_MANY", 3)
    lake.sink("out", "items", to=mirror.sink())
    for number in range(8):
        items.upsert(some(number, number + 100, 50, name=f"{number}"))
        check_equal(lake, mirror, items)


def test_a_batch_that_does_not_fit_into_memory_is_applied_too(lake, items, mirror, monkeypatch):
    monkeypatch.setattr(mirrors, "_PLACED_BYTES", 0)
    lake.sink("out", "items", to=mirror.sink())
    for number in range(3):
        items.upsert(some(number, number + 1, 9, name=f"{number}"))
        items.delete([number])
        check_equal(lake, mirror, items)


def test_a_reset_writes_the_mirror_again_and_starts_nowhere_else(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1, 2))
    tick(lake)
    for start in ("head", 1):
        with refused(sl.Invalid, consumer="out"):
            lake.reset_sink("out", start)
    items.delete([1])
    lake.reset_sink("out")
    assert check_equal(lake, mirror, items).is_full


def test_the_mode_of_a_sink_changes_in_a_new_life_only(lake, items, place_of):
    place = place_of("delta")
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=place.sink())
    tick(lake)
    lake.declared.clear()
    lake.sink("out", "items", to=sl.DeltaSink(place.uri))
    items.upsert(some(3))
    assert not tick(lake).is_new
    assert {change["_op"] for change in place.changes()} == {"upsert"}
    lake.declared.clear()
    lake.sink("out", "items", to=sl.DeltaSink(place.uri, mode="mirror"))
    assert lake.plan().sinks[0].is_new
    assert type(lake.tick().sinks[0].error) is sl.Invalid


def test_a_purged_row_is_gone_from_the_mirror_after_the_next_tick(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1, 2))
    tick(lake)
    items.delete([1])
    tick(lake)
    items.purge([1])
    assert [row["id"] for row in rows_of(mirror)] == [2]


@pytest.mark.parametrize("kind", ["delta-mirror", "iceberg-mirror"])
def test_a_mirror_equals_the_table_of_any_key(lake, place_of, kind):
    schema = pa.schema([("day", pa.date32()), ("code", pa.binary()), ("tags", pa.list_(pa.int32()))])
    table = lake.create_table("codes", schema, key=["day", "code"], vnodes=2, compact_ratio=1e9)
    place = place_of(kind)
    lake.sink("out", "codes", to=place.sink())
    for number in range(4):
        rows = [{"day": dt.date(2024, 1, 1 + n % 3), "code": bytes([n]), "tags": [number]} for n in range(number, 12)]
        table.upsert(rows[number:])
        check_equal(lake, place, table)


def test_items_have_the_columns_that_a_mirror_shows(lake, items, mirror):
    lake.sink("out", "items", to=mirror.sink())
    items.upsert(some(1))
    tick(lake)
    assert list(rows_of(mirror)[0]) == ITEMS.names
