"""What every sink promises, on every destination. Numbers in brackets are those of the faults that a test looks for."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from forks import Interrupted, at_crash_points
from strandline.consumers import ranges
from strandline.pipeline import commands
from support import ITEMS, SECRET, refused


@pytest.fixture
def parquet(place_of):
    return place_of("parquet")


def some(*ids, name="a", qty=1):
    return [{"id": id_, "name": name, "qty": qty} for id_ in ids]


def tick(lake, name="out"):
    """The report of a sink that had something to do and did it."""
    report = {each.name: each for each in lake.tick().sinks}[name]
    assert report.error is None, report.error
    return report


def failed(lake, name="out"):
    """The report of a sink that could not."""
    report = {each.name: each for each in lake.tick().sinks}[name]
    assert report.error is not None
    return report


def interrupt(lake, point):
    """A tick that ends at the first pass of a crash point, as if it had been killed there."""

    def here(name):
        if name == point:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick()


def marks(lake, name="out"):
    return lake.state.marks.load(lake.state.registry.get(name))


def written(lake):
    """When each file of a local lake was written last, but those that SQLite touches to read."""
    return {
        path: path.stat().st_mtime_ns
        for path in Path(lake.storage.uri).rglob("*")
        if path.is_file() and not path.name.startswith("state.db-")
    }


def rows_by_id(table):
    return {row["id"]: row for row in table.to_arrow().to_pylist()}


def check_equal(there, table):
    """The destination has what the table has, and every change once."""
    assert there.current() == rows_by_id(table)
    changes = [tuple(change.items()) for change in there.changes()]
    assert len(changes) == len(set(changes))


# --- what is sent -----------------------------------------------------------------------------------------------


def test_the_first_run_sends_the_table_as_it_is_and_later_ones_what_is_new(lake, items, there):
    items.upsert(some(*range(10)))
    items.delete([8, 9])
    items.compact(full=True)
    items.vacuum(keep=0, grace=0)
    items.upsert(some(7, name="b"))
    lake.sink("out", "items", to=there.sink())
    planned = lake.plan().sinks[0]
    assert planned.is_new and planned.why and planned.error is None
    before = there.traces()

    first = tick(lake)
    assert (first.rows, first.is_full, first.is_new, first.why) == (8, True, True, planned.why)
    assert {change["_op"] for change in there.changes()} == {"upsert"}
    assert len(there.changes()) == 8
    check_equal(there, items)
    assert there.traces() != before

    items.upsert(some(1, 20, 21, name="c"))
    items.delete([2, 3])
    planned = lake.plan().sinks[0]
    second = tick(lake)
    assert (planned.rows, planned.bytes) == (second.rows_read, second.bytes_read)
    assert (second.rows, second.rows_read, second.is_full, second.is_new) == (5, 5, False, False)
    assert (second.after, second.upto) == (first.upto, items.head)
    check_equal(there, items)
    assert len(there.changes()) == 13
    assert not any(SECRET.encode() in path.read_bytes() for path in Path(lake.storage.uri).glob("state.*"))


def test_a_tick_with_nothing_new_asks_and_writes_nothing(lake, items, there):
    """[15] The fixture that watches every test sees that no JVM starts."""
    lake.sink("out", "items", to=there.sink())
    items.upsert(some(1, 2))
    tick(lake)
    before, files = there.traces(), written(lake)
    for _ in range(2):
        assert lake.plan().is_idle
        assert lake.tick().is_idle
    assert there.traces() == before
    assert written(lake) == files
    check_equal(there, items)


def test_an_empty_table_a_single_row_and_a_table_of_which_all_is_deleted_end_equal(lake, items, near):
    """[27]"""
    lake.sink("out", "items", to=near.sink())
    assert (tick(lake).rows, near.changes()) == (0, [])
    items.upsert(some(1))
    assert tick(lake).rows == 1
    check_equal(near, items)
    items.delete([1])
    assert tick(lake).rows == 1
    assert near.current() == {}
    late = near.another()
    lake.sink("late", "items", to=late.sink())
    assert (tick(lake, "late").rows, late.changes()) == (0, [])
    items.upsert(some(2))
    lake.tick()
    check_equal(near, items)
    check_equal(late, items)


def test_a_sink_that_starts_at_the_head_sends_what_comes_next(lake, items, near):
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=near.sink(), start="head")
    assert (tick(lake).rows, near.changes()) == (0, [])
    items.upsert(some(3))
    items.delete([1])
    report = tick(lake)
    assert (report.rows, report.rows_read, report.is_full) == (2, 2, False)
    assert sorted((change["_op"], change["id"]) for change in near.changes()) == [("delete", 1), ("upsert", 3)]


def test_a_sink_that_starts_at_the_head_of_an_empty_table_sends_all_that_comes(lake, items, parquet):
    lake.sink("out", "items", to=parquet.sink(), start="head")
    tick(lake)
    items.upsert(some(1))
    lake.tick()
    check_equal(parquet, items)


def test_a_sink_that_starts_at_a_seq_sends_the_changes_after_it(lake, items, near):
    seqs = [items.upsert(some(number)).seq for number in range(4)]
    lake.sink("out", "items", to=near.sink(), start=seqs[1])
    report = tick(lake)
    assert (report.rows, report.is_full) == (2, False)
    assert sorted(near.current()) == [2, 3]
    every = near.another()
    lake.sink("every", "items", to=every.sink(), start=0)
    assert tick(lake, "every").rows == 4
    check_equal(every, items)


def test_two_sinks_of_one_kind_on_one_table_both_get_all_rows(lake, items, near):
    """[5]"""
    second = near.another()
    lake.sink("out", "items", to=near.sink())
    lake.sink("twin", "items", to=second.sink())
    for number in range(3):
        items.upsert(some(number, number + 10))
        assert [report.rows for report in lake.tick().sinks] == [2, 2]
    check_equal(near, items)
    check_equal(second, items)


def test_a_table_without_a_key_arrives_row_by_row(lake, near):
    events = lake.create_table("events", ITEMS, vnodes=2)
    near.expect(ITEMS)
    lake.sink("out", "events", to=near.sink())
    events.append([*some(1), *some(1), *some(2)])
    assert tick(lake).rows == 3
    events.append(some(1))
    assert tick(lake).rows == 1
    assert sorted(change["id"] for change in near.changes()) == [1, 1, 1, 2]
    assert lake.tick().sinks == ()


def test_a_long_way_to_the_head_is_taken_in_parts_each_with_its_mark(lake, items, near, monkeypatch):
    monkeypatch.setattr(ranges, "BATCH_ROWS", 2)
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(0))
    tick(lake)
    for number in range(1, 5):
        items.upsert(some(number, number + 10))
    items.delete([0])
    assert [(work.after, work.upto) for work in lake.plan().sinks[0].works] == [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    advances = itertools.count()

    def here(name):
        if name == "marks.advanced" and next(advances) == 1:
            raise Interrupted

    with at_crash_points(here), pytest.raises(Interrupted):
        lake.tick()
    assert set(marks(lake).values()) == {3}
    assert tick(lake).rows == 5
    check_equal(near, items)
    assert len(near.changes()) == 10


def test_rows_that_are_written_folded_and_trimmed_while_a_tick_runs_are_all_sent(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    numbers = itertools.count(1)

    def here(name):
        if name in ("marks.intent_saved", "loop.lanes_done"):
            items.upsert(some(next(numbers)))
            items.compact(full=True)
            items.vacuum(keep=0, grace=0)

    items.upsert(some(0))
    with at_crash_points(here):
        for _ in range(3):
            tick(lake)
    tick(lake)
    check_equal(near, items)
    assert len(near.changes()) == next(numbers)


def test_a_sink_that_cannot_go_on_keeps_no_other_from_its_work(lake, items, near):
    lake.create_table("gone", ITEMS, key=["id"])
    for name, table in (("lost", "gone"), ("out", "items")):
        lake.sink(name, table, to=near.sink() if name == "out" else near.another().sink())
    lake.tick()
    lake.drop("gone")
    items.upsert(some(1))
    reports = {report.name: report for report in lake.tick().sinks}
    assert (type(reports["lost"].error), reports["out"].error) == (sl.NotFound, None)
    check_equal(near, items)
    with refused(sl.NotFound, consumer="nobody"):
        lake.tick(only=["nobody"])


# --- what leaves of a row -----------------------------------------------------------------------------------------


def test_a_row_that_the_filter_refuses_or_cannot_judge_leaves_as_a_delete(lake, items, near):
    lake.sink("out", "items", to=near.sink(), where="qty > 0")
    items.upsert([*some(1, 2, 3, name="open"), *some(4, name="hidden one", qty=-1)])
    assert tick(lake).rows == 3
    items.upsert([*some(1, name="hidden two", qty=0), *some(2, name="hidden three", qty=None), *some(5, name="open")])
    assert tick(lake).rows == 3
    assert sorted(near.current()) == [3, 5]
    assert not any("hidden" in text for text in near.texts())


def test_a_filter_whose_column_is_gone_lets_no_row_leave(lake, items, near):
    lake.sink("out", "items", to=near.sink(), where="name = 'open'")
    items.upsert([*some(1, name="open", qty=5)])
    tick(lake)
    items.drop_column("name")
    items.upsert([{"id": 1, "qty": 77}, {"id": 2, "qty": 77}])
    report = tick(lake)
    assert (report.rows, report.withheld) == (0, 2)
    assert [row["qty"] for row in near.current().values()] == [5]
    items.delete([1])
    assert tick(lake).rows == 1
    assert near.current() == {}


@pytest.mark.parametrize("where", ["name IS NULL", "qty > 0 OR name = 'open'", "coalesce(name, 'open') = 'open'"])
def test_a_filter_that_is_true_without_its_column_lets_no_row_leave_either(lake, items, parquet, where):
    lake.sink("out", "items", to=parquet.sink(), where=where)
    items.upsert(some(1, name="secret", qty=0))
    tick(lake)
    items.drop_column("name")
    items.upsert([{"id": 2, "qty": 77}])
    tick(lake)
    assert parquet.current() == {}


def test_a_sink_without_deletes_withholds_them_and_a_withheld_tail_moves_the_mark(lake, items, near):
    """[6]"""
    lake.sink("out", "items", to=near.sink(), where="qty > 0", deletes=False)
    items.upsert(some(1, 2))
    tick(lake)
    items.delete([1])
    items.upsert(some(2, 3, name="hidden", qty=0))
    report = tick(lake)
    assert (report.rows, report.withheld, report.rows_read) == (0, 3, 3)
    assert set(marks(lake).values()) == {items.head}
    before = near.traces()
    assert lake.tick().sinks == ()
    assert near.traces() == before
    assert sorted(near.current()) == [1, 2]
    assert not any("hidden" in text for text in near.texts())
    items.upsert(some(4))
    assert (tick(lake).rows, sorted(near.current())) == (1, [1, 2, 4])


def test_a_masked_value_never_arrives_and_what_is_not_chosen_neither(lake, near):
    names = ["id", "mail", "note", "pin", "other"]
    schema = pa.schema([("id", pa.string()), ("mail", pa.string()), ("note", pa.string()), ("pin", pa.string())])
    people = lake.create_table("people", schema.append(pa.field("other", pa.string())), key=["id"], vnodes=2)
    near.expect(people.schema, "id")
    mask = {"id": "hash", "mail": "hash", "note": "redact", "pin": "null"}
    lake.sink("out", "people", to=near.sink(), columns=names[:-1], mask=mask, salt="pepper")
    people.upsert([{name: f"secret {name} {number}" for name in names} for number in range(3)])
    assert tick(lake).rows == 3
    people.upsert([{**dict.fromkeys(names), "id": "secret id 0"}])
    people.delete(["secret id 1"])
    assert tick(lake).rows == 2
    found = near.current()
    assert len(found) == 2, "keys still meet when they are hashed"
    assert sorted((row["note"] is None, row["mail"] is None, row["pin"]) for row in found.values()) == [
        (False, False, None),
        (True, True, None),
    ]
    assert {len(key) for key in found} == {64}
    assert not any("secret" in text or "pepper" in text for text in near.texts())
    assert not any(b"pepper" in path.read_bytes() for path in Path(lake.storage.uri).glob("state.*"))


# --- what changes meanwhile --------------------------------------------------------------------------------------


def test_a_column_that_comes_between_two_ticks_arrives_with_its_rows(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1, 2))
    tick(lake)
    items.evolve(pa.schema([("colour", pa.string())]))
    items.upsert([{"id": 2, "colour": "red"}, {"id": 3, "colour": "blue"}], missing="null")
    assert tick(lake).rows == 2
    assert {id_: row.get("colour") for id_, row in near.current().items()} == {1: None, 2: "red", 3: "blue"}


def test_a_column_that_comes_between_a_crash_and_its_replay_changes_nothing_of_what_was_begun(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1, 2))
    tick(lake)
    for number, point in enumerate(["marks.intent_saved", "loop.lanes_done", "loop.finished"]):
        items.upsert(some(10 + number))
        interrupt(lake, point)
        items.evolve(pa.schema([(f"colour{number}", pa.string())]))
        items.upsert([{"id": 1, f"colour{number}": "red"}], missing="null")
        assert tick(lake).replays == 1 or point != "marks.intent_saved"
        found = {id_: row.get(f"colour{number}") for id_, row in near.current().items()}
        assert found == {1: "red", 2: None, **dict.fromkeys(range(10, 11 + number))}
    assert len(near.changes()) == 8


def test_a_column_that_is_renamed_between_a_crash_and_its_replay_is_sent_under_both_names_in_turn(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1, 2))
    tick(lake)
    items.upsert(some(3, name="begun"))
    interrupt(lake, "marks.intent_saved")
    items.rename_column("name", "title")
    items.upsert([{"id": 2, "title": "new", "qty": 1}])
    assert tick(lake).replays == 1
    lake.tick()
    found = {id_: (row.get("name"), row.get("title")) for id_, row in near.current().items()}
    assert found == {1: ("a", None), 2: (None, "new"), 3: ("begun", None)}
    assert len(near.changes()) == 4


def test_a_widened_number_arrives_whole_or_is_refused_by_name_also_between_a_crash_and_its_replay(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1))
    tick(lake)
    items.upsert(some(2))
    interrupt(lake, "loop.lanes_done")
    wide = pa.schema([("qty", pa.int64())])
    items.evolve(wide)
    items.upsert(some(3, qty=1 << 40))
    near.expect(wide, "id")
    if near.widens:
        tick(lake)
        assert {id_: row["qty"] for id_, row in near.current().items()} == {1: 1, 2: 1, 3: 1 << 40}
        assert len(near.changes()) == 3
    else:
        report = failed(lake)
        assert (type(report.error), report.error.fields["column"]) == (sl.Invalid, "qty")
        assert sorted(near.current()) == [1, 2]


def test_a_new_destination_gets_everything_and_the_report_says_why(lake, items, near):
    """[7]"""
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=near.sink())
    tick(lake)
    items.upsert(some(3))
    interrupt(lake, "marks.intent_saved")
    new, old = near.another(), near.traces()
    lake.sink("out", "items", to=new.sink())
    planned = lake.plan().sinks[0]
    assert planned.is_new and "destination changed" in planned.why
    report = tick(lake)
    assert (report.rows, report.is_full, report.is_new, report.why) == (3, True, True, planned.why)
    check_equal(new, items)
    assert near.traces() == old, "nothing more goes to the old place"
    assert [life.life for life in lake.state.registry.history("out")] == [1, 2]


def test_a_renamed_table_goes_on_where_it_was(lake, items, near):
    lake.sink("out", "items", to=near.sink())
    items.upsert(some(1))
    tick(lake)
    things = lake.rename("items", "things")
    things.upsert(some(2))
    lake.sink("out", "things", to=near.sink())
    report = tick(lake)
    assert (report.rows, report.is_new, "renamed" in report.why) == (1, False, True)
    check_equal(near, things)


def test_a_recreated_table_is_sent_anew_and_the_report_says_why(lake, items, near):
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=near.sink())
    tick(lake)
    lake.drop("items")
    again = lake.create_table("items", ITEMS, key=["id"], vnodes=4)
    again.upsert(some(5, 6, 7, name="again"))
    planned = lake.plan().sinks[0]
    assert planned.is_new and "recreated" in planned.why
    report = tick(lake)
    assert (report.rows, report.is_full, report.is_new) == (3, True, True)
    assert sorted(change["id"] for change in near.changes() if change["name"] == "again") == [5, 6, 7]


def test_a_destination_that_was_recreated_behind_our_back_gets_nothing_until_someone_says_so(lake, items, there):
    """[8]"""
    if not there.knows_its_past:
        pytest.skip("nothing tells a receiver without positions that it was emptied")
    lake.sink("out", "items", to=there.sink())
    items.upsert(some(1, 2))
    tick(lake)
    there.recreate()
    items.upsert(some(3))
    for _ in range(2):
        report = failed(lake)
        assert type(report.error) is sl.Conflict
        assert report.error.fields["consumer"] == "out"
        assert "strandline mark reset out" in report.error.hint
        assert report.rows == 0
    assert there.changes() == []
    commands.reset(lake, "out")
    assert (tick(lake).rows, lake.state.registry.get("out").life) == (3, 2)
    check_equal(there, items)


def test_a_changed_filter_keeps_the_position(lake, items, near):
    lake.sink("out", "items", to=near.sink(), where="qty > 5")
    items.upsert([*some(1, qty=10), *some(2, qty=1)])
    assert tick(lake).rows == 1
    lake.sink("out", "items", to=near.sink(), where="qty > 0")
    planned = lake.plan().sinks[0]
    assert not planned.is_new and planned.works == () and "definition changed" in planned.why
    report = tick(lake)
    assert (report.rows, report.rows_read, report.is_new, report.why) == (0, 0, False, planned.why)
    items.upsert(some(3, qty=3))
    assert (tick(lake).rows, sorted(near.current())) == (1, [1, 3])


def test_a_definition_that_changes_while_something_is_under_way_counts_for_all_that_is_new(lake, items, near):
    """A row that comes after a filter was tightened must not leave by the one before it."""
    lake.sink("out", "items", to=near.sink(), where="qty > 0")
    items.upsert(some(1))
    interrupt(lake, "loop.lanes_done")
    lake.sink("out", "items", to=near.sink(), where="qty > 0 AND name <> 'secret'")
    items.upsert(some(2, name="secret"))
    lake.tick()
    assert not any("secret" in text for text in near.texts())


def test_a_definition_that_changes_while_something_is_under_way_waits_for_it(lake, items, near):
    lake.sink("out", "items", to=near.sink(), where="qty > 5")
    items.upsert([*some(1, qty=10), *some(2, qty=1)])
    interrupt(lake, "loop.lanes_done")
    lake.sink("out", "items", to=near.sink(), where="qty > 0")
    planned = lake.plan().sinks[0]
    assert planned.why and not planned.is_new
    assert [work.is_replay for work in planned.works] == [True]
    tick(lake)
    assert sorted(near.current()) == [1], "of what was begun the old filter decides"
    items.upsert(some(3, qty=3))
    tick(lake)
    assert sorted(near.current()) == [1, 3]
    assert len(near.changes()) == 2


# --- what goes wrong there ---------------------------------------------------------------------------------------


def test_a_destination_that_is_down_stops_nobody_else_and_gets_everything_once_when_it_is_back(lake, items, there):
    other = there.another()
    lake.sink("out", "items", to=there.sink())
    lake.sink("other", "items", to=other.sink())
    items.upsert(some(1, 2))
    lake.tick()
    there.down()
    items.upsert(some(3))
    reports = {report.name: report for report in lake.tick().sinks}
    assert type(reports["out"].error) is sl.Unavailable
    assert (reports["other"].error, reports["other"].rows) == (None, 1)
    assert set(marks(lake).values()) == {1}
    check_equal(other, items)
    there.up()
    items.upsert(some(4))
    assert tick(lake).rows == 2
    check_equal(there, items)
    assert len(there.changes()) == 4


def test_a_destination_that_is_down_from_the_first_is_filled_when_it_is_there(lake, items, near):
    items.upsert(some(1, 2))
    lake.sink("out", "items", to=near.sink())
    near.down()
    for _ in range(2):
        assert type(failed(lake).error) is sl.Unavailable
    items.upsert(some(2, name="b"))
    # What the first attempt fixed is still to be read, whatever the table's care does meanwhile.
    items.compact(full=True)
    items.vacuum(keep=0, grace=0)
    items.delete([1])
    near.up()
    tick(lake)
    check_equal(near, items)


def test_a_destination_that_refuses_is_named_and_nothing_is_lost(lake, items, there):
    items.upsert(some(1, 2))
    sink = there.sink()
    there.refuse()
    lake.sink("out", "items", to=sink)
    report = failed(lake)
    assert type(report.error) in (sl.Invalid, sl.Conflict, sl.Unavailable)
    assert (report.name, report.destination, report.rows) == ("out", sink.destination, 0)
    assert sink.destination in report.error.message
    items.upsert(some(3))
    there.accept()
    assert tick(lake).rows == 3
    check_equal(there, items)
