"""Folding: the same rows before and after, once, beside writers, and on Spark as on the driver."""

import datetime as dt
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from folding import AT, TIMED, due, keys_in, put
from strandline.consumers import compaction
from strandline.consumers.contract import ConsumerReport
from strandline.consumers.loop import run_own
from strandline.engines.choice import BULK
from strandline.jobs.doctor import examine
from strandline.tables.broken import BrokenTable
from strandline.tables.pins import new_pin
from support import ITEMS, Oracle, by_id, claimed_files, data_files, refused, rows_of, trim


def fill(table, commits=6):
    for at in range(commits):
        table.upsert([{"id": at * 3 + n, "name": f"{at}.{n}", "qty": at} for n in range(5)])
        table.delete([at * 3 + 1])


def test_folding_changes_no_row_and_no_seq(items):
    fill(items)
    before = {seq: rows_of(items.to_arrow(at=seq)) for seq in range(items.head + 1)}
    assert items.compact(full=True).upto == items.head
    assert {seq: rows_of(items.to_arrow(at=seq)) for seq in before} == before
    fresh = sl.Lake(items.log.storage.uri).table("items")
    assert {seq: rows_of(fresh.to_arrow(at=seq)) for seq in before} == before


def test_a_second_fold_is_a_no_op(items):
    fill(items)
    items.compact(full=True)
    version, files = items.baseline.refresh().version, data_files(items)
    assert items.compact(full=True).upto == items.head
    assert items.baseline.refresh().version == version
    assert data_files(items) == files


def test_folding_an_empty_table_does_nothing(items):
    assert items.compact(full=True).upto == 0
    assert data_files(items) == set()


def test_a_fold_leaves_untouched_vnodes_alone(lake):
    table = lake.create_table("t", ITEMS, key=["id"], vnodes=16)
    table.upsert([{"id": at} for at in range(500)])
    table.compact(full=True)
    before = set(table.baseline.refresh().snapshot.files)
    table.upsert([{"id": 7, "name": "new"}])
    table.compact(full=True)
    after = set(table.baseline.refresh().snapshot.files)
    assert len(before) == len(after) == 16
    assert len(before - after) == 1


def test_after_everything_is_deleted_the_baseline_has_no_file(items):
    items.upsert([{"id": at} for at in range(50)])
    items.compact(full=True)
    items.delete(list(range(50)))
    items.compact(full=True)
    assert items.baseline.refresh().files() == []
    assert items.to_arrow().num_rows == 0
    items.upsert([{"id": 1, "name": "again"}])
    items.compact(full=True)
    assert by_id(items) == {1: "again"}


def test_a_row_written_while_a_fold_runs_survives(items):
    """The write lands between what the fold read and its commit."""
    items.upsert([{"id": at, "name": "old"} for at in range(10)])
    other = sl.Lake(items.log.storage.uri).table("items")
    plan = items.baseline.commit_fold

    def write_then_commit(*args, **options):
        other.upsert([{"id": 3, "name": "new"}, {"id": 77, "name": "new"}])
        other.delete([4])
        return plan(*args, **options)

    items.baseline.commit_fold = write_then_commit
    assert items.compact(full=True).upto == 1
    del items.baseline.commit_fold
    expected = {at: "old" for at in range(10)} | {3: "new", 77: "new"}
    del expected[4]
    for table in (items, other, sl.Lake(items.log.storage.uri).table("items")):
        assert by_id(table) == expected
    items.compact(full=True)
    assert by_id(items) == expected


def test_of_two_folds_at_once_one_wins_and_nothing_doubles(items):
    fill(items)
    expected = rows_of(items.to_arrow())
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def lose_the_race(*args, **options):
        other.compact(full=True)
        return commit(*args, **options)

    items.baseline.commit_fold = lose_the_race
    report = items.compact(full=True)
    assert (report.vnodes, report.files) == (0, 0), "what the other folded is no longer due"
    del items.baseline.commit_fold
    assert rows_of(items.to_arrow()) == expected
    assert items.compact(full=True).upto == items.head
    assert rows_of(items.to_arrow()) == expected
    assert data_files(items) == claimed_files(items), "the loser's files are gone again"


