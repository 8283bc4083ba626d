"""Work in DuckDB that ends when its caller wants it to."""

import threading
import time

import duckdb
import pytest

import strandline as sl
from strandline.engines import stoppable
from strandline.engines.stoppable import StoppableWork, run_stoppable, was_work_stopped
from support import python, refused

ENDLESS = "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE a.range + b.range + c.range < 0"


def test_the_answer_of_the_work_is_the_callers_and_so_is_its_error():
    assert run_stoppable(lambda work: 7) == 7
    with pytest.raises(KeyError), duckdb.connect() as connection:
        run_stoppable(lambda work: {}[connection])


def test_the_work_runs_in_a_thread_of_its_own():
    assert run_stoppable(lambda work: threading.get_ident()) != threading.get_ident()


def test_work_that_takes_longer_than_its_limit_is_interrupted_and_its_cursor_lives_on():
    cursor, ended = duckdb.connect(), threading.Event()

    def work(own):
        try:
            with own.holding(cursor):
                return cursor.execute(ENDLESS).fetchall()
        finally:
            ended.set()

    begun = time.monotonic()
    with refused(sl.Unavailable, timeout_s=0.1):
        run_stoppable(work, timeout_s=0.1)
    assert time.monotonic() - begun < 10
    assert ended.wait(10)
    assert was_work_stopped()
    assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_work_that_does_not_listen_is_left_behind_and_goes_no_further():
    gate, outcome = threading.Event(), []

    def work(own):
        gate.wait(10)
        try:
            with own.holding(None):
                outcome.append("went on")
        except sl.StrandlineError as error:
            outcome.append(type(error))

    with refused(sl.Unavailable):
        run_stoppable(work, timeout_s=0.05)
    assert outcome == []
    gate.set()
    until = time.monotonic() + 10
    while not outcome and time.monotonic() < until:
        time.sleep(0.01)
    assert outcome == [sl.Internal]


def test_work_that_makes_the_process_large_is_stopped(monkeypatch):
    monkeypatch.setattr(stoppable, "_SPARE_BYTES", 0)
    stop = threading.Event()

    def work(own):
        held = []
        while not stop.is_set():
            held.append(bytearray(1 << 22))
            time.sleep(0.005)

    try:
        with refused(sl.Invalid):
            run_stoppable(work, timeout_s=20, most_bytes=1 << 25)
    finally:
        stop.set()


def test_ctrl_c_reaches_the_caller_while_duckdb_works():
    ended = python(
        f"""
import duckdb, os, signal, threading
from strandline.engines.stoppable import run_stoppable
cursor = duckdb.connect()
def work(own):
    with own.holding(cursor):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return cursor.execute({ENDLESS!r}).fetchall()
try:
    run_stoppable(work)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert ended.stdout.strip() == "interrupted", ended.stderr


def test_no_limit_is_a_limit_that_is_never_reached():
    assert StoppableWork(lambda work: "done").result(float("inf"), float("inf")) == "done"
