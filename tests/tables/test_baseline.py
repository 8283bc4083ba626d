"""The baseline: files and marks in one commit, versions that can be read, and folds that lose their race."""

import pytest

import strandline as sl
from strandline.model.change import VNODE
from strandline.tables.baseline import Baseline, marks_of
from support import ITEMS, by_id, refused


@pytest.fixture
def folded(items):
    """Folded at seq 1 and at seq 3; seq 4 is in the log alone."""
    for seq in range(1, 5):
        items.upsert([{"id": id_, "name": f"{seq}"} for id_ in range(20)])
        if seq in (1, 3):
            items.compact(full=True)
    return items


def test_a_vnode_that_was_never_folded_is_at_0():
    assert marks_of({"fold/1": 7, "other": 9}, 3) == (0, 7, 0)


def test_a_new_baseline_is_empty_and_a_lost_one_is_corrupt(items):
    state = items.baseline.refresh()
    assert (state.marks, state.files(), state.kept_from) == ((0, 0, 0, 0), [], 0)
    with refused(sl.Corrupt):
        Baseline(items.log.storage, "tables/nowhere/baseline", 4).refresh()


def test_files_are_found_by_vnode_and_scanned_with_its_number(folded):
    state = folded.baseline.refresh()
    assert state.marks == (3, 3, 3, 3)
    by_vnode = {vnode: state.files(vnode) for vnode in range(4)}
    assert sum(map(len, by_vnode.values())) == len(state.files())
    for vnode, files in by_vnode.items():
        assert {file.partition[VNODE] for file in files} == {str(vnode)}
        for scan in state.scans(files):
            assert scan.number == vnode
            assert scan.url == folded.log.storage.url(scan.path)


def test_the_version_for_a_seq_is_the_newest_that_holds_nothing_after_it(folded):
    marks = {seq: max(folded.baseline.at_seq(seq, 0).marks) for seq in range(5)}
    assert marks == {0: 0, 1: 1, 2: 1, 3: 3, 4: 3}
    versions = folded.baseline.versions(folded.baseline.refresh())
    assert [max(each) for _, each in versions] == [0, 1, 3]


def test_a_version_that_is_given_up_cannot_be_read(folded):
    kept = folded.baseline.refresh().version
    folded.baseline.keep_from(lambda state: kept)
    assert folded.baseline.refresh().kept_from == kept
    with refused(sl.NotRetained, seq=2, oldest=3):
        folded.baseline.at_seq(2, 0)
    # Another decision that keeps more than was kept changes nothing.
    version = folded.baseline.refresh().version
    folded.baseline.keep_from(lambda state: 0)
    assert folded.baseline.refresh().version == version


def test_a_log_that_was_trimmed_behind_a_version_ends_it(folded):
    with refused(sl.NotRetained, seq=2):
        folded.baseline.at_seq(2, trimmed_to=2)
    assert max(folded.baseline.at_seq(3, trimmed_to=2).marks) == 3


def commit_fold(table, base, *, upto, vnodes, idle=()):
    removed = [file for vnode in vnodes for file in base.files(vnode)]
    return table.baseline.commit_fold(
        base, table.definition, upto=upto, vnodes=vnodes, idle=idle, removed=removed, added=()
    )


def test_of_two_folds_from_one_version_the_second_is_refused(folded):
    base = folded.baseline.refresh()
    commit_fold(folded, base, upto=4, vnodes=(0,))
    assert folded.baseline.refresh().marks == (4, 3, 3, 3)
    with refused(sl.Conflict):
        commit_fold(folded, base, upto=4, vnodes=(0,))


def test_a_mark_that_another_moved_for_free_is_left_where_it_is(folded):
    base = folded.baseline.refresh()
    commit_fold(folded, base, upto=5, vnodes=(1,))
    commit_fold(folded, base, upto=4, vnodes=(0,), idle=(1, 2))
    assert folded.baseline.refresh().marks == (4, 5, 4, 3)


def test_after_a_purge_no_earlier_version_is_read_and_no_earlier_fold_commits(folded):
    base = folded.baseline.refresh()
    files = base.files(0)
    version = folded.baseline.commit_purge(base, folded.definition, removed=files, added=())
    assert folded.baseline.refresh().kept_from == version
    with refused(sl.Conflict):
        folded.baseline.commit_fold(base, folded.definition, upto=4, vnodes=(1,), idle=(), removed=(), added=())
    with refused(sl.Conflict):
        folded.baseline.commit_purge(base, folded.definition, removed=(), added=())
    with refused(sl.NotRetained):
        folded.to_arrow(at=1)


def test_a_pin_takes_a_version_and_changes_nothing_else(folded):
    before = folded.baseline.refresh()
    folded.baseline.note_pin()
    after = folded.baseline.refresh()
    assert after.version == before.version + 1
    assert (after.marks, after.snapshot.files) == (before.marks, before.snapshot.files)
    assert by_id(folded, at=3) == dict.fromkeys(range(20), "3")


def test_a_fold_after_an_evolution_says_the_new_columns(lake):
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=1)
    table.upsert([{"id": 1}])
    table.evolve(ITEMS.append(ITEMS.field("name").with_name("more")))
    before = table.baseline.refresh().snapshot.metadata
    table.compact(full=True)
    after = table.baseline.refresh().snapshot.metadata
    assert "more" not in before["schemaString"] and "more" in after["schemaString"]
    assert after["id"] == before["id"]
