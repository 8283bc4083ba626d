"""Ctrl-C at every step of what is held while work goes on: no thread renews a claim of work that has ended."""

import json

import pytest

from support import answer_of, python, start_python

# Raises KeyboardInterrupt at the n-th step of Python code below `act`, for every n until `act` comes to its end. Steps
# are single instructions of the modules that hold something; the interrupt that a signal makes falls between those.
WALK = '''
import contextlib, gc, json, os, sys, threading, time

def walk(act, is_clean, modules, stride=1):
    for stop in range(0, 100_000, stride):
        left = [stop]

        def trace(frame, event, arg):
            if os.path.basename(frame.f_code.co_filename) not in modules:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            act()
            ended = True
        except KeyboardInterrupt:
            ended = False
        finally:
            sys.settrace(None)
        deadline = time.monotonic() + 20
        while not is_clean() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert is_clean(), f"left behind after step {stop}"
        if ended:
            return stop
    raise AssertionError("never came to its end")

# Outside of the modules that are stepped through.
exec(compile("""
import _thread
running = []
begin = _thread.start_new_thread

def counted(work, args):
    def run():
        try:
            work(*args)
        finally:
            running.remove(mark)
    mark = object()
    running.append(mark)
    return begin(run, ())

_thread.start_new_thread = counted
""", "count.py", "exec"))

def threads():
    return len(running)

import strandline as sl
from support import ITEMS, files_below
lake = sl.Lake(sys.argv[1])
table = lake.create_table("t", ITEMS, key=["id"], vnodes=4)
'''


def steps(tmp_path, code):
    ended = python(WALK + code, str(tmp_path / "lake"), timeout_s=280)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("quiet_s", [0, 30])
def test_an_interrupt_at_any_step_of_holding_a_pin_leaves_neither_thread_nor_pin(tmp_path, quiet_s):
    code = f"""
from strandline.tables.pins import new_pin

def act():
    with table.pins.held(new_pin("test", vnodes=(0, 1)), quiet_s={quiet_s}):
        len("work")

def is_clean():
    return not threads() and not table.pins.all()

print(walk(act, is_clean, {{"pins.py", "beside.py", "contextlib.py", "threading.py", "<string>"}}))
"""
    assert steps(tmp_path, code) > 50


def test_an_interrupt_at_any_step_of_a_users_pin_leaves_no_thread(tmp_path):
    code = """
pin = table.pin(length="1h")

def act():
    with type(pin)(pin.pin, pin.pins, pin.check):
        len("work")

print(walk(act, lambda: not threads(), {"pins.py", "beside.py", "contextlib.py", "threading.py", "<string>"}))
"""
    assert steps(tmp_path, code) > 50


def test_an_interrupt_at_any_step_of_holding_a_lease_leaves_no_thread(tmp_path):
    code = """
from strandline.state.leases import this_worker
leases = lake.state.leases

def act():
    # One that is interrupted before the thread runs expires; it is another's name that matters here.
    with leases.hold(os.urandom(8).hex(), this_worker(), 60.0):
        len("work")

print(walk(act, lambda: not threads(), {"beside.py", "contextlib.py", "<string>"}, stride=2))
"""
    assert steps(tmp_path, code) > 50


def test_an_interrupt_at_any_step_of_claiming_a_destination_leaves_it_free(tmp_path):
    code = """
from strandline.jobs.export.destination import Destination
place = os.path.join(sys.argv[1] + "-out")

def act():
    with Destination(place, None, may_replace=True).claim():
        len("work")

print(walk(act, lambda: act() or True, {"lock.py", "<string>"}, stride=4))
"""
    assert steps(tmp_path, code) > 50


COMPACTIONS = """
import os, random, signal, sys, threading, time
import json
import strandline as sl
from support import ITEMS
lake = sl.Lake(sys.argv[1])
table = lake.create_table("t", ITEMS, key=["id"], vnodes=16)
chance = random.Random(int(sys.argv[2]))
interrupted = 0
from strandline.consumers import compaction
compaction.QUIET_S = 0.0
for attempt in range(40):
    table.upsert([{"id": at, "name": str(attempt)} for at in range(300)])
    timer = threading.Timer(chance.random() * 0.08, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        table.compact(full=True)
        timer.join()
    except KeyboardInterrupt:
        interrupted += 1
    try:
        timer.join()
        time.sleep(0)
    except KeyboardInterrupt:
        interrupted += 1
deadline = time.monotonic() + 30
while table.pins.all() and time.monotonic() < deadline:
    time.sleep(0.01)
left = [pin.name for pin in table.pins.all()]
report = table.compact(full=True)
rows = {row["name"] for row in table.to_arrow().to_pylist()}
print(json.dumps([interrupted, left, report.claimed, table.plan_compaction(full=True).waiting_rows, sorted(rows)]))
"""


def test_compactions_that_were_interrupted_leave_nothing_claimed(tmp_path):
    """One process, which lives on: what a dead one claims is known to be abandoned anyway."""
    interrupted, left, claimed, waiting, names = answer_of(
        start_python(COMPACTIONS, str(tmp_path / "lake"), "7"), timeout_s=250
    )
    assert interrupted > 5
    assert (left, claimed, waiting, names) == ([], 0, 0, ["39"])
