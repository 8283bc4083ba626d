"""Delta tables underneath: commits without retry, snapshots by reading on, checkpoints."""

import threading
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from deltas import add, file
from strandline.storage import delta as deltas
from strandline.storage.checkpoints import Checkpoints
from strandline.storage.delta import CHECKPOINT_EVERY, DeltaLog
from strandline.storage.snapshot import Draft
from strandline.tables.pins import new_pin
from support import ITEMS, by_id, python, refused


def test_a_snapshot_grows_by_reading_what_is_new(storage, log):
    other = DeltaLog(storage, "t")
    assert other.refresh().version == 0
    add(log, "a")
    add(log, "b", app=7)
    seen = other.refresh()
    assert (seen.version, set(seen.files), seen.txns) == (2, {"a", "b"}, {"app": 7})
    assert other.refresh() is seen


def test_an_older_version_can_be_asked_for(log):
    for name in "abc":
        add(log, name)
    log.commit("REMOVE", lambda snapshot, now: Draft(remove=[snapshot.files["a"]]))
    assert [set(log.at(version).files) for version in range(5)] == [
        set(), {"a"}, {"a", "b"}, {"a", "b", "c"}, {"b", "c"},
    ]  # fmt: skip
    with refused(sl.NotFound, version=9):
        log.at(9)


def test_a_table_is_created_once(storage, log):
    with refused(sl.Conflict):
        DeltaLog.create(storage, "t", Draft())


def test_a_folder_without_a_table_is_not_found(storage):
    with refused(sl.NotFound):
        DeltaLog(storage, "nothing").refresh()


def test_a_draft_is_made_anew_for_each_number_tried(storage, log):
    seen = []

    def build(snapshot, now):
        seen.append(snapshot.version)
        if len(seen) == 1:
            add(DeltaLog(storage, "t"), "theirs")
        return Draft(add=[file(f"ours-{snapshot.version + 1}")])

    landed = log.commit("WRITE", build)
    assert seen == [0, 1]
    assert landed.version == 2
    assert set(landed.files) == {"theirs", "ours-2"}


def test_a_draft_may_give_up(storage, log):
    def build(snapshot, now):
        raise sl.Conflict("changed my mind")

    with refused(sl.Conflict):
        log.commit("WRITE", build)
    assert log.commit("WRITE", lambda snapshot, now: None) is None
    assert log.refresh().version == 0


def test_threads_and_handles_commit_each_once(storage, log):
    handles = [DeltaLog(storage, "t") for _ in range(3)] + [log]

    def write(number):
        for at in range(10):
            add(handles[number % 4], f"{number}-{at}")

    threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = DeltaLog(storage, "t").refresh()
    assert snapshot.version == 80
    assert set(snapshot.files) == {f"{number}-{at}" for number in range(8) for at in range(10)}


def test_two_commits_in_one_millisecond_both_survive_in_order(log, monkeypatch):
    monkeypatch.setattr(deltas.time, "time", lambda: 1_700_000_000.0)
    for name in "abc":
        add(log, name)
    times = [info.timestamp_ms for info in log.history()][1:]
    assert len(set(times)) == 3
    assert times == sorted(times)
    assert set(log.refresh().files) == {"a", "b", "c"}


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_commit_times_rise_also_when_the_clock_goes_back(storage, log, monkeypatch, reopened, checkpointed):
    clock = [2_000_000_000.0]
    monkeypatch.setattr(deltas.time, "time", lambda: clock[0])
    log.commit("WRITE", lambda snapshot, now: Draft(txns={"app": 1}))
    clock[0] = 1_000_000_000.0
    if checkpointed:
        log.checkpoint()
    writer = DeltaLog(storage, "t") if reopened else log
    add(writer, "b")
    times = [info.timestamp_ms for info in log.history()]
    assert times[1:] == sorted(times[1:])


def test_a_table_of_many_commits_reads_the_same_after_a_reopening(tmp_path):
    lake = sl.Lake(tmp_path)
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=2)
    expected, history = {}, {}
    for at in range(1, 2 * CHECKPOINT_EVERY + 8):
        seq = table.upsert([{"id": at % 7, "name": str(at)}], token=f"token-{at}").seq
        expected[at % 7] = str(at)
        history[seq] = dict(expected)
        if at % 40 == 0:
            table.compact(full=True)
    fresh = sl.Lake(tmp_path).table("t")
    assert by_id(fresh) == expected
    for seq in (1, 2, 39, 40, 42, CHECKPOINT_EVERY, 2 * CHECKPOINT_EVERY, fresh.head):
        assert by_id(fresh, at=seq) == history[seq]
    assert fresh.upsert([{"id": 1, "name": "again"}], token="token-3") == sl.Commit(3, 1, is_replay=True)
    assert DeltaTable(f"{tmp_path}/{table.log.folder}").to_pyarrow_table().num_rows == len(history)


def test_a_dropped_table_of_many_commits_stays_a_delta_table(tmp_path):
    lake = sl.Lake(tmp_path)
    table = lake.create_table("t", ITEMS, key=["id"])
    for at in range(CHECKPOINT_EVERY + 1):
        table.upsert([{"id": at}])
    sl.Lake(tmp_path).drop("t")
    assert DeltaTable(f"{tmp_path}/{table.log.folder}").version() == CHECKPOINT_EVERY + 2


