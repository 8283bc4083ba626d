"""The catalog under several threads and processes of one lake."""

import json
import shutil
import threading

import pyarrow as pa
import pytest

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


def replaced(lake, version, **facts):
    """Change an entry of a lake's catalog as someone who can write its files would."""
    path = lake.storage.url(f"catalog/{version:020d}.json")
    with open(path) as file:
        entry = json.loads(file.readline())
    with open(path, "w") as file:
        json.dump({**entry, **facts}, file)


ZEROS = "0" * 32
OUTSIDE = [
    "../outside", "tables/../../outside", "/outside", "tables//x", "tables/items/..", "tables\\items\\x", "", ".",
    f"tables/items/{ZEROS[1:]}", f"tables/items/{ZEROS}/..", f"tables/items/{ZEROS}\n", "tables/\0/x", 7, None, [],
]  # fmt: skip


@pytest.mark.parametrize("folder", OUTSIDE)
def test_an_entry_whose_folder_leads_elsewhere_is_corrupt(tmp_path, folder):
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", SCHEMA, key=["id"])
    shutil.move(tmp_path / "lake" / "tables", tmp_path / "outside")
    replaced(lake, 1, folder=folder)
    with refused(sl.Corrupt):
        sl.Lake(tmp_path / "lake")


@pytest.mark.parametrize("name", ["../items", "a/b", "", "ä", "x\0", "items\n", 7, None, {}])
def test_an_entry_with_another_name_than_a_table_may_have_is_corrupt(tmp_path, name):
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", SCHEMA, key=["id"])
    lake.rename("items", "others")
    replaced(lake, 2, to=name)
    with refused(sl.Corrupt):
        sl.Lake(tmp_path / "lake")
    replaced(lake, 1, create=name)
    with refused(sl.Corrupt):
        sl.Lake(tmp_path / "lake")


@pytest.mark.parametrize("generation", ["../x", "", "0" * 31, "0" * 33, "G" * 32, 7, None])
def test_an_entry_with_an_odd_generation_is_corrupt(tmp_path, generation):
    lake = sl.Lake(tmp_path / "lake")
    lake.create_table("items", SCHEMA, key=["id"])
    replaced(lake, 1, generation=generation)
    with refused(sl.Corrupt):
        sl.Lake(tmp_path / "lake")


def test_a_lost_last_entry_in_a_bucket_is_noticed(s3_lake):
    lake = s3_lake()
    lake.create_table("first", SCHEMA, key=["id"])
    lake.create_table("last", SCHEMA, key=["id"]).upsert([{"id": 1}])
    path = f"catalog/{2:020d}.json"
    data = lake.storage.read(path)
    lake.storage.delete([path])
    with refused(sl.Corrupt, path=path):
        lake.tables()
    lake.storage.put_new(path, data)
    assert lake.tables() == ["first", "last"]
