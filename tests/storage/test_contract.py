"""Paths of a storage never lead out of it, and a staged file survives being written down."""

import json

import pytest

import strandline as sl
from strandline.storage.contract import StagedFile, check_inside, cleared_away
from strandline.storage.open import open_storage
from support import refused


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc/passwd", "a\0b", ".."])
def test_a_storage_is_not_left_whatever_path_a_file_names(tmp_path, path):
    (tmp_path / "secret").write_text("kept")
    storage = open_storage(str(tmp_path / "lake"))
    for act in (
        lambda: storage.read(path),
        lambda: storage.exists(path),
        lambda: storage.put_new(path, b"x"),
        lambda: storage.delete([path]),
        lambda: storage.input(path),
        lambda: storage.url(path),
        lambda: list(storage.list(path)),
        lambda: storage.output(path).__enter__(),
        lambda: storage.stage(path).__enter__(),
        lambda: storage.publish([StagedFile("a", path, 1)]),
        lambda: storage.publish([StagedFile(path, "a", 1)]),
    ):
        with refused(sl.Corrupt, path=path):
            act()
    assert (tmp_path / "secret").read_text() == "kept"
    bucket = open_storage("s3://bucket/prefix")
    with refused(sl.Corrupt, path=path):
        bucket.url(path)
    with refused(sl.Corrupt, path=path):
        bucket.read(path)


@pytest.mark.parametrize("path", ["", "a", "a/b.parquet", "a..b/c", "...", "a/..b"])
def test_a_path_that_stays_inside_is_taken_as_it_is(path):
    assert check_inside(path) == path


def test_a_staged_file_survives_being_written_down():
    staged = StagedFile("a/b", "a/.tmp-1", 7, ("part 1", "part 2"))
    assert StagedFile.from_dict(json.loads(json.dumps(staged.to_dict()))) == staged


def test_an_unfinished_file_that_was_cleared_away_is_a_conflict_by_its_path():
    error = cleared_away("a/b")
    assert (type(error), error.fields) == (sl.Conflict, {"path": "a/b"})
    assert "--grace" in error.hint
