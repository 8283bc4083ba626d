"""The merged rows as a Spark DataFrame: the driver's rows, by a small plan."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from folding import fold_vnodes
from shapes import OPTIONS, SCHEMA, plain, row
from strandline.engines.choice import DriverLimit
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.tables import live_rows, spark_read
from strandline.tables.packing import Bundle, pack_files
from strandline.tables.spark_files import log_scan
from support import ITEMS, no_job, plan_of, prepare_both, rows_of


def assert_equal_reads(table, **read):
    assert plain(table.to_spark(**read).toArrow()) == plain(table.to_arrow(**read)), read


@pytest.fixture
def loaded(items):
    """One large commit and small ones after it."""
    items.upsert([{"id": n, "name": f"n{n % 9}", "qty": n} for n in range(500)])
    items.upsert([{"id": n, "name": "new", "qty": -n} for n in range(0, 500, 50)])
    items.upsert([{"id": n, "name": "newer", "qty": n} for n in (50, 100, 700)])
    items.delete([1, 50, 999])
    return items


# The ways to find the rows that count, by the limits of rows that choose them: the most rows of a table whose keys the
# driver looks up, and the most changes that it folds.
WAYS = {"live rows": (1000, 2_000_000), "driver's fold": (0, 2_000_000), "layers": (0, 8), "Spark's fold": (0, 0)}


def read_by(patch, way):
    keys, changes = WAYS[way]
    patch.setattr(live_rows, "KEYS", DriverLimit(keys, 1 << 30))
    patch.setattr(spark_read, "BULK", DriverLimit(changes, 1 << 30))


@pytest.fixture
def join(monkeypatch):
    read_by(monkeypatch, "driver's fold")


def test_a_large_commit_with_small_ones_after_it_is_one_scan_without_a_join(spark, loaded):
    with no_job(spark):
        frame = loaded.to_spark()
        some = loaded.to_spark(columns=["name"], where="qty > 3")
        one = loaded.to_spark(where="id = 7")
    text = plan_of(frame)
    assert text.count("FileScan") == 1 and "Join" not in text and "Union" not in text and "Exchange" not in text
    assert plan_of(some).count("GreaterThan(qty,3)") == 1, "the filter reaches the scan"
    assert "ReadSchema: struct<name:string,qty:" in plan_of(some), "the key is not read"
    assert plan_of(frame.where("name = 'new'").select("id")).count("EqualTo(name,new)") == 1
    assert "ReadSchema: struct<_tmp_metadata_row_index:bigint>" in plan_of(frame.groupBy().count()), "no column is read"
    assert "(1 paths)" in plan_of(one) and "EqualTo(_hash," in plan_of(one)
    for read in ({}, {"at": 1}, {"at": 2}, {"where": "qty > 3", "columns": ["name"]}):
        assert_equal_reads(loaded, **read)
    assert frame.count() == loaded.count()


def test_a_large_commit_with_small_ones_after_it_is_two_scans_and_no_shuffle(spark, loaded, join):
    with no_job(spark):
        frame = loaded.to_spark()
        some = loaded.to_spark(columns=["name"], where="qty > 3")
        one = loaded.to_spark(where="id = 7")
    text = plan_of(frame)
    assert (text.count("FileScan"), text.count("Union"), text.count("BroadcastHashJoin")) == (2, 1, 2)
    assert "LeftAnti" in text and "LeftSemi" in text and "hashpartitioning" not in text and "SortMerge" not in text
    assert plan_of(some).count("GreaterThan(qty,3)") == 2, "the filter reaches both scans"
    assert plan_of(frame.where("name = 'new'").select("id")).count("EqualTo(name,new)") == 2
    assert plan_of(frame.groupBy().count()).count("ReadSchema: struct<id:bigint>") == 2, "a count reads the key alone"
    assert "Join" not in plan_of(one) and "(1 paths)" in plan_of(one) and "EqualTo(_hash," in plan_of(one)
    for read in ({}, {"at": 1}, {"at": 2}, {"where": "qty > 3", "columns": ["name"]}):
        assert_equal_reads(loaded, **read)
    for id_ in (7, 100, 50, 700, 999, 12345):
        assert_equal_reads(loaded, where=f"id = {id_}")
    assert frame.count() == loaded.count()


def test_a_readable_plan_names_the_folders_of_the_table(spark, loaded, capsys):
    loaded.to_spark().explain("formatted")
    assert capsys.readouterr().out.count(f"{loaded.entry.folder}/log/") == 1
    loaded.compact(full=True)
    loaded.to_spark().explain("formatted")
    assert f"{loaded.entry.folder}/baseline/" in capsys.readouterr().out


def test_a_load_alone_is_one_scan_and_its_count_reads_no_column(spark, items):
    items.upsert([{"id": n} for n in range(100)])
    frame = items.to_spark()
    assert plan_of(frame).count("FileScan") == 1 and " Filter " not in plan_of(frame) and "Join" not in plan_of(frame)
    assert "ReadSchema: struct<>" in plan_of(frame.groupBy().count())
    assert frame.count() == 100
    items.compact(full=True)
    assert plan_of(items.to_spark()).count("FileScan") == 1 and "Join" not in plan_of(items.to_spark())


def test_many_files_start_no_job_in_a_session_that_would_list_them_by_one(spark, items):
    name = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(name)
    spark.conf.set(name, "4")
    try:
        for at in range(12):
            items.upsert([{"id": at % 5, "name": str(at)}])
        with no_job(spark):
            frame = items.to_spark()
        assert plan_of(frame).count("FileScan") == 1
        assert spark.conf.get(name) == "4"
        assert_equal_reads(items)
    finally:
        spark.conf.set(name, before)


def test_files_of_several_schemas_are_one_scan_unless_a_type_differs(spark, items):
    items.upsert([{"id": n, "name": "a", "qty": n} for n in range(9)])
    items.evolve(pa.schema([("more", pa.string())]))
    items.upsert([{"id": 1, "name": "b", "qty": 1, "more": "x"}])
    items.rename_column("name", "title")
    items.evolve(pa.schema([("name2", pa.string())]))
    items.upsert([{"id": 2, "title": "c", "qty": 1, "more": "y", "name2": "z"}])
    assert plan_of(items.to_spark()).count("FileScan") == 1
    assert_equal_reads(items)
    items.evolve(pa.schema([("qty", pa.int64())]))
    items.upsert([{"id": 3, "title": "d", "qty": 1 << 40, "more": "y", "name2": None}])
    assert plan_of(items.to_spark()).count("FileScan") == 2
    assert_equal_reads(items)
    items.drop_column("more")
    assert_equal_reads(items)


@pytest.mark.parametrize("shape", OPTIONS)
def test_all_types_are_read_from_a_base_commit(spark, tmp_path, shape):
    table = sl.Lake(tmp_path).create_table("t", SCHEMA, **OPTIONS[shape])
    write = table.upsert if table.definition.is_keyed else table.append
    write([row(n) for n in range(30)])
    write([row(n, rev=1) for n in range(25, 35)])
    table.evolve(pa.schema([("n", pa.int32()), ("more", pa.string())]))
    write([{**row(n, rev=2), "more": "x"} for n in range(33, 40)])
    if table.definition.is_keyed:
        table.delete([{"part": "p0", "id": 3}])
    for seq in (1, 2, table.head):
        assert_equal_reads(table, at=seq)
    if table.definition.is_keyed:
        assert_equal_reads(table, where="part = 'p3' AND id = 4")
        assert_equal_reads(table, where="part = 'p0' AND id = 3")
        fold_vnodes(table, [0])
        assert_equal_reads(table)


def test_expired_rows_of_a_base_commit_are_gone(spark, lake):
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    seen = lake.create_table("seen", "id:int64, at:timestamp", key=["id"], time="at")
    seen.upsert([{"id": n, "at": day + dt.timedelta(days=n)} for n in range(10)])
    seen.upsert([{"id": 9, "at": day}, {"id": 1, "at": day + dt.timedelta(days=30)}])
    seen.expire(day + dt.timedelta(days=4))
    assert_equal_reads(seen)
    assert_equal_reads(seen, at=2)
    assert_equal_reads(seen, where="id = 9")


@pytest.mark.parametrize("version", [None, "qty"])
def test_a_large_commit_over_a_baseline_is_a_layer(spark, make_table, monkeypatch, version):
    monkeypatch.setattr(spark_read, "BULK", DriverLimit(40, 1 << 30))
    table = make_table(key=["id"], vnodes=4, version=version)
    rows = [{"id": n, "name": "old", "qty": n % 5} for n in range(60)]
    table.upsert(rows)
    table.compact(full=True)
    table.upsert([{"id": n, "name": "small", "qty": 3} for n in range(28, 32)])
    large = table.upsert([{"id": n, "name": "large", "qty": 2} for n in range(30, 90)]).seq
    alone = plan_of(table.to_spark())
    table.upsert([{"id": n, "name": "new", "qty": 4} for n in (1, 28, 30, 80, 95)])
    table.delete([31, 2, 81])
    with no_job(spark):
        frame = table.to_spark()
    if version is None:
        assert "LocalTableScan" not in alone and "LocalTableScan" in plan_of(frame)
        assert spark_read.marks_to_fold(table.merge()) == (large,) * 4
    for read in ({}, {"at": large}, {"where": "id = 28"}, {"where": "id = 29"}, {"where": "id = 81"}):
        assert_equal_reads(table, **read)
    fold_vnodes(table, [1])
    table.upsert([{"id": n, "name": "again", "qty": 9} for n in range(20, 60)])
    assert_equal_reads(table)


STEP = st.tuples(
    st.sampled_from(["upsert", "upsert", "both", "large", "delete", "fold one", "fold", "pack", "pack"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    st.integers(0, 3),
)


def pack_some(table, first, end):
    """A pack of the files from one index to before another."""
    files = tuple(table.log.refresh().by_seq[first:end])
    if files:
        pack_files(table.log, [Bundle(files, 1 + max(file.pack.tier if file.pack else 0 for _, file in files))])


def write_lane(table, changes):
    """The files of two of Spark's tasks."""
    files = []
    for task in range(2):
        mine = changes.filter(pa.array([each % 2 == task for each in range(len(changes))]))
        lane = LogLane(table.log.storage, table.log.folder, table.definition, None, False, 1 + task)
        found, failure = files_of(row for batch in lane(iter(mine.to_batches(2))) for row in batch.to_pylist())
        assert failure is None
        files += found
    return files


