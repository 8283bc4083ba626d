"""One copy under way: what its workers did is counted, and what both sides must have alike is compared."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline as sl
from strandline.jobs.backup.run import CopyRun
from strandline.storage.local import LocalStorage
from support import refused


@pytest.fixture
def told():
    return []


@pytest.fixture
def run(tmp_path, told):
    with ThreadPoolExecutor(4) as pool:
        yield CopyRun(
            LocalStorage(str(tmp_path / "source")),
            LocalStorage(str(tmp_path / "target")),
            pool,
            lambda done, whole, what: told.append((done, whole, what)),
        )


def test_progress_never_passes_the_whole(run, told):
    run.whole_bytes = 100
    for _ in range(3):
        run.advance(40, "items")
    assert told == [(40, 100, "items"), (80, 100, "items"), (100, 100, "items")]


def test_files_are_counted_by_all_workers_and_results_keep_their_order(run):
    run.each(run.count_copied, range(100))
    assert (run.files_copied, run.bytes_copied) == (100, sum(range(100)))
    assert run.each(lambda at: at * at, range(5)) == [0, 1, 4, 9, 16]


def test_the_first_failure_is_the_callers(run):
    with pytest.raises(ZeroDivisionError):
        run.each(lambda at: 1 / at, [1, 0, 2])


def test_a_file_that_was_there_a_moment_ago_was_cleaned_away(run):
    run.source.put_new("a", b"x")
    assert run.read("a") == b"x"
    with refused(sl.Conflict):
        run.read("gone")


def test_a_commit_that_both_sides_have_must_be_alike(run):
    for storage in (run.source, run.target):
        storage.put_new("a", b"same")
    assert run.read_same("a") == b"same"
    run.source.put_new("b", b"ours")
    run.target.put_new("b", b"theirs")
    run.target.put_new("c", b"theirs alone")
    for path in ("b", "c"):
        with pytest.raises(sl.StrandlineError) as caught:
            run.read_same(path)
        assert not isinstance(caught.value, sl.NotFound)
