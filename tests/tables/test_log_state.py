"""The files of a range of changes, and packs that reach beyond it."""

import strandline as sl
from strandline.storage.snapshot import Pack
from strandline.tables.packing import Bundle, pack_files
from support import refused


def pack(table):
    pack_files(table.log, [Bundle(tuple(table.log.refresh().by_seq), 1)])


def test_a_range_has_the_files_of_its_commits_and_limits_a_pack(items):
    for n in range(1, 7):
        items.upsert([{"id": n}] * n)
    assert [seq for seq, _ in items.log.refresh().files(2, 4)] == [3, 4]
    pack(items)
    items.upsert([{"id": 7}])
    log = items.log.refresh()

    def found(after, upto):
        return [(seq, file.within) for seq, file in log.files(after, upto)]

    assert found(0, 6) == found(0, 7) == [(6, None)]
    assert found(0, 8) == [(6, None), (8, None)]
    assert found(2, 4) == [(4, (2, 4))]
    assert found(5, 8) == [(6, (5, 8)), (8, None)]
    assert found(6, 8) == [(8, None)]
    assert [(scan.number, scan.inside.condition) for scan in log.scans(log.files(2, 4))] == [
        (4, "_sl_seq > 2 AND _sl_seq <= 4")
    ]
    assert [scan.inside.condition for scan in log.scans(log.files(0, 7))] == [None]
    for bad in (-1, True, "1"):
        with refused(sl.Invalid):
            log.files(bad, 3)


def test_the_rows_of_a_commit_are_counted_inside_a_pack(items):
    for n in range(1, 5):
        items.upsert([{"id": each} for each in range(n)])
    assert [items.log.refresh().rows_at(seq) for seq in range(1, 6)] == [1, 2, 3, 4, 0]
    pack(items)
    assert [items.log.refresh().rows_at(seq) for seq in range(1, 6)] == [1, 2, 3, 4, 0]


def test_a_token_is_still_known_with_its_rows(items):
    first = [items.upsert([{"id": n}, {"id": n + 1}], token=str(n)) for n in range(4)]
    pack(items)
    assert [items.upsert([{"id": n}], token=str(n)) for n in range(4)] == [
        sl.Commit(each.seq, 2, is_replay=True) for each in first
    ]


def test_a_share_and_a_time_inside_a_pack():
    known = Pack(11, 20, 10, 1, 1000, 1900)
    assert [known.share(*each) for each in ((0, 30), (10, 20), (15, 20), (0, 12), (20, 30), (0, 10))] == [
        1.0, 1.0, 0.5, 0.2, 0, 0,
    ]  # fmt: skip
    assert [known.time_ms(seq) for seq in (1, 11, 16, 20, 30)] == [1000, 1000, 1500, 1900, 1900]