def test_marks_live_in_the_commit_that_they_describe(items):
    fill(items)
    items.compact(full=True)
    state = items.baseline.refresh()
    assert state.marks == (items.head,) * 4
    assert {txn: seq for txn, seq in state.snapshot.txns.items() if txn.startswith("fold/")} == {
        f"fold/{vnode}": items.head for vnode in range(4)
    }


@pytest.mark.parametrize("vnodes", [1, 8])
def test_a_table_without_a_key_keeps_every_row(lake, vnodes):
    table = lake.create_table("events", ITEMS, vnodes=vnodes)
    for at in range(6):
        table.append([{"id": 1, "name": "same"}, {"id": at}])
        if at in (2, 4):
            table.compact(full=True)
    assert table.to_arrow().num_rows == 12
    assert [table.to_arrow(at=seq).num_rows for seq in range(7)] == [0, 2, 4, 6, 8, 10, 12]
    table.compact(full=True)
    assert [table.to_arrow(at=seq).num_rows for seq in range(7)] == [0, 2, 4, 6, 8, 10, 12]


def test_what_was_trimmed_is_not_retained_and_says_what_is(items):
    for at in range(1, 11):
        items.upsert([{"id": at, "name": str(at)}])
        if at in (4, 8):
            items.compact(full=True)
    trim(items, 6)
    fresh = sl.Lake(items.log.storage.uri).table("items")
    for table in (items, fresh):
        for seq in (0, 1, 4, 5, 7):
            with refused(sl.NotRetained, seq=seq, oldest=8):
                table.to_arrow(at=seq)
        for seq in (8, 9, 10, 11):
            assert len(by_id(table, at=seq)) == min(seq, 10)
        with refused(sl.NotRetained, oldest=6):
            table.changes(5)
        assert table.changes(6)["id"].to_pylist() == [7, 8, 9, 10]


def test_folding_goes_on_after_a_trim(items):
    items.upsert([{"id": 1, "name": "a"}])
    items.compact(full=True)
    trim(items, 1)
    items.upsert([{"id": 2, "name": "b"}])
    items.compact(full=True)
    assert by_id(sl.Lake(items.log.storage.uri).table("items")) == {1: "a", 2: "b"}


def test_a_fold_on_spark_that_loses_its_race_leaves_no_file(spark, items, monkeypatch):
    fill(items, commits=2)
    # Another compactor that looked before this one had claimed its vnodes.
    monkeypatch.setattr(compaction.Compaction, "_claimed_vnodes", lambda self: set())
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def lose_the_race(*args, **options):
        other.compact(full=True)
        return commit(*args, **options)

    items.baseline.commit_fold = lose_the_race
    assert compaction.compact(items, full=True, driver_rows=0).files == 0
    assert data_files(items) == claimed_files(items)


# --- when a vnode is due ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, "qty"])
def test_uneven_marks_change_no_row_at_any_seq(spark, make_table, version):
    rng = random.Random(5)
    table = make_table(key=["id"], vnodes=4, version=version, compact_ratio=0.6)
    oracle, history, uneven = Oracle(["id"], version), [[]], 0
    for step in range(40):
        vnode = rng.choice([0, 0, 0, 1, 2, 3])
        keys = rng.sample(keys_in(vnode, 12), rng.randint(1, 5))
        if rng.random() < 0.3:
            table.delete(keys)
            oracle.delete({"id": key} for key in keys)
        else:
            rows = [{"id": key, "name": str(step), "qty": rng.randint(0, 5)} for key in keys]
            table.upsert(rows)
            oracle.upsert(rows)
        history.append(oracle.copy())
        table.compact()
        # A pack takes a seq.
        history += [history[-1]] * (table.head + 1 - len(history))
        uneven += len(set(table.baseline.refresh().marks)) > 1
    assert uneven > 5, "the marks were uneven for a while"
    fresh = sl.Lake(table.log.storage.uri).table(table.name)
    for seq, rows in enumerate(history):
        expected = rows_of(pa.Table.from_pylist(rows, schema=table.schema))
        assert rows_of(table.to_arrow(at=seq)) == expected, seq
        assert rows_of(fresh.to_arrow(at=seq)) == expected, seq
        if seq % 8 == 0 or seq == len(history) - 1:
            assert rows_of(fresh.to_spark(at=seq).toArrow()) == expected, seq


