"""Numbered commit files: of two writers one wins, and a file that is not as it was written is corrupt."""

import pytest

import strandline as sl
from strandline.storage.commits import FIRST, CommitLog, id_of, read_sealed, seal_actions
from strandline.storage.delta import DeltaLog
from support import refused


def test_a_commit_file_that_is_not_json_is_corrupt(storage, log):
    storage.put_new("t/_delta_log/00000000000000000001.json", b"{torn")
    with refused(sl.Corrupt):
        DeltaLog(storage, "t").refresh()


@pytest.fixture
def commits(storage):
    return CommitLog(storage, "log")


def commit(commits, version, name, previous=FIRST):
    return commits.create(version, [{"commitInfo": {"commitId": name}}, {"add": name}], name, previous)


def test_of_two_writers_of_one_number_one_wins(commits):
    first = commit(commits, 0, "a")
    assert commit(commits, 0, "b") is None
    # The same writer again, after an answer that never came: its commit is there.
    again = commit(commits, 0, "a")
    assert again.digest == first.digest == commits.read(0).digest
    assert [action.get("add") for action in commits.read(0).actions] == [None, "a"]
    assert commits.read(1) is None and not commits.exists(1)


def test_a_commit_follows_the_one_before_it_or_is_corrupt(commits):
    first = commit(commits, 0, "a")
    commit(commits, 1, "b", first.digest)
    assert commits.read_next(0, first.digest).previous == first.digest
    with refused(sl.Corrupt, path=commits.path(1)):
        commits.read_next(0, "another")


def test_a_listing_tells_which_commit_is_the_last(commits, storage):
    for version in range(3):
        commit(commits, version, str(version))
    storage.put_new("log/00000000000000000002.checkpoint.parquet", b"no commit")
    assert commits.lists_later(1) and not commits.lists_later(2)
    assert commits.is_last(2) and not commits.is_last(1) and not commits.is_last(3)


ACTIONS = [{"commitInfo": {"commitId": "x"}}, {"add": {"path": "a"}}, {"txn": {"appId": "b"}}]
CATALOG = [{"commitId": "x", "tables": {}}]


@pytest.mark.parametrize("actions", [ACTIONS, CATALOG], ids=["delta", "catalog"])
def test_a_sealed_file_says_what_was_sealed(actions):
    data, digest = seal_actions("a/0.json", actions, "beef")
    found = read_sealed("a/0.json", data)
    assert (found.digest, found.previous, id_of(found.actions)) == (digest, "beef", "x")
    assert len(found.actions) == len(actions) and found.actions[1:] == actions[1:]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\n{}",
        lambda data: data.rsplit(b"\n", 1)[0],
        lambda data: data.replace(b'"a"', b'"b"'),
        lambda data: b'{"commitInfo":{}}',
    ],
)
def test_a_file_that_is_cut_altered_or_foreign_is_not_what_was_sealed(change):
    data, _ = seal_actions("a/0.json", ACTIONS, FIRST)
    with pytest.raises(ValueError):
        read_sealed("a/0.json", change(data))


def test_a_file_under_another_path_is_not_what_was_sealed(commits, storage):
    commit(commits, 0, "a")
    storage.put_new(commits.path(1), storage.read(commits.path(0)))
    with refused(sl.Corrupt, path=commits.path(1)):
        commits.read(1)


def test_without_an_id_a_commit_has_none():
    assert id_of([{"add": {}}]) is None
