"""Pins: claims on the past of a table, held by those who read it, and gone with their time."""

import json
import time
from pathlib import Path

import pytest

import strandline as sl
from strandline.tables.pins import Pin, Pins, least, new_pin
from support import files_below, refused


@pytest.fixture
def pins(lake):
    return Pins(lake.storage, "0" * 32)


def paths(lake):
    return [name for name in files_below(lake.storage.uri) if name.startswith("pins/")]


def test_a_pin_is_what_was_put_and_expires_by_the_clock_of_its_file(lake, pins):
    pin = new_pin("test", name="one", length_s=60, seq=5, log_version=7, baseline_version=2, vnodes=(1, 2))
    pins.put(pin)
    now_s = lake.storage.now_s()
    (found,) = pins.all()
    assert now_s + 55 < found.expires_s < now_s + 65
    assert found == Pin(**{**pin.__dict__, "expires_s": found.expires_s})
    assert pins.live(now_s) == [found]
    assert pins.live(found.expires_s) == []
    assert pins.all() == [found], "also the expired"


def test_a_pin_is_renewed_moved_and_released(lake, pins):
    pins.put(new_pin("test", name="one", length_s=0.3, seq=5))
    first = pins.all()[0].expires_s
    time.sleep(0.05)
    pins.put(new_pin("test", name="one", length_s=0.3, seq=9))
    (found,) = pins.all()
    assert (found.seq, found.expires_s > first) == (9, True)
    pins.release("one")
    pins.release("one")
    assert pins.all() == []
    assert paths(lake) == []


@pytest.mark.parametrize("name", ["a/b", "../x", "", ".hidden", "a b", "x" * 129, "ü", "a\n"])
def test_a_name_that_is_no_plain_file_name_is_refused(pins, name):
    with refused(sl.Invalid):
        pins.put(Pin(name, "test", 10.0))
    assert pins.all() == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "7", '{"name": "x"}', '{"vnodes": 3}'])
def test_an_unreadable_pin_is_never_passed_over(lake, pins, content):
    pins.put(new_pin("test", name="good", seq=1))
    pins.put(new_pin("test", name="torn", seq=1))
    path = Path(lake.storage.uri) / "pins" / ("0" * 32) / "torn.json"
    path.write_text(content)
    with refused(sl.Invalid, path=f"pins/{'0' * 32}/torn.json"):
        pins.all()


def test_work_that_is_soon_over_writes_no_pin(lake, pins):
    with pins.held(new_pin("test")):
        assert paths(lake) == []
    assert paths(lake) == []


@pytest.mark.parametrize("length_s", [0.3, 0.1875])
def test_a_pin_is_written_after_a_while_renewed_and_let_go(lake, pins, length_s):
    """Also when a third of its length is the while itself."""
    with pins.held(new_pin("test", name="one", length_s=length_s, seq=1), quiet_s=0.0625):
        deadline_s = time.time() + 5
        while not pins.all() and time.time() < deadline_s:
            time.sleep(0.01)
        first = pins.all()[0].expires_s
        while pins.all()[0].expires_s == first and time.time() < deadline_s:
            time.sleep(0.01)
        assert pins.all()[0].expires_s > first, "it is renewed"
    assert pins.all() == []


def test_a_pin_is_let_go_when_the_work_fails(lake, pins):
    with pytest.raises(ZeroDivisionError), pins.held(new_pin("test", name="one", seq=1), quiet_s=0):
        assert len(pins.all()) == 1
        raise ZeroDivisionError
    assert pins.all() == []


def test_a_pin_of_a_table_names_what_its_reader_opens(items):
    items.upsert([{"id": 1}])
    items.compact(full=True)
    items.upsert([{"id": 2}])
    held = items.pin(1, name="mine", why="a report", length="90s")
    (pin,) = items.pins.all()
    assert (pin.seq, pin.log_version, pin.baseline_version) == (1, 2, 1)
    assert (pin.name, pin.why, pin.length_s, held.seq) == ("mine", "a report", 90.0, 1)
    held.renew()
    held.release()
    assert items.pins.all() == []


def test_a_pin_as_a_block_is_held_inside_and_gone_after_it(items):
    items.upsert([{"id": 1}])
    with items.pin() as held:
        assert held.seq == 1
        assert [pin.seq for pin in items.pins.all()] == [1]
    assert items.pins.all() == []


def test_a_named_pin_is_moved_by_another_handle(items):
    for at in range(3):
        items.upsert([{"id": at}])
    items.pin(1, name="mark")
    sl.Lake(items.log.storage.uri).table("items").pin(3, name="mark")
    assert [pin.seq for pin in items.pins.all()] == [3]


def test_what_cannot_be_read_cannot_be_pinned(items):
    for at in range(3):
        items.upsert([{"id": at}])
    items.compact(full=True)
    items.pin(3, name="mark")
    items.vacuum(keep=0, grace=0)
    with refused(sl.NotRetained, seq=1, oldest=3):
        items.pin(1, name="mark")
    assert [pin.seq for pin in items.pins.all()] == [3], "the pin of that name stays as it was"
    with refused(sl.Invalid):
        items.pin(4711)


@pytest.mark.parametrize("length", [0, "0s", -1, "soon", None, True])
def test_a_pin_without_a_length_is_refused(items, length):
    items.upsert([{"id": 1}])
    with refused(sl.Invalid):
        items.pin(length=length)
    assert items.pins.all() == []


def test_a_pin_file_is_json_that_a_person_can_read(lake, items):
    items.upsert([{"id": 1}])
    items.pin(name="mine")
    (name,) = paths(lake)
    facts = json.loads((Path(lake.storage.uri) / name).read_text())
    assert (facts["name"], facts["seq"], facts["why"]) == ("mine", 1, "asked for")
    assert name == f"pins/{items.entry.generation}/mine.json"


def test_the_least_of_what_is_there():
    assert least([], 7) == 7
    assert least([None, 3, None, 9], 7) == 3
    assert least([None, 0], 7) == 0
    assert least([9], 7) == 7