# --- what a fold leaves alone ----------------------------------------------------------------------------------


def test_a_full_compaction_drops_every_expired_row(make_table):
    table = make_table(TIMED, key=["id"], vnodes=1, time="at")
    table.upsert([{"id": n, "at": AT + dt.timedelta(days=n * n)} for n in range(9)])
    table.compact()
    table.expire(AT + dt.timedelta(days=3))
    assert due(table) == [], "by their statistics less than one row of nine is expired"
    table.compact(full=True)
    assert sum(file.rows for file in table.baseline.refresh().files()) == table.to_arrow().num_rows == 7


# --- several compactors ----------------------------------------------------------------------------------------


def test_two_compactors_of_different_vnodes_both_land(items):
    """The other one begins after ours has read, skips what ours is folding, and lands first."""
    put(items, keys_in(0, 30))
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold
    reports = []

    def land_second(*args, **options):
        del items.baseline.commit_fold
        claim = new_pin("compaction", vnodes=(0,))
        other.pins.put(claim)
        put(other, keys_in(1, 30))
        put(other, keys_in(0, 2), name="later")
        reports.append(other.compact())
        other.pins.release(claim.name)
        return commit(*args, **options)

    items.baseline.commit_fold = land_second
    ours = items.compact()
    assert (ours.vnodes, reports[0].vnodes) == (1, 1)
    fresh = sl.Lake(items.log.storage.uri).table("items")
    assert fresh.baseline.refresh().marks[:2] == (1, 3)
    expected = dict.fromkeys([*keys_in(0, 30), *keys_in(1, 30)], "x") | dict.fromkeys(keys_in(0, 2), "later")
    for table in (items, other, fresh):
        assert by_id(table) == expected
    assert data_files(items) == claimed_files(items), "nobody's work was thrown away"


def test_a_mark_that_is_moved_for_free_disturbs_no_compactor(items):
    """Ours read when vnode 1 had no change; the other one folds vnode 1 and lands after ours has moved its mark."""
    put(items, keys_in(0, 30))
    other = sl.Lake(items.log.storage.uri).table("items")
    commit, commits_other = items.baseline.commit_fold, other.baseline.commit_fold
    tried = []

    def ours_first(*args, **options):
        if not tried:
            commit(*ours[0], **ours[1])
        tried.append(options["vnodes"])
        return commits_other(*args, **options)

    ours = []

    def begin_other(*args, **options):
        del items.baseline.commit_fold
        ours[:] = [args, options]
        claim = new_pin("compaction", vnodes=(0,))
        other.pins.put(claim)
        put(other, keys_in(1, 30))
        other.baseline.commit_fold = ours_first
        assert other.compact().vnodes == 1
        other.pins.release(claim.name)

    items.baseline.commit_fold = begin_other
    items.compact()
    assert by_id(items) == dict.fromkeys([*keys_in(0, 30), *keys_in(1, 30)], "x")
    assert tried == [[1]], "its work was not thrown away"


def test_a_slow_compactor_does_not_take_the_schema_back(items):
    put(items, range(20))
    items.compact(full=True)
    put(items, keys_in(0, 30))
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def land_second(*args, **options):
        del items.baseline.commit_fold
        claim = new_pin("compaction", vnodes=(0,))
        other.pins.put(claim)
        other.evolve(pa.schema([("colour", pa.string())]))
        other.upsert([{"id": key, "colour": "red"} for key in keys_in(1, 30)], missing="null")
        assert other.compact().vnodes == 1
        other.pins.release(claim.name)
        return commit(*args, **options)

    items.baseline.commit_fold = land_second
    assert items.compact().vnodes == 1
    found = DeltaTable(items.log.storage.url(items.baseline.folder)).to_pyarrow_table()
    assert found.column("colour").to_pylist().count("red") == 30, "other engines still see the new column"


# --- Spark as the driver ---------------------------------------------------------------------------------------


# --- damage ----------------------------------------------------------------------------------------------------


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(255 - byte for byte in data[4:200])
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


DAMAGES = {"truncated": truncate, "flipped": flip, "missing": Path.unlink, "empty": empty}


