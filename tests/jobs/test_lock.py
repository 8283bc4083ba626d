"""One export at a time to a place: a lock is never taken from anyone alive."""

import json
import socket
import threading
from pathlib import Path

import pyarrow.parquet as pq

import exporting
import strandline as sl
from exporting import (
    EXPORT,
    check_equal,
    check_whole,
    contents,
    die,
    export,
    wait_for,
)
from strandline.jobs.export import lock as locks
from strandline.jobs.export.destination import Destination
from strandline.jobs.export.lock import LOCK
from strandline.storage.open import LocalStorage
from support import answer_of, files_below, refused, start_python

tables = exporting.tables
parts = exporting.parts
dest = exporting.dest


def test_while_one_process_exports_another_is_refused(parts, dest, tmp_path):
    sign = str(tmp_path / "sign")
    other = start_python(EXPORT, parts.log.storage.uri, parts.name, str(dest), "{}", sign)
    wait_for(sign, other)
    held = json.loads((dest / LOCK).read_text())
    assert held["holder"] == f"{socket.gethostname()}:{other.pid}"
    before = contents(dest)
    for overwrite in (False, True):
        with refused(sl.Conflict, path=LOCK):
            export(parts, dest, overwrite=overwrite)
    assert contents(dest) == before
    assert pq.ParquetDataset(dest).files == [], "what is being written is not visible"
    Path(sign + ".go").touch()
    assert answer_of(other)["rows"] == parts.to_arrow().num_rows
    check_whole(dest)
    check_equal(dest, parts.to_arrow())


def test_a_lock_from_another_machine_is_never_taken_over(parts, dest):
    dest.mkdir(parents=True)
    (dest / LOCK).write_text(json.dumps({"id": "1" * 32, "holder": "elsewhere:1", "since": "2026-01-01T00:00:00"}))
    with refused(sl.Conflict, path=LOCK):
        export(parts, dest)
    assert files_below(dest) == {LOCK}


def test_two_threads_of_one_process_do_not_export_to_one_place(parts, dest):
    """The process is alive, so its own lock counts as well."""
    with Destination(str(dest), None, may_replace=False).claim(), refused(sl.Conflict, path=LOCK):
        export(parts, dest)
    assert files_below(dest) == set()


def test_of_two_that_find_the_lock_of_a_dead_process_one_gets_it(parts, dest, monkeypatch):
    """The slower one has seen the dead lock before the quicker one took it over; it must not take it from that one."""
    die(parts, dest, "export.staged")
    has_looked, has_it, over = threading.Event(), threading.Event(), threading.Event()
    is_gone = locks.is_gone
    outcome = []

    def slow(holder):
        gone = is_gone(holder)
        if threading.current_thread().name == "slower" and gone:
            has_looked.set()
            assert has_it.wait(30)
        return gone

    def late():
        try:
            export(parts, dest)
            outcome.append(None)
        except sl.StrandlineError as error:
            outcome.append(error)
        over.set()

    monkeypatch.setattr(locks, "is_gone", slow)
    thread = threading.Thread(target=late, name="slower")
    thread.start()
    assert has_looked.wait(30)
    with Destination(str(dest), None, may_replace=False).claim():
        has_it.set()
        over.wait(30)
    thread.join()
    assert [type(each) for each in outcome] == [sl.Conflict]


def test_a_lock_whose_creation_got_no_answer_is_ours(dest):
    class Deaf(LocalStorage):
        def put_new(self, path, data):
            super().put_new(path, data)
            return False

    storage = Deaf(str(dest))
    held = locks.acquire(storage, "a" * 32)
    assert files_below(dest) == {LOCK}
    held.release()
    assert files_below(dest) == set()
