"""Checkpoints: they stand for the commits before them, and damage to them is noticed or does no harm."""

import pytest
from deltalake import DeltaTable

import strandline as sl
from deltas import add
from strandline.storage.delta import CHECKPOINT_EVERY, DeltaLog
from strandline.storage.snapshot import Draft
from support import refused


def test_a_checkpoint_stands_for_all_commits_before_it(storage, log):
    for at in range(CHECKPOINT_EVERY + 5):
        add(log, f"f{at}", **{"trim": at, f"app{at}": at})
    log.commit("REMOVE", lambda snapshot, now: Draft(remove=[snapshot.files["f3"]]))
    assert storage.exists(f"t/_delta_log/{CHECKPOINT_EVERY:020d}.checkpoint.parquet")
    whole = log.refresh()
    # Commit files are history: all stay. A reader without them takes the checkpoint.
    assert len(log.history()) == CHECKPOINT_EVERY + 7
    storage.delete(f"t/_delta_log/{version:020d}.json" for version in range(CHECKPOINT_EVERY + 1))
    fresh = DeltaLog(storage, "t").refresh()
    assert (fresh.version, set(fresh.files), dict(fresh.txns)) == (whole.version, set(whole.files), dict(whole.txns))
    assert {path: f.stats for path, f in fresh.files.items()} == {path: f.stats for path, f in whole.files.items()}
    assert DeltaTable(f"{storage.uri}/t").version() == whole.version
    with refused(sl.NotFound):
        DeltaLog(storage, "t").at(3)


def test_a_reader_that_slept_through_a_clean_up_wakes_up_at_the_checkpoint(storage, log):
    sleeper = DeltaLog(storage, "t")
    sleeper.refresh()
    for at in range(CHECKPOINT_EVERY + 2):
        add(log, f"f{at}")
    storage.delete(f"t/_delta_log/{version:020d}.json" for version in range(10))
    assert sleeper.refresh().version == CHECKPOINT_EVERY + 2
    assert len(sleeper.refresh().files) == CHECKPOINT_EVERY + 2


@pytest.mark.parametrize("hint", [b"", b"{", b'{"version": 999999}', b"{}"])
def test_a_torn_checkpoint_hint_is_advice_only(storage, log, hint):
    for at in range(CHECKPOINT_EVERY + 2):
        add(log, f"f{at}")
    with storage.output("t/_delta_log/_last_checkpoint") as stream:
        stream.write(hint)
    assert len(DeltaLog(storage, "t").refresh().files) == CHECKPOINT_EVERY + 2


def test_a_torn_checkpoint_does_no_harm_while_the_commits_are_there(storage, log):
    for at in range(CHECKPOINT_EVERY + 2):
        add(log, f"f{at}")
    path = f"t/_delta_log/{CHECKPOINT_EVERY:020d}.checkpoint.parquet"
    with storage.output(path) as stream:
        stream.write(b"PAR1 torn")
    assert len(DeltaLog(storage, "t").refresh().files) == CHECKPOINT_EVERY + 2
    storage.delete(f"t/_delta_log/{version:020d}.json" for version in range(CHECKPOINT_EVERY))
    with refused(sl.Corrupt, path=path) as caught:
        DeltaLog(storage, "t").refresh()
    assert "Do not delete it" in caught.value.hint


def test_a_failing_checkpoint_costs_no_commit(storage, log, monkeypatch):
    def refuse(*args, **options):
        raise OSError("disk full")

    monkeypatch.setattr("deltalake.DeltaTable", refuse)
    for at in range(CHECKPOINT_EVERY + 1):
        add(log, f"f{at}")
    assert DeltaLog(storage, "t").refresh().version == CHECKPOINT_EVERY + 1
