"""The catalog under several threads and processes of one lake."""

import threading

import pyarrow as pa

import strandline as sl
from support import refused

SCHEMA = pa.schema([("id", pa.int64())])


def test_threads_that_look_while_others_create_never_lose_a_table(tmp_path):
    lake = sl.Lake(tmp_path)
    lake.create_table("first", SCHEMA, key=["id"])
    stop = threading.Event()
    failures = []

    def look():
        try:
            while not stop.is_set():
                lake.tables()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(30):
            lake.create_table(f"t{number}", SCHEMA, key=["id"])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert lake.tables() == sl.Lake(tmp_path).tables() == sorted(["first", *(f"t{n}" for n in range(30))])
    assert lake.catalog.refresh().version == 31


def test_a_table_renamed_meanwhile_is_dropped_under_its_new_name(tmp_path):
    lake, other = sl.Lake(tmp_path), sl.Lake(tmp_path)
    lake.create_table("old", SCHEMA, key=["id"])
    entry = lake.catalog.refresh().get("old")
    other.rename("old", "new")
    lake.catalog.drop(entry)
    assert sl.Lake(tmp_path).tables() == []
    with refused(sl.NotFound):
        lake.catalog.drop(entry)


def test_a_lake_on_a_file_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a lake")
    with refused(sl.Invalid):
        sl.Lake(path)
