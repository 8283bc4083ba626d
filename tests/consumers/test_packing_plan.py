"""Which files of a log are packed, and what a compaction and a tick do about them."""

from pathlib import Path

import pytest

import strandline as sl
from folding import again
from strandline.consumers import compaction, compaction_plan, packing
from strandline.consumers.packing import plan_packs
from support import data_files, rows_of

FEW = {"compact_ratio": 1e9, "compact_files": 3}


def put(table, commits):
    for _ in range(commits):
        table.upsert([{"id": table.head, "name": "x"}, {"id": -1, "name": f"{table.head}"}])


def tiers(table):
    return [(file.pack.tier, file.pack.commits) if file.pack else 0 for _, file in table.log.refresh().by_seq]


@pytest.fixture
def few(lake):
    """A table with rows in its baseline, so that few changes make no fold due, and nothing in its log."""
    table = lake.create_table("few", "id:int64, name:string", key=["id"], vnodes=2, **FEW)
    table.upsert([{"id": n - 10, "name": "x"} for n in range(10)])
    table.compact(full=True)
    table.vacuum(grace=0, keep=0)
    assert table.log.refresh().by_seq == []
    return table


def test_more_than_a_number_of_small_files_become_one(few):
    first = few.head
    put(few, 3)
    assert (few.plan_compaction().packs, few.compact().packed_files) == ((), 0)
    put(few, 1)
    (need,) = few.plan_compaction().packs
    assert (need.files, need.rows, need.after, need.upto) == (4, 8, first, first + 4)
    before = rows_of(few.changes(after=first))
    report = few.compact()
    assert (report.packed_files, report.packs, report.vnodes) == (4, 1, 0)
    assert (tiers(few), rows_of(few.changes(after=first))) == ([(1, 4)], before)
    head = few.head
    assert (few.compact().packed_files, few.head) == (0, head), "a second compaction does nothing"


def test_packs_become_packs_of_a_higher_tier_and_a_row_is_packed_once_per_tier(few):
    for _ in range(16):
        put(few, 4)
        few.compact()
    assert tiers(few) == [(3, 64)]
    put(few, 5)
    few.compact()
    assert tiers(few) == [(3, 64), (1, 5)]


def test_many_files_of_an_old_lake_become_one_pack_of_their_tier(few):
    put(few, 17)
    few.compact()
    assert tiers(few) == [(2, 17)]


def test_large_files_and_other_schemas_end_a_pack(few, monkeypatch):
    monkeypatch.setattr(packing, "SMALL_BYTES", 20_000)
    put(few, 4)
    few.upsert([{"id": n, "name": f"{n * 7919 % 100003}"} for n in range(5000)])
    put(few, 4)
    few.add_column("more", "int64")
    put(few, 4)
    few.compact()
    assert tiers(few) == [(1, 4), 0, (1, 4), (1, 4)]
    assert few.to_arrow().num_rows == 5010


def test_packs_end_at_a_size(few, monkeypatch):
    put(few, 12)
    size = max(file.size for _, file in few.log.refresh().by_seq)
    monkeypatch.setattr(packing, "PACK_BYTES", 5 * size)
    assert [len(bundle.files) for bundle in plan_packs(few.log.refresh())] == [5, 5, 2]


def test_commits_that_a_compaction_folds_are_not_written_twice(few):
    first = few.head
    put(few, 15)
    before = rows_of(few.changes(after=first))
    assert few.plan_compaction(full=True).packs == ()
    report = few.compact(full=True)
    assert (report.packed_files, report.vnodes) == (0, 2)
    assert (rows_of(few.changes(after=first)), tiers(few)) == (before, [0] * 15)
    head = few.head
    assert (few.plan_compaction().packs, few.compact().packed_files, few.head) == ((), 0, head)


def test_folded_commits_become_a_pack_when_they_are_enough_for_the_second_tier(few):
    for commits in (10, 6):
        put(few, commits)
        few.compact(full=True)
    assert tiers(few) == [(2, 16)]


def test_open_commits_take_folded_neighbours_into_their_pack(few):
    put(few, 5)
    few.compact(full=True)
    put(few, 3)
    assert few.compact().packed_files == 0
    put(few, 1)
    few.compact()
    assert tiers(few) == [(1, 9)]


def test_many_changes_are_packed_before_they_are_folded(few, monkeypatch):
    put(few, 5)
    monkeypatch.setattr(compaction_plan, "DIRECT_BYTES", 1)
    (need,) = few.plan_compaction(full=True).packs
    assert need.files == 5
    report = few.compact(full=True)
    assert (report.packed_files, report.vnodes, tiers(few)) == (5, 2, [(1, 5)])


def test_a_damaged_file_is_left_alone_and_the_others_are_packed(few):
    put(few, 4)
    few.add_column("more", "int64")
    put(few, 4)
    bad = few.log.refresh().by_seq[1][1]
    path = Path(few.log.storage.uri) / few.log.folder / bad.path
    path.write_bytes(path.read_bytes()[:-30] + bytes(30))
    report = few.compact()
    assert (report.packed_files, tiers(few)) == (4, [0, 0, 0, 0, (1, 4)])
    assert again(few).plan_compaction().packed_files == 4


def test_a_compaction_ends_although_writers_are_quicker_than_it_packs(few, monkeypatch):
    rounds = []

    def pack_and_write(log, bundles):
        rounds.append(len(bundles))
        assert len(rounds) < 5, "it goes on as long as somebody writes"
        done = pack_files(log, bundles)
        put(few, 5)
        return done

    pack_files = compaction.pack_files
    monkeypatch.setattr(compaction, "pack_files", pack_and_write)
    put(few, 5)
    report = few.compact()
    assert (report.packed_files, report.packs, rounds) == (5, 1, [1])
    (need,) = few.plan_compaction().packs
    assert need.files == 5


def test_a_tick_packs_and_says_so(few):
    put(few, 1)
    few.compact(full=True)
    put(few, 6)
    lake = sl.Lake(few.log.storage.uri)
    works = [work for each in lake.plan().consumers for work in each.works]
    assert [work.why for work in works] == ["pack 7 files of the log"]
    report = lake.tick()
    (done,) = report.compacted
    assert (done.facts["packed_files"], done.facts["packs"], done.upto) == (7, 1, None)
    assert lake.plan().is_idle
    files, head = data_files(few), few.head
    lake.tick()
    assert (data_files(few), few.head) == (files, head)


def test_a_sink_goes_on_inside_a_pack(few, tmp_path):
    lake = sl.Lake(few.log.storage.uri)
    lake.sink("copy", "few", to=sl.DeltaSink(str(tmp_path / "copy")), start=few.head)
    first = few.head + 1
    put(few, 3)
    lake.tick(only=["copy"])
    put(few, 5)
    before = lake.status().consumers[0].lag
    few.compact()
    assert [file.pack.first for _, file in few.log.refresh().by_seq] == [first]
    lag = lake.status().consumers[0].lag
    assert (lag.commits, lag.rows) == (before.commits, before.rows) == (5, 10)
    assert lag.seconds >= before.seconds
    (report,) = lake.tick(only=["copy"]).consumers
    assert (report.rows, report.rows_read) == (10, 10)
    few.compact(full=True)
    assert lake.tick(only=["copy"]).rows == 0


def test_the_age_of_changes_is_that_of_their_commits(few):
    put(few, 1)
    since = few.log.refresh().by_seq[0][1].modified_ms
    put(few, 4)
    few.compact()
    assert few.log.refresh().by_seq[0][1].oldest_ms == since
