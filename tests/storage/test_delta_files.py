"""The files of a Delta table: read from the last good checkpoint on, commit by commit, and gaps are noticed."""

import pytest

import strandline as sl
from deltas import add
from strandline.storage.delta_files import CommitChain
from strandline.storage.snapshot import NOTHING
from support import refused


@pytest.fixture
def chain(storage, log):
    """Seven commits, of which 3 and 5 have a checkpoint."""
    for version in range(1, 8):
        add(log, f"f{version}")
        if version in (3, 5):
            log.checkpoint()
    return CommitChain(storage, "t")


def commit(version):
    return f"t/_delta_log/{version:020d}.json"


def checkpoint(version):
    return f"t/_delta_log/{version:020d}.checkpoint.parquet"


def test_commits_and_checkpoints_are_listed_by_version(chain):
    commits, checkpoints = chain.files()
    assert (sorted(commits), sorted(checkpoints)) == (list(range(8)), [3, 5])
    assert (chain.oldest(), chain.has_gap()) == (0, False)


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5, 7])
def test_every_version_is_loaded_the_same_with_and_without_checkpoints(chain, storage, version):
    loaded = chain.load(version)
    assert set(loaded.files) == {f"f{at}" for at in range(1, version + 1)}
    storage.delete([checkpoint(3), checkpoint(5), "t/_delta_log/_last_checkpoint"])
    again = chain.load(version)
    assert (again.version, set(again.files), again.digest) == (version, set(loaded.files), loaded.digest)


def test_the_newest_version_is_the_default_and_one_to_come_is_not_found(chain):
    assert chain.load().version == chain.extend(NOTHING).version == 7
    with refused(sl.NotFound, version=9):
        chain.load(9)
    with refused(sl.NotFound):
        CommitChain(chain.storage, "nowhere").load()
    with refused(sl.NotFound, version=0):
        CommitChain(chain.storage, "nowhere").load(0)


def test_reading_on_stops_where_it_is_told_to(chain):
    assert chain.extend(NOTHING, 2).version == 2
    assert chain.extend(chain.load(6)).version == 7


def test_behind_a_clean_up_the_checkpoint_is_the_oldest_version(chain, storage):
    storage.delete(commit(version) for version in range(5))
    assert (chain.oldest(), chain.has_gap()) == (3, False)
    assert chain.load(5).version == 5
    with refused(sl.NotFound, version=2):
        chain.load(2)


def test_a_commit_that_is_missing_before_later_ones_is_corrupt(chain, storage):
    storage.delete([commit(6)])
    assert chain.has_gap()
    with refused(sl.Corrupt, path=commit(6)):
        chain.load()
    with refused(sl.Corrupt, path=commit(6)):
        chain.catch_up(chain.load(5), chain.sees_later)


def test_a_damaged_checkpoint_does_no_harm_while_something_leads_to_it(chain, storage):
    with storage.output(checkpoint(5)) as stream:
        stream.write(b"torn")
    assert chain.try_checkpoint(5)[1] is not None
    storage.delete(commit(version) for version in range(4))
    # Commit 4 and 5 lead from the checkpoint of 3 to 7.
    assert chain.leads_to(5) and not chain.leads_to(3)
    assert set(chain.load().files) == {f"f{at}" for at in range(1, 8)}
    storage.delete([commit(4)])
    with refused(sl.Corrupt, path=checkpoint(5)):
        chain.load()


def test_a_lost_checkpoint_is_named_by_what_it_left(chain, storage):
    storage.delete([checkpoint(5), *(commit(version) for version in range(6))])
    assert chain.lost_checkpoint(6, 7) == 5
    storage.delete([checkpoint(3)])
    with refused(sl.Corrupt, path=checkpoint(5)):
        chain.load()


def test_all_commits_are_read_and_each_follows_the_one_before(chain, storage):
    assert sorted(chain.read_all(6)) == list(range(7))
    data = storage.read(commit(4))
    storage.delete([commit(5)])
    storage.put_new(commit(5), data)
    with refused(sl.Corrupt):
        chain.read_all(7)
