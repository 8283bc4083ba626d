"""A folder as a storage: files are there whole or not at all, and leftovers are told apart."""

import strandline as sl
from strandline.storage.contract import StagedFile
from strandline.storage.open import LocalStorage
from support import refused


def test_a_staged_file_that_was_cleared_away_while_it_was_written_is_a_conflict(storage):
    with refused(sl.Conflict, path="a/b.parquet"), storage.output("a/b.parquet") as stream:
        stream.write(b"rows")
        storage.delete([info.path for info in storage.temporaries("")])
    assert list(storage.list("")) == []
    with refused(sl.Conflict):
        storage.publish([StagedFile("a/b.parquet", "a/.tmp-x", 4)])


def test_a_temporary_file_that_a_crash_left_is_listed_apart(storage, tmp_path):
    storage.put_new("a/x.parquet", b"whole")
    (tmp_path / "a" / ".tmp-0123-y.parquet").write_bytes(b"half")
    assert [info.path for info in storage.list("a")] == ["a/x.parquet"]
    assert [info.path for info in storage.temporaries("a")] == ["a/.tmp-0123-y.parquet"]


def test_a_root_is_absolute_and_below_a_file_is_no_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert LocalStorage("lake").uri == str(tmp_path / "lake")
    assert LocalStorage("~/lake").uri.startswith("/")
    (tmp_path / "file").write_text("x")
    assert LocalStorage("file").is_file() and LocalStorage("file/below").is_file()
    assert not LocalStorage("lake/to/come").is_file()


def test_a_listing_goes_on_after_a_path_and_of_no_folder_is_empty(storage):
    for name in ("a/1", "a/2", "a/3"):
        storage.put_new(name, b"x")
    assert {info.path for info in storage.list("a", after="a/1")} == {"a/2", "a/3"}
    assert list(storage.list("nowhere")) == []
    assert [info.path for info in storage.list("a/1")] == []


def test_a_file_in_the_way_of_a_folder_is_refused_by_its_path(storage, tmp_path):
    storage.put_new("a", b"x")
    for act in (lambda: storage.put_new("a/b", b"y"), lambda: storage.read("a/b")):
        with refused(sl.Unavailable, path=str(tmp_path / "a" / "b")):
            act()
    assert not storage.exists("a/b")
    assert storage.read("a") == b"x"


def test_a_folder_is_no_file(storage, tmp_path):
    storage.put_new("a/b", b"x")
    with refused(sl.Unavailable, path=str(tmp_path / "a")):
        storage.read("a")