@pytest.mark.parametrize("way", ["live rows", "driver's fold", "Spark's fold"])
@pytest.mark.parametrize("version", [None, "qty"])
@pytest.mark.parametrize("first", [0, 2])
def test_packs_beside_files_of_one_commit(spark, make_table, monkeypatch, way, version, first):
    read_by(monkeypatch, way)
    table = make_table(key=["id"], vnodes=2, version=version)
    for at in range(6):
        table.upsert([{"id": n, "name": str(at), "qty": 0} for n in (at % 2, 2)])
    pack_some(table, first, first + 3)
    head = table.head
    for at in (2, 4, head):
        assert_equal_reads(table, at=at)
    assert_equal_reads(table, where="id = 2", at=4)
    merge = table.merge()
    changes = log_scan(spark, merge.log, merge.log_files(), ["id", "name"]).toArrow()
    assert rows_of(changes) == rows_of(table.changes().select(["id", "name", "_seq"]))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=4)
@given(steps=st.lists(STEP, min_size=3, max_size=8), has_version=st.booleans())
def test_spark_reads_what_the_driver_reads_after_any_history(spark, tmp_path_factory, way, steps, has_version):
    lake = sl.Lake(tmp_path_factory.mktemp("histories"))
    table = lake.create_table("t", ITEMS, key=["id"], version="qty" if has_version else None, vnodes=4)
    with pytest.MonkeyPatch.context() as patch:
        read_by(patch, way)
        for at, (verb, ids, number) in enumerate(steps):
            if verb.startswith("fold"):
                fold_vnodes(table, [number] if verb == "fold one" else range(4))
                continue
            if verb == "pack":
                pack_some(table, number, number + len(ids))
                continue
            gone = {"upsert": [], "both": ids[1::2], "large": ids[1::2], "delete": ids}[verb]
            new = [{"id": n, "name": str(at), "qty": (n + number) % 4} for n in ids if n not in gone]
            both = prepare_both(pa.Table.from_pylist(new, schema=ITEMS), gone, table.definition)
            files = write_lane(table, both) if verb == "large" else table.log.write(both, table.definition)
            table.log.commit(files, operation="BOTH")
            if at % 3 == 2:
                assert rows_of(table.to_spark().toArrow()) == rows_of(table.to_arrow())
        for read in ({}, {"at": table.head // 2}, {"where": "id = 3"}, {"where": "id = 3", "at": table.head // 2}):
            assert rows_of(table.to_spark(**read).toArrow()) == rows_of(table.to_arrow(**read))
