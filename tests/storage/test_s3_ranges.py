"""How DuckDB reads a bucket: threads share a file and read what each of them sought, and an outage is remembered."""

import contextlib
import gc
import sys
import threading
import time
import uuid

import pytest
from obstore.exceptions import BaseError

from strandline.storage.open import S3Storage
from strandline.storage.s3_ranges import Outages, RangedStore
from support import BUCKET, options_for

DATA = bytes(range(256)) * 40


@pytest.fixture
def stored(seaweed):
    storage = S3Storage(BUCKET, uuid.uuid4().hex, options_for(seaweed))
    storage.put_new("data", DATA)
    return storage


@pytest.fixture
def file(stored):
    return stored.duckdb_filesystem().open(stored.url("data"), "rb")


def test_a_range_is_read_where_it_was_sought(file):
    assert file.seek(256) == file.tell() == 256
    assert file.read(4) == bytes(range(4))
    assert file.seek(-4, 2) == len(DATA) - 4
    assert file.read() == bytes(range(252, 256))
    assert file.read(10) == b""
    file.seek(10)
    assert file.seek(5, 1) == 15


def test_each_thread_has_a_place_of_its_own(file):
    wrong, gate = [], threading.Barrier(4)

    def read(start):
        gate.wait()
        for at in range(start, len(DATA), 1024):
            file.seek(at)
            time.sleep(0)
            if file.read(16) != DATA[at : at + 16]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(256 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_missing_file_is_no_outage(stored):
    store = stored.duckdb_filesystem()
    assert isinstance(store, RangedStore)
    begun = time.monotonic()
    with pytest.raises(FileNotFoundError):
        store.open(stored.url("nothing"), "rb").read()
    assert store.outages.since(begun) is None


def test_a_file_that_could_not_be_opened_leaves_no_trace_behind(stored, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with contextlib.suppress(FileNotFoundError):
        stored.duckdb_filesystem().open(stored.url("nothing"), "rb")
    gc.collect()
    assert said == []


def test_an_outage_is_remembered_from_its_moment_on():
    outages, before = Outages(), time.monotonic()
    with pytest.raises(BaseError), outages.record_errors():
        raise BaseError("no answer")
    assert str(outages.since(before)) == "no answer"
    assert outages.since(time.monotonic() + 1) is None
