"""What a Delta table is at a version: commits applied one by one, and drafts that do not fit."""

import pytest

import strandline as sl
from deltas import add, file
from strandline.storage.commits import CommitFile
from strandline.storage.snapshot import (
    FORGOTTEN_MS,
    NOTHING,
    DataFile,
    Draft,
    actions_of,
    apply_commit,
    check_draft,
    commit_info,
    data_file,
    new_file_name,
    protocol,
    schema_id_of,
)
from support import refused


def test_a_commit_removes_only_live_files(log):
    add(log, "a")
    gone = log.refresh().files["a"]
    log.commit("REMOVE", lambda snapshot, now: Draft(remove=[gone]))
    with refused(sl.Conflict):
        log.commit("REMOVE", lambda snapshot, now: Draft(remove=[gone]))
    assert log.refresh().version == 2


def test_a_transaction_moves_only_forward(log):
    add(log, "a", app=7)
    with refused(sl.Conflict, txn="app"):
        add(log, "b", app=6)
    assert set(log.refresh().files) == {"a"}


@pytest.mark.parametrize("path", ["../../../../secret.parquet", "/secret.parquet", "a/../../b.parquet", "x\0y"])
def test_a_path_in_a_commit_that_leads_out_of_the_table_is_corrupt(path):
    with refused(sl.Corrupt, path=path):
        data_file({"path": path, "size": 1, "partitionValues": {}, "modificationTime": 0})


def commit_of(*actions, digest="d"):
    return CommitFile(list(actions), "", digest)


def test_a_file_survives_its_action_and_back():
    file = DataFile("0003-x.parquet", 7, {"_vnode": "2"}, 5, '{"numRecords": 4}', 99, 0xABC)
    assert data_file(file.add()["add"]) == file
    assert (file.rows, schema_id_of(file)) == (4, 3)
    assert file.remove(8)["remove"]["deletionTimestamp"] == 8


def test_a_file_without_tags_takes_its_size_for_its_rows_and_has_no_digest():
    found = data_file({"path": "a", "size": 7, "partitionValues": {}, "modificationTime": 0})
    assert (found.raw_bytes, found.crc, found.stats) == (7, None, {})


def test_a_commit_adds_removes_and_moves_and_leaves_the_rest():
    info = {"commitInfo": {"timestamp": 10, "doomed": ["z"]}}
    kept = {"txn": {"appId": "kept", "version": 1}}
    gone = {"txn": {"appId": "gone", "version": 1}}
    first = apply_commit(
        NOTHING, commit_of(info, file("a").add(), file("b").add(), kept, gone, {"metaData": {"name": "t"}})
    )
    forgotten = {"txn": {"appId": "gone", "version": 1, "lastUpdated": FORGOTTEN_MS}}
    earlier = {"commitInfo": {"timestamp": 4}}
    second = apply_commit(first, commit_of(earlier, file("a").remove(11), forgotten, digest="e"))
    assert (first.version, set(first.files), dict(first.txns)) == (0, {"a", "b"}, {"kept": 1, "gone": 1})
    assert (second.version, set(second.files), dict(second.txns)) == (1, {"b"}, {"kept": 1})
    assert (second.timestamp_ms, second.digest, second.doomed, second.metadata) == (10, "e", {"z"}, {"name": "t"})
    assert set(NOTHING.files) == set() and set(first.files) == {"a", "b"}


def test_a_draft_claims_no_file_that_was_given_up():
    snapshot = apply_commit(NOTHING, commit_of({"commitInfo": {"timestamp": 1, "doomed": ["z"]}}))
    check_draft(Draft(add=[file("y")]), snapshot)
    with refused(sl.Conflict, path="z"):
        check_draft(Draft(add=[file("z")]), snapshot)


def test_a_draft_becomes_actions_that_give_it_back():
    draft = Draft(add=[file("a")], txns={"x": 1}, expiring_txns={"y": 2}, forgotten_txns={"w": 3}, doomed=["z"])
    actions = actions_of(draft, "WRITE", "id", 12, {"rows": 1})
    found = apply_commit(NOTHING, commit_of(*actions))
    assert (dict(found.txns), found.doomed, found.timestamp_ms) == ({"x": 1, "y": 2}, {"z"}, 12)
    assert found.files["a"].modified_ms == 12
    assert commit_info(actions)["operationMetrics"] == {"rows": "1"}


def test_names_of_files_are_never_used_again():
    assert len({new_file_name(7) for _ in range(100)}) == 100
    assert protocol(with_ntz=True)["readerFeatures"] == ["timestampNtz"]
