"""Packs: few log files with the changes of many, the same changes at every seq."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from folding import NOW, again
from strandline.engines.lanes import ReadLane
from strandline.jobs.restore import restore
from strandline.model import definition as definitions
from strandline.tables.packing import Bundle, pack_files
from strandline.tables.spark_files import inside_of
from support import ITEMS, data_files, refused, rows_of

COMMITS = 12
NEVER = {"compact_ratio": 1e9, "compact_files": 3}


def pack(table, first=0, last=None):
    """Pack the files from the index `first` to before `last` into one."""
    files = table.log.refresh().by_seq[first:last]
    tier = 1 + max(file.pack.tier if file.pack else 0 for _, file in files)
    return pack_files(table.log, [Bundle(tuple(files), tier)])


def fill(table, commits=COMMITS, seed=1):
    rng = random.Random(seed)
    put = table.upsert if table.definition.is_keyed else table.append
    for at in range(commits):
        put([{"id": rng.randrange(9), "name": f"{at}.{n}"} for n in range(3)], token=f"{seed}.{at}")
        if table.definition.is_keyed and at % 5 == 3:
            table.delete([rng.randrange(9)])


def everything(table, upto=None):
    """All rows at every seq, and all changes of every range."""
    head = table.head if upto is None else upto
    at = {seq: rows_of(table.to_arrow(at=seq)) for seq in range(table.oldest, head + 1)}
    low = table.log.refresh().trimmed_to
    ranges = [(after, upto) for after in range(low, head) for upto in range(after + 1, head + 1)]
    return at, {pair: rows_of(table.changes(*pair)) for pair in ranges}


@pytest.fixture(params=["keyed", "version", "keyless"])
def table(request, lake):
    more = {"keyed": {"key": ["id"]}, "version": {"key": ["id"], "version": "id2"}, "keyless": {}}[request.param]
    columns = pa.schema([*ITEMS, *([pa.field("id2", pa.int64())] if "version" in more else [])])
    made = lake.create_table("items2", columns, vnodes=4, **NEVER, **more)
    if "version" not in more:
        fill(made)
        return made
    rng = random.Random(2)
    for at in range(COMMITS):
        made.upsert([{"id": rng.randrange(5), "id2": rng.randrange(4), "name": f"{at}.{n}"} for n in range(3)])
        if at % 4 == 2:
            made.delete([rng.randrange(5)])
    return made


def test_every_seq_and_every_range_is_as_before(table):
    before = everything(table)
    pack(table, 2, 9)
    assert everything(table, max(before[0])) == before
    pack(table, 1)
    assert everything(again(table), max(before[0])) == before
    packs = [file.pack for _, file in table.log.refresh().by_seq if file.pack]
    assert [each.tier for each in packs] == [2]
    assert packs[0].commits == table.log.delta.history()[-1].version - 1 - 1 - 1


def test_folds_of_some_vnodes_and_of_all_leave_the_changes(table):
    before = everything(table)
    head = table.head
    pack(table, 0, 6)
    table.configure(compact_ratio=0)
    table.compact()
    assert rows_of(table.to_arrow()) == before[0][head]
    table.compact(full=True)
    pack(table)
    found = everything(again(table), head)
    assert found[1] == before[1]
    assert all(before[0][seq] == rows for seq, rows in found[0].items())


def test_a_pack_that_reaches_over_a_trim_stays_and_shows_nothing_before_it(table):
    pack(table, 3, 8)
    middle = next(file.pack for _, file in table.log.refresh().by_seq if file.pack)
    cut = (middle.first + middle.last) // 2
    wanted = {upto: rows_of(table.changes(cut, upto)) for upto in range(cut + 1, table.head + 1)}
    table.log.trim(cut)
    assert any(file.pack == middle for _, file in table.log.refresh().by_seq)
    assert {upto: rows_of(table.changes(cut, upto)) for upto in wanted} == wanted
    with refused(sl.NotRetained, oldest=cut):
        table.changes(cut - 1)


def test_a_lookup_finds_the_one_winner_among_many_changes_of_its_key(items):
    for n in range(6):
        items.upsert([{"id": 1, "name": f"n{n}"}, {"id": n + 2, "name": "x"}])
    pack(items)

    def found(**options):
        return rows_of(items.to_arrow(columns=["id", "name"], **options))

    assert found(where="id = 1") == [(1, "n5")]
    items.delete([1])
    assert items.to_arrow(where="id = 1").num_rows == 0
    assert found(where="id = 1", at=3) == [(1, "n2")]


def test_rows_that_were_purged_are_in_no_pack(items):
    for n in range(6):
        items.upsert([{"id": n % 2, "name": f"secret{n}"}])
    pack(items, 0, 5)
    items.purge([{"id": 1}])
    live = [Path(items.log.storage.uri) / items.log.folder / file.path for _, file in items.log.refresh().by_seq]
    assert 1 not in [key for path in live for key in pq.read_table(path)["id"].to_pylist()]
    assert items.changes(0, 6)["name"].to_pylist() == ["secret0", "secret2", "secret4"]
    items.upsert([{"id": 1, "name": "new"}])
    pack(items)
    assert rows_of(items.to_arrow(columns=["id", "name"])) == [(0, "secret4"), (1, "new")]


def test_a_purge_that_was_packed_before_it_ends_erases_the_rows_before_its_delete_alone(items, monkeypatch):
    from strandline.jobs import purge

    items.upsert([{"id": 1, "name": "secret"}, {"id": 2, "name": "a"}])
    erase = purge._purge_log

    def pack_first(table, matching, seq):
        if not table.log.refresh().packed:
            table.upsert([{"id": 1, "name": "later"}])
            pack(table)
        return erase(table, matching, seq)

    monkeypatch.setattr(purge, "_purge_log", pack_first)
    report = items.purge([{"id": 1}])
    assert report.log_rows == 1
    assert rows_of(items.to_arrow(columns=["id", "name"])) == [(1, "later"), (2, "a")]
    assert items.changes()["_op"].to_pylist() == ["upsert", "upsert"]


def test_a_restore_to_a_seq_inside_a_pack(items):
    fill(items)
    before = {seq: rows_of(items.to_arrow(at=seq)) for seq in range(items.head + 1)}
    pack(items)
    for seq in (4, 9, 2):
        restore(items, seq)
        assert rows_of(items.to_arrow()) == before[seq]
        pack(items)


def test_old_files_stay_for_the_grace_time_and_then_go(items):
    fill(items)
    files = data_files(items)
    pack(items)
    wanted = everything(items)
    assert files < data_files(items)
    items.vacuum(grace="1h", keep="1h")
    assert files < data_files(items)
    items.vacuum(grace=0, keep="1h")
    assert not files & data_files(items)
    assert everything(again(items)) == wanted
    items.compact(full=True)
    items.vacuum(**NOW)
    assert rows_of(again(items).to_arrow()) == wanted[0][max(wanted[0])]


def test_a_damaged_pack_is_corrupt_and_a_damaged_file_is_not_packed(items):
    fill(items)
    (packed,) = pack(items, 0, 6)
    path = Path(items.log.storage.uri) / items.log.folder / packed.path
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    files = data_files(items)
    with pytest.raises(sl.Corrupt):
        pack(items)
    assert data_files(items) == files
    report = items.compact(full=True)
    assert report.packed_files == report.vnodes == 0
    assert {each.message for each in report.degraded} != set()


def test_a_rival_that_packed_first_wins(items):
    fill(items)
    log = items.log.refresh()
    pack(items)
    files = data_files(items)
    with refused(sl.Conflict):
        pack_files(items.log, [Bundle(tuple(log.by_seq), 1)])
    assert data_files(items) == files


def test_an_earlier_program_refuses_a_table_with_packs(items, monkeypatch):
    fill(items)
    assert items.log.refresh().snapshot.configuration["strandline.format"] == "2"
    pack(items)
    assert items.log.refresh().snapshot.configuration["strandline.format"] == "4"
    monkeypatch.setattr(definitions, "PACKED_FORMAT", 3)
    with refused(sl.Invalid, format=4):
        again(items)


def test_other_engines_find_the_seq_of_each_change(items):
    fill(items)
    wanted = rows_of(items.changes())
    pack(items, 2)
    found = DeltaTable(items.log.storage.url(items.log.folder)).to_pyarrow_table().to_pylist()
    seqs = [(row["_sl_seq"] or row["_seq"], row["_op"], row["id"], row["name"]) for row in found]
    assert sorted(seqs, key=repr) == sorted(((seq, op, *rest) for op, seq, *rest, _ in wanted), key=repr)
    assert all(row["_seq"] >= (row["_sl_seq"] or 0) for row in found)


@pytest.mark.parametrize("is_coded", [False, True])
def test_a_lane_that_reads_files_itself_finds_the_same(items, is_coded):
    fill(items)
    wanted = {pair: rows_of(items.changes(*pair)) for pair in ((0, 14), (3, 9), (5, 6))}
    pack(items, 1, 10)
    log = items.log.refresh()
    names = ("_op", "id", "name", "qty")
    lane = ReadLane(log.storage, tuple(log.definition.log_schemas), names, "_seq")
    for (after, upto), rows in wanted.items():
        files = [
            (file.path, file.schema_id, file.number, *inside_of(file)) for file in log.scans(log.files(after, upto))
        ]
        columns = ["path", "schema_id", "number", "inside", "after", "upto"]
        batch = pa.RecordBatch.from_pylist([dict(zip(columns, file, strict=True)) for file in files])
        read = lane.read_coded if is_coded else lane
        found = [row for part in read(iter([batch])) for row in part.to_pylist()]
        assert sorted(((r["_op"], r["_seq"], r["id"], r["name"], r["qty"]) for r in found), key=repr) == rows


def test_values_that_a_row_lacks_are_those_of_its_winner_inside_a_pack(items):
    for n in range(3):
        items.upsert([{"id": 1, "name": f"n{n}", "qty": n}, {"id": n + 2, "name": "x", "qty": 7}])
    pack(items)
    items.upsert([{"id": 1, "qty": 5}, {"id": 3, "qty": 6}, {"id": 9, "qty": 9}], missing="keep")
    found = {row["id"]: (row["name"], row["qty"]) for row in items.to_arrow().to_pylist()}
    assert found == {1: ("n2", 5), 2: ("x", 7), 3: ("x", 6), 4: ("x", 7), 9: (None, 9)}
    items.compact(full=True)
    items.upsert([{"id": 4, "qty": 1}, {"id": 1, "qty": 1}], missing="keep")
    assert items.to_arrow(where="id in (1, 4)", columns=["name"])["name"].to_pylist() in (["x", "n2"], ["n2", "x"])
