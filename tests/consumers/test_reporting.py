"""The report of a consumer: its errors stay in it, its time is taken, and progress never goes back."""

from __future__ import annotations

import threading

import pytest

import strandline as sl
from strandline.consumers.contract import ConsumerReport
from strandline.consumers.reporting import collect_errors, ignore_step, measure_time, sum_steps


def report():
    return ConsumerReport(name="a", table="t", kind="copy", destination="there")


def test_errors_are_collected_and_those_of_a_library_are_named():
    errors = []
    with collect_errors("sink 'a'", errors):
        raise sl.Unavailable("away")
    with collect_errors("sink 'a'", errors):
        raise ZeroDivisionError("by nought")
    assert [type(each) for each in errors] == [sl.Unavailable, sl.Internal]
    assert "ZeroDivisionError" in errors[1].message


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_collected(kind):
    errors = []
    with pytest.raises(kind), collect_errors("sink 'a'", errors):
        raise kind
    assert errors == []


def test_the_time_is_kept_also_after_an_error():
    found = report()
    with pytest.raises(sl.Invalid), measure_time(found):
        threading.Event().wait(0.01)
        raise sl.Invalid("no")
    assert found.seconds >= 0.01


def test_steps_of_many_threads_add_up_and_the_whole_grows_with_them():
    seen = []
    step = sum_steps(lambda done, whole, name: seen.append((done, whole, name)), 50)
    threads = [threading.Thread(target=lambda: [step(1, "a") for _ in range(20)]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    ignore_step(1, "a")
    assert seen[0] == (0, 50, "") and [done for done, _, _ in seen] == list(range(81))
    assert all(whole == max(done, 50) for done, whole, _ in seen)
