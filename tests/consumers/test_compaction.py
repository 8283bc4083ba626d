"""Folding: the same rows before and after, once, beside writers, and on Spark as on the driver."""

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.consumers import compaction
from strandline.consumers.compaction_plan import plan
from strandline.engines.choice import BULK
from strandline.jobs.doctor import examine
from strandline.model.keys import hash_keys, vnode_of
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


KEYED = {"key": ["id"], "vnodes": 4}
SHAPES = {
    "keyed": (ITEMS, KEYED),
    "one vnode": (ITEMS, {"key": ["id"], "vnodes": 1}),
    "composite": (ITEMS, {"key": ["name", "qty"], "vnodes": 4}),
    "versioned": (ITEMS, {"key": ["id"], "version": "qty", "vnodes": 4}),
    "unkeyed": (ITEMS, {"vnodes": 4}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fold_on_spark_writes_the_same_baseline_as_one_on_the_driver(spark, tmp_path, shape):
    schema, options = SHAPES[shape]
    tables = []
    for name in ("driver", "spark"):
        table = sl.Lake(tmp_path / name).create_table("t", schema, **options)
        for round_ in range(2):
            for at in range(3):
                rows = [{"id": at * 3 + n, "name": f"n{(at + n) % 5}", "qty": (at * n + round_) % 4} for n in range(8)]
                (table.upsert if table.definition.is_keyed else table.append)(rows)
            if table.definition.is_keyed:
                table.delete(pa.table(rows_by_key(table, rows[:2])))
            assert table.head == (4 if table.definition.is_keyed else 3) * (round_ + 1)
            if name == "driver":
                table.compact(full=True)
            else:
                compaction.compact(table, full=True, driver_rows=0)
        tables.append(table)
    one, two = tables
    assert rows_of(one.to_arrow()) == rows_of(two.to_arrow())
    assert one.baseline.refresh().marks == two.baseline.refresh().marks
    per_vnode = [{(f.partition["_vnode"], f.rows) for f in table.baseline.refresh().files()} for table in tables]
    if one.definition.is_keyed:
        assert per_vnode[0] == per_vnode[1]
    for seq in range(one.head + 1):
        assert rows_of(one.to_arrow(at=seq)) == rows_of(two.to_arrow(at=seq))


def rows_by_key(table, rows):
    return {name: pa.array([row[name] for row in rows], table.schema.field(name).type) for name in table.definition.key}


def test_a_fold_on_spark_that_loses_its_race_leaves_no_file(spark, items, monkeypatch):
    fill(items, commits=2)
    # Another compactor that looked before this one had claimed its vnodes.
    monkeypatch.setattr(compaction._Work, "_claimed", lambda self: set())
    other = sl.Lake(items.log.storage.uri).table("items")
    commit = items.baseline.commit_fold

    def lose_the_race(*args, **options):
        other.compact(full=True)
        return commit(*args, **options)

    items.baseline.commit_fold = lose_the_race
    assert compaction.compact(items, full=True, driver_rows=0).files == 0
    assert data_files(items) == claimed_files(items)


# --- when a vnode is due ---------------------------------------------------------------------------------------


def keys_in(vnode, count, *, vnodes=4, start=0):
    """The first `count` whole numbers from `start` on whose key falls into a vnode."""
    numbers = range(start, start + 64 * vnodes * (count + 1))
    hashes = hash_keys([pa.array(numbers, pa.int64())]).to_pylist()
    return [n for n, hash_ in zip(numbers, hashes, strict=True) if vnode_of(hash_, vnodes) == vnode][:count]


def put(table, keys, name="x"):
    return table.upsert([{"id": key, "name": name} for key in keys])


@pytest.fixture
def folded(items):
    """40 rows in each of four vnodes, folded."""
    put(items, [key for vnode in range(4) for key in keys_in(vnode, 40)])
    items.compact()
    assert items.baseline.refresh().marks == (1,) * 4
    return items


def due(table, **options):
    return [need.vnode for need in plan(table, **options).due]


def test_a_vnode_is_due_when_its_changes_are_many_against_its_rows(folded):
    put(folded, keys_in(1, 8))
    version = folded.baseline.refresh().version
    assert due(folded) == []
    assert (folded.compact().vnodes, folded.baseline.refresh().version) == (0, version)
    put(folded, keys_in(1, 1))
    assert due(folded) == [1]
    before = {file.path: file.partition["_vnode"] for file in folded.baseline.refresh().files()}
    report = folded.compact()
    assert (report.vnodes, report.rows, report.files, report.removed_files) == (1, 40, 1, 1)
    after = folded.baseline.refresh()
    assert [before[path] for path in before.keys() - after.snapshot.files.keys()] == ["1"]
    assert after.marks == (3,) * 4, "the marks of vnodes without changes move for free"
    assert folded.compact().vnodes == 0
    assert folded.baseline.refresh().version == version + 1


def test_the_ratio_can_be_set(folded):
    folded.configure(fold_ratio=0.05)
    put(folded, keys_in(2, 3))
    assert due(folded) == [2]
    folded.configure(fold_ratio=2)
    put(folded, keys_in(2, 40))
    assert due(folded) == []
    assert due(folded, full=True) == [2]


def test_a_vnode_is_due_when_its_changes_lie_in_many_files(folded):
    folded.configure(fold_files=3)
    for _ in range(3):
        put(folded, keys_in(2, 1))
        assert due(folded) == []
    put(folded, keys_in(3, 1))
    assert due(folded) == []
    put(folded, keys_in(2, 1))
    assert due(folded) == [2]
    folded.compact()
    marks = folded.baseline.refresh().marks
    assert marks == (folded.head, folded.head, folded.head, 1), "the changes of vnode 3 still wait"


def test_a_vnode_is_due_when_its_changes_are_old(folded):
    put(folded, keys_in(0, 1))
    now = dt.datetime.now(dt.UTC)
    assert due(folded, now=now + dt.timedelta(days=6.9)) == []
    assert due(folded, now=now + dt.timedelta(days=7.1)) == [0]
    folded.configure(fold_age="1h")
    assert due(folded, now=now + dt.timedelta(minutes=59)) == []
    assert due(folded, now=now + dt.timedelta(minutes=61)) == [0]


def test_the_neediest_vnode_comes_first(folded):
    for vnode, count in ((0, 12), (1, 30), (2, 1), (3, 20)):
        put(folded, keys_in(vnode, count))
    assert due(folded) == [1, 3, 0]
    plan = folded.plan_compaction()
    assert [need.rows for need in plan.due] == [30, 20, 12]
    assert plan.waiting_rows == 63
    assert [need.vnode for need in folded.plan_compaction(full=True).due] == [1, 3, 0, 2]


def test_a_plan_reads_no_data_file(folded, lake):
    put(folded, keys_in(1, 20))
    for path in data_files(folded):
        (Path(lake.storage.uri) / folded.entry.folder / path).unlink()
    assert due(folded) == [1]


@pytest.mark.parametrize("version", [None, "qty"])
def test_uneven_marks_change_no_row_at_any_seq(spark, make_table, version):
    rng = random.Random(5)
    table = make_table(key=["id"], vnodes=4, version=version, fold_ratio=0.6)
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

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEYS = {
    "int": (pa.int64(), lambda n: n * 3 - 600),
    "string": (pa.string(), lambda n: f"k{n:05d}'é\n"),
    "long string": (pa.string(), lambda n: f"k{n:05d}" + "y" * 80),
    "nul": (pa.string(), lambda n: f"k\x00{n:05d}"),
    "date": (pa.date32(), lambda n: dt.date(1969, 6, 1) + dt.timedelta(days=n)),
    "time": (pa.timestamp("us", tz="UTC"), lambda n: AT + dt.timedelta(microseconds=n)),
    "local time": (pa.timestamp("us"), lambda n: dt.datetime(1960, 1, 1) + dt.timedelta(hours=n)),
    "binary": (pa.binary(), lambda n: n.to_bytes(4, "big")),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_composite", [False, True], ids=["one", "composite"])
def test_large_files_that_no_change_falls_into_stay(make_table, monkeypatch, kind, is_composite):
    monkeypatch.setattr(compaction, "WHOLE_BYTES", 1)
    type_, make = KEYS[kind]
    schema = pa.schema([("a", type_), ("b", pa.int64()), ("n", pa.int64())])
    table = make_table(schema, key=["a", "b"] if is_composite else ["a"], vnodes=1)
    oracle = Oracle(table.definition.key)

    def change(numbers, n):
        rows = [{"a": make(number), "b": 0, "n": n} for number in numbers]
        table.upsert(rows)
        oracle.upsert(rows)

    def fold():
        before = set(table.baseline.refresh().snapshot.files)
        table.compact(full=True)
        after = set(table.baseline.refresh().snapshot.files)
        assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist(oracle.copy(), schema=schema))
        return len(before - after), len(after - before)

    is_ranged = kind not in ("binary", "long string")
    for at, start in enumerate((0, 200, 400)):
        change(range(start, start + 100), 0)
        assert fold() == ((0, 1) if is_ranged or at == 0 else (1, 1))
    if not is_ranged:
        return
    # The first and the last row of a file, one between files, one behind all of them, the first of all.
    for numbers, expected in (([200], (1, 1)), ([299], (1, 1)), ([350], (0, 1)), ([500], (0, 1)), ([0], (1, 1))):
        change(numbers, 1)
        assert fold() == expected, numbers
    keys = [{name: row[name] for name in oracle.key} for row in oracle.copy()]
    gone = [key for key in keys if make(200) <= key["a"] <= make(299)]
    table.delete(pa.Table.from_pylist(gone, schema=pa.schema([schema.field(name) for name in oracle.key])))
    oracle.delete(gone)
    assert fold() == (1, 0)
    change([0, 499], 2)
    assert fold() == (2, 1)


def test_what_stays_and_what_is_rewritten_never_changes_the_rows(make_table, monkeypatch):
    monkeypatch.setattr(compaction, "WHOLE_BYTES", 1)
    rng = random.Random(3)
    table = make_table(key=["id"], vnodes=2)
    oracle, kept = Oracle(["id"]), 0
    for step in range(40):
        start = rng.randrange(20) * 100
        keys = rng.sample(range(start, start + 101), rng.randint(1, 60))
        if rng.random() < 0.3:
            table.delete(keys)
            oracle.delete({"id": key} for key in keys)
        else:
            rows = [{"id": key, "name": f"{step}.{key}", "qty": step} for key in keys]
            table.upsert(rows)
            oracle.upsert(rows)
        before = set(table.baseline.refresh().snapshot.files)
        table.compact(full=True)
        kept += len(before & set(table.baseline.refresh().snapshot.files))
        assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist(oracle.copy(), schema=ITEMS)), step
    assert kept > 40
    assert examine(table.log.storage, deep=True).is_sound


def test_a_table_without_a_key_packs_small_files_and_leaves_large_ones(make_table, monkeypatch):
    table = make_table(vnodes=1)
    for n in range(3):
        table.append([{"id": n}])
        table.compact(full=True)
        assert len(table.baseline.refresh().files()) == 1, "small files are packed"
    monkeypatch.setattr(compaction, "WHOLE_BYTES", 1)
    large = set(table.baseline.refresh().snapshot.files)
    table.append([{"id": 3}])
    assert table.compact(full=True).removed_files == 0
    assert large < set(table.baseline.refresh().snapshot.files)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())])