@pytest.mark.parametrize("part", ["baseline", "log"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_a_damaged_file_degrades_its_vnode_and_no_other(request, folded, lake, part, damage, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    for vnode in (1, 2, 3):
        put(folded, keys_in(vnode, 20), name="new")
    if part == "baseline":
        (file,) = folded.baseline.refresh().files(1)
    else:
        file = next(file for seq, file in folded.log.refresh().by_seq if seq == 2)
    path = Path(lake.storage.uri) / (folded.baseline if part == "baseline" else folded.log).folder / file.path
    whole = path.read_bytes()
    DAMAGES[damage](path)
    rows = 0 if engine == "spark" else BULK.rows
    fresh = sl.Lake(lake.storage.uri).table("items")
    for _ in range(2):
        report = compaction.compact(fresh, driver_rows=rows)
        assert [found.vnode for found in report.degraded] == [1]
        assert file.path in report.degraded[0].path
        assert fresh.baseline.refresh().marks == (4, 1, 4, 4)
        status = lake.status()
        assert not status.is_healthy
        assert file.path in status.tables[0].degraded[0]
    assert report.vnodes == 0
    assert {found.where for found in examine(lake.storage).findings if found.severity == "wrong"} == {str(path)}
    path.write_bytes(whole)
    assert examine(lake.storage).is_sound
    report = compaction.compact(fresh, driver_rows=rows)
    assert (report.vnodes, report.degraded) == (1, ())
    assert lake.status().is_healthy
    expected = dict.fromkeys([key for vnode in range(4) for key in keys_in(vnode, 40)], "x")
    expected |= dict.fromkeys([key for vnode in (1, 2, 3) for key in keys_in(vnode, 20)], "new")
    assert by_id(sl.Lake(lake.storage.uri).table("items")) == expected
    assert data_files(folded) >= claimed_files(folded)


def test_a_broken_table_does_not_keep_the_others_from_being_maintained(lake, make_table):
    tables = [make_table(key=["id"], vnodes=1) for _ in range(4)]
    for table in tables:
        put(table, range(10))
    torn = Path(lake.storage.uri) / tables[0].log.folder / next(iter(tables[0].log.refresh().snapshot.files))
    torn.write_bytes(b"PAR1")
    (Path(lake.storage.uri) / tables[2].log.folder / "_delta_log" / f"{1:020d}.json").write_text("{ torn")
    fresh = sl.Lake(lake.storage.uri)
    reports = fresh.compact()
    assert [found.vnode for found in reports[0].degraded] == [0]
    assert isinstance(reports[2], BrokenTable)
    for number in (1, 3):
        assert reports[number].vnodes == 1
        assert len(by_id(fresh.table(tables[number].name))) == 10
    cleaned = fresh.vacuum(grace=0, keep=0).tables
    assert [isinstance(found, BrokenTable) for found in cleaned] == [False, False, True, False]
    assert not fresh.status().is_healthy


def test_what_was_folded_before_a_failure_is_reported(lake, monkeypatch):
    table = lake.create_table("wide", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"], vnodes=4)
    put(table, range(40))
    consumer = compaction.Compaction(table)
    (whole,) = consumer.due_works()
    halves = [replace(whole, lanes=(whole.vnodes[:2],)), replace(whole, lanes=(whole.vnodes[2:],))]
    real, calls = compaction.fold_on_driver, iter(range(9))

    def fails_later(*words):
        if next(calls):
            raise sl.Unavailable("away")
        return real(*words)

    monkeypatch.setattr(compaction, "fold_on_driver", fails_later)
    report = ConsumerReport(name=consumer.name, table="wide", kind=consumer.kind, destination=consumer.destination)
    with refused(sl.Unavailable):
        run_own(consumer, halves, consumer.due_works, report=report)
    assert (report.upto, report.facts["vnodes"]) == (1, 2) and 0 < report.rows < 40


def test_a_work_that_another_compactor_did_moves_nothing(items):
    put(items, range(10))
    consumer = compaction.Compaction(items)
    works = consumer.due_works()
    items.compact(full=True)
    report = ConsumerReport(name=consumer.name, table="items", kind=consumer.kind, destination=consumer.destination)
    run_own(consumer, works, consumer.due_works, report=report)
    assert (report.upto, report.rows, report.facts["vnodes"]) == (None, 0, 0)