def test_other_engines_see_the_schema_of_local_times(tmp_path):
    table = sl.Lake(tmp_path).create_table("t", pa.schema([("at", pa.timestamp("us"))]))
    delta = DeltaTable(f"{tmp_path}/{table.log.folder}")
    assert "timestampNtz" in delta.protocol().reader_features


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_writer_that_slept_while_its_number_was_used_and_cleaned_commits_once(items, monkeypatch, is_overtaken):
    """It looked for the next number, slept, and finds that number free again: nobody would read what it puts there."""
    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
    monkeypatch.setattr(deltas, "_ASLEEP_S", -1.0)
    items.upsert([{"id": 0, "name": "first"}])
    other = sl.Lake(items.log.storage.uri).table("items")
    create = type(items.log.delta._commits).create
    asleep = []

    def sleep_first(commits, version, actions, commit_id, previous):
        if commits is items.log.delta._commits and not asleep:
            asleep.append(version)
            for n in range(60 if is_overtaken else 0):
                other.upsert([{"id": n, "name": "other"}])
            other.compact(full=True)
            other.vacuum(keep=0, grace=0)
        return create(commits, version, actions, commit_id, previous)

    monkeypatch.setattr(type(items.log.delta._commits), "create", sleep_first)
    with items.pins.held(new_pin("write", writes_since_s=0.0), quiet_s=0):
        commit = items.upsert([{"id": 1000, "name": "slept"}])
    assert asleep == [2]
    assert (commit.seq > 60) == is_overtaken
    fresh = sl.Lake(items.log.storage.uri).table("items")
    assert by_id(fresh)[1000] == "slept"
    assert fresh.head == commit.seq == items.head
    assert fresh.changes(after=commit.seq - 1).num_rows == 1
    items.log.delta.check_unbroken(fresh.log.delta.oldest())


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_writer_that_slept_after_its_commit_landed_does_not_commit_again(lake, monkeypatch, is_cleaned):
    """Meanwhile its rows were folded and taken out of the log: their file is no longer there to prove it."""
    monkeypatch.setattr(deltas, "_ASLEEP_S", -1.0)
    monkeypatch.setattr(deltas, "RESTED_S", -1.0 if is_cleaned else 10.0)
    table = lake.create_table("events", ITEMS)
    table.append([{"id": 1}])
    other = sl.Lake(lake.storage.uri).table("events")
    create = type(table.log.delta._commits).create
    slept = []

    def sleep_after(commits, version, actions, commit_id, previous):
        landed = create(commits, version, actions, commit_id, previous)
        if commits is table.log.delta._commits and not slept:
            slept.append(version)
            time.sleep(0.02)
            other.compact(full=True)
            for _ in range(2):
                other.vacuum(keep=0, grace=0)
        return landed

    monkeypatch.setattr(type(table.log.delta._commits), "create", sleep_after)
    if is_cleaned:
        with refused(sl.Unavailable):
            table.append([{"id": 2}])
    else:
        assert table.append([{"id": 2}]).seq == 2
    assert sorted(sl.Lake(lake.storage.uri).table("events").to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_commit_does_not_wait_for_its_checkpoint_and_there_is_one_at_a_time(storage, log, monkeypatch):
    begun, go_on = threading.Semaphore(0), threading.Event()
    write = Checkpoints.write

    def wait_and_write(self, at):
        begun.release()
        assert go_on.wait(60)
        write(self, at)

    monkeypatch.setattr(Checkpoints, "write", wait_and_write)
    for at in range(2 * CHECKPOINT_EVERY):
        log.commit("WRITE", lambda snapshot, now, name=f"{at}": Draft(add=[file(name)]))
    assert begun.acquire(timeout=60)
    assert not begun.acquire(blocking=False), "the first one is still under way"
    assert not log.chain.files()[1]
    go_on.set()
    log.await_checkpoint()
    assert list(log.chain.files()[1]) == [log.refresh().version]
    assert log.chain.try_checkpoint(log.refresh().version)[0].is_verified
    for at in range(CHECKPOINT_EVERY):
        add(log, f"more{at}")
    log.await_checkpoint()
    assert len(log.chain.files()[1]) == 2
    assert DeltaLog(storage, "t").refresh().files == log.refresh().files


def test_a_process_that_ends_leaves_its_checkpoint_whole(tmp_path):
    script = (
        "import sys, strandline as sl\n"
        "table = sl.Lake(sys.argv[1]).create_table('t', 'id:int64', key=['id'])\n"
        "for at in range(int(sys.argv[2])): table.upsert([{'id': at}])\n"
    )
    ended = python(script, str(tmp_path), str(CHECKPOINT_EVERY))
    assert ended.returncode == 0, ended.stderr
    table = sl.Lake(tmp_path).table("t")
    found, _ = table.log.delta.chain.try_checkpoint(CHECKPOINT_EVERY)
    assert found.is_verified
    assert found.snapshot.files == table.log.refresh().snapshot.files