def test_files_of_expired_rows_alone_are_dropped_without_being_read(make_table, lake):
    table = make_table(TIMED, key=["id"], vnodes=1, time="at")
    table.upsert([{"id": n, "at": AT} for n in range(10)])
    table.compact()
    (old,) = table.baseline.refresh().files()
    table.upsert([{"id": n, "at": AT + dt.timedelta(days=9)} for n in range(20, 22)])
    table.expire(AT + dt.timedelta(days=1))
    (Path(lake.storage.uri) / table.baseline.folder / old.path).unlink()
    assert due(table) == [0]
    report = table.compact()
    assert (report.removed_files, report.rows, report.degraded) == (1, 2, ())
    assert sorted(table.to_arrow()["id"].to_pylist()) == [20, 21]


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_a_rewrite_for_expired_rows_is_not_repeated(request, make_table, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    table = make_table(TIMED, key=["id"], vnodes=2, time="at")
    # By their statistics most rows are expired; in truth one is in each vnode, and those without a time never are.
    ages = {keys_in(vnode, 1, vnodes=2)[0]: AT for vnode in (0, 1)}
    rows = [{"id": n, "at": ages.get(n, AT + dt.timedelta(days=99)) if n % 3 else None} for n in range(60)]
    rows = [{**row, "at": ages.get(row["id"], row["at"])} for row in rows]
    table.upsert(rows)
    table.compact()
    table.expire(AT + dt.timedelta(days=90))
    assert sorted(due(table)) == [0, 1]
    compaction.compact(table, driver_rows=0 if engine == "spark" else BULK.rows)
    version = table.baseline.refresh().version
    for full in (False, True):
        assert table.compact(full=full).vnodes == 0
    assert table.baseline.refresh().version == version
    assert table.to_arrow().num_rows == 58
    assert sum(file.rows for file in table.baseline.refresh().files()) == 58


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
        other.upsert([{"id": key, "colour": "red"} for key in keys_in(1, 30)])
        assert other.compact().vnodes == 1
        other.pins.release(claim.name)
        return commit(*args, **options)

    items.baseline.commit_fold = land_second
    assert items.compact().vnodes == 1
    found = DeltaTable(items.log.storage.url(items.baseline.folder)).to_pyarrow_table()
    assert found.column("colour").to_pylist().count("red") == 30, "other engines still see the new column"


# --- Spark as the driver ---------------------------------------------------------------------------------------


def shaped(lake, shape):
    """A table with a baseline and a log, of one of several kinds."""
    options = {
        "keyed": {"key": ["id"]},
        "versioned": {"key": ["id"], "version": "qty"},
        "keyless": {},
        "expired": {"key": ["id"], "time": "at"},
        "expired keyless": {"time": "at"},
        "dropped": {"key": ["id"]},
    }[shape]
    schema = pa.schema([*ITEMS, ("at", pa.timestamp("us", tz="UTC"))])
    table = lake.create_table("t", schema, vnodes=4, **options)
    write = table.upsert if table.definition.is_keyed else table.append

    def rows(start, qty):
        ages = [AT + dt.timedelta(days=n) if n % 7 else None for n in range(start, start + 40)]
        return [{"id": start + n, "name": f"{qty}.{n}", "qty": (qty + n) % 5, "at": at} for n, at in enumerate(ages)]

    write(rows(0, 0))
    table.compact(full=True)
    write(rows(20, 1))
    if table.definition.is_keyed:
        table.delete([1, 2, 3, 50])
    if "expired" in shape:
        table.expire(AT + dt.timedelta(days=30, hours=5))
    if shape == "dropped":
        table.drop_column("name")
        table.evolve(pa.schema([("colour", pa.string())]))
        table.upsert([{"id": 5, "colour": "red"}])
    return table


@pytest.mark.parametrize("shape", ["keyed", "versioned", "keyless", "expired", "expired keyless", "dropped"])
def test_spark_folds_every_kind_of_table_as_the_driver_does(spark, tmp_path, shape):
    one, two = (shaped(sl.Lake(tmp_path / name), shape) for name in ("driver", "spark"))
    expected = {seq: rows_of(one.to_arrow(at=seq)) for seq in range(one.head + 1)}
    assert one.compact(full=True).engine == "driver"
    assert compaction.compact(two, full=True, driver_rows=0).engine == "spark"
    for table in (one, two, sl.Lake(tmp_path / "spark").table("t")):
        assert {seq: rows_of(table.to_arrow(at=seq)) for seq in expected} == expected
    assert one.baseline.refresh().marks == two.baseline.refresh().marks
    states = [table.baseline.refresh() for table in (one, two)]
    assert sum(f.rows for f in states[0].files()) == sum(f.rows for f in states[1].files()) == one.to_arrow().num_rows
    for table in (one, two):
        version = table.baseline.refresh().version
        assert compaction.compact(table, full=True, driver_rows=0).vnodes == 0, "a second run finds nothing to do"
        assert table.baseline.refresh().version == version
        assert examine(table.log.storage, deep=True).is_sound
        if shape == "dropped":
            files = table.baseline.refresh().files()
            urls = [f"{table.log.storage.url(table.baseline.folder)}/{file.path}" for file in files]
            assert not any("name" in pq.read_schema(url).names for url in urls), "the dropped column is gone"


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
