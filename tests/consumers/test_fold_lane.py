"""The fold of vnodes: the same rows in this process and in a task, in one piece or many, from small and large files."""

import datetime as dt
import pickle
import random
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from test_fold_files import shaped

import strandline as sl
from folding import AT
from strandline.consumers import compaction, fold_lane
from strandline.consumers.account import FoldAccount, check_account
from strandline.consumers.fold_lane import FoldLane, pack_part
from strandline.engines.lanes import files_of
from strandline.tables.packing import Bundle, pack_files
from support import ITEMS, Oracle, data_files, refused, rows_of

SHAPES = ["keyed", "versioned", "keyless", "expired", "expired keyless", "dropped"]
# How many bytes are loaded whole, loaded as small files, folded at once, and loaded at once.
SIZES = {
    "loaded": (1 << 30, 0, 1, 1),
    "small files": (-1, 1 << 30, 1, 1 << 30),
    "large files": (-1, 0, 1, 1),
    "one run": (-1, 0, 1 << 30, 1),
    "lots": (-1, 1 << 30, 1 << 30, 1),
}


@pytest.fixture(params=SIZES)
def sizes(request, monkeypatch):
    names = ("LOADED_BYTES", "SMALL_BYTES", "RUN_BYTES", "LOT_BYTES")
    for name, size in zip(names, SIZES[request.param], strict=True):
        monkeypatch.setattr(fold_lane, name, size)


def in_tasks(part, groups):
    """The receipts of tasks that fold these groups of vnodes."""
    batches = [pa.record_batch({"part": pa.array([pack_part(part.part(group))], pa.binary())}) for group in groups]
    lane = pickle.loads(pickle.dumps(FoldLane()))
    return [row for batch in lane(iter(batches)) for row in batch.to_pylist()]


def commit(table, part, receipts):
    """Commit what tasks have written, as a compaction does."""
    added, failure = files_of(receipts)
    assert failure is None
    account = FoldAccount.sum_texts(row["counts"] for row in receipts if row["counts"])
    check_account(part, account, added)
    removed = [file for file in part.base_files() if file.path in account.removed]
    vnodes, base = sorted(part.only), part.baseline
    table.baseline.commit_fold(
        base, part.definition, upto=part.seq, vnodes=vnodes, idle=(), removed=removed, added=added
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_tasks_fold_every_kind_of_table_as_the_driver_does(tmp_path, sizes, shape):
    one, two = (shaped(sl.Lake(tmp_path / name), shape) for name in ("driver", "tasks"))
    expected = {seq: rows_of(one.to_arrow(at=seq)) for seq in range(one.head + 1)}
    one.compact(full=True)
    part = two.merge().part(range(4))
    commit(two, part, in_tasks(part, [[0, 2], [1], [3]]))
    for table in (one, two, sl.Lake(tmp_path / "tasks").table("t")):
        assert {seq: rows_of(table.to_arrow(at=seq)) for seq in expected} == expected
    files = [table.baseline.refresh().files() for table in (one, two)]
    if one.definition.is_keyed:
        per_vnode = [sorted((file.partition["_vnode"], file.rows) for file in each) for each in files]
        assert per_vnode[0] == per_vnode[1]


@pytest.mark.parametrize("options", [{}, {"version": "qty"}])
def test_changes_at_random_fold_to_the_rows_of_a_model(make_table, sizes, options):
    rng = random.Random(5)
    table, oracle = make_table(key=["id"], vnodes=8, **options), Oracle(["id"])
    packs = 0
    for step in range(16):
        keys = rng.sample(range(60), 20)
        if rng.random() < 0.3:
            table.delete(keys)
            oracle.delete({"id": key} for key in keys)
        else:
            rows = [{"id": key, "name": f"{step}.{key}", "qty": step} for key in keys]
            table.upsert(rows)
            oracle.upsert(rows)
        files = table.log.refresh().by_seq
        if len(files) > 2 and rng.random() < 0.3:
            last = files[-3:]
            pack_files(table.log, [Bundle(tuple(last), 1)])
            packs += 1
        if rng.random() < 0.5:
            # Only some of the vnodes: their marks differ from then on.
            part = table.merge().part(rng.sample(range(8), 5))
            commit(table, part, in_tasks(part, [sorted(part.only)]))
        assert rows_of(table.to_arrow()) == rows_of(pa.Table.from_pylist(oracle.copy(), schema=ITEMS)), step
    assert packs


TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), False), ("flag", pa.bool_()), ("tiny", pa.int8()), ("real", pa.float32()),
        ("double", pa.float64()), ("text", pa.string()), ("bytes", pa.binary()), ("day", pa.date32()),
        ("local", pa.timestamp("us")), ("at", pa.timestamp("us", tz="UTC")), ("money", pa.decimal128(20, 4)),
        ("doc", pa.json_(pa.string())), ("list", pa.list_(pa.int32())), ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    ]
)  # fmt: skip


def typed(n):
    if n % 5 == 0:
        return {"id": n}
    return {
        "id": n, "flag": n % 2 == 0, "tiny": n % 100, "real": n / 2, "double": float("nan") if n % 3 else -0.0,
        "text": f"é\0{n}", "bytes": b"\xff" * (n % 4), "day": dt.date(1900, 1, 1) + dt.timedelta(days=n),
        "local": dt.datetime(1900, 1, 1, 0, 0, 0, n), "at": AT, "money": Decimal(n) / 4, "doc": f'{{"n": {n}}}',
        "list": [n, None], "map": [(f"k{n}", n)], "struct": {"a": n, "b": ["x", None]},
    }  # fmt: skip


def test_values_of_every_type_stay_what_they_are(lake, sizes):
    table = lake.create_table("t", TYPES, key=["id"], vnodes=4)
    for start in (0, 20, 10):
        table.upsert([typed(n) for n in range(start, start + 20)], missing="null")
    before = table.to_arrow().sort_by("id")
    part = table.merge().part(range(4))
    commit(table, part, in_tasks(part, [[0, 1, 2, 3]]))
    assert str(table.to_arrow().sort_by("id")) == str(before)
    assert table.to_arrow().schema.equals(before.schema)


def test_a_task_that_runs_twice_changes_nothing(make_table):
    table = make_table(key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": "x"} for n in range(40)])
    part = table.merge().part(range(4))
    first, second = in_tasks(part, [range(4)]), in_tasks(part, [range(4)])
    commit(table, part, second)
    assert table.to_arrow().num_rows == 40
    assert not {file.path for file in files_of(first)[0]} & set(table.baseline.refresh().snapshot.files)


@pytest.mark.parametrize("where", ["log", "baseline"])
def test_a_task_tells_of_a_damaged_file_and_writes_nothing(make_table, lake, where):
    table = make_table(key=["id"], vnodes=1)
    for at in range(2):
        table.upsert([{"id": n, "name": f"{at}"} for n in range(40)])
        if not at:
            table.compact(full=True)
    before = data_files(table)
    part = table.merge().part([0])
    file = part.base_files()[0] if where == "baseline" else part.log_files()[0][1]
    path = f"{getattr(part, where).folder}/{file.path}"
    with open(lake.storage.url(path), "r+b") as opened:
        opened.seek(file.size // 2)
        opened.write(b"\0\xff\0\xff")
    added, failure = files_of(in_tasks(part, [[0]]))
    assert not added and isinstance(failure, sl.Corrupt) and failure.fields["path"] == path
    assert data_files(table) == before


@pytest.mark.parametrize("is_written_beside", [False, True])
def test_a_fold_that_fails_leaves_no_file(make_table, monkeypatch, is_written_beside):
    table = make_table(key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": "x"} for n in range(40)])
    before, real = data_files(table), fold_lane._fold_run
    # One vnode a run, as an iterator or as a list of batches.
    (file,) = table.log.refresh().snapshot.files.values()
    monkeypatch.setattr(fold_lane, "RUN_BYTES", file.raw_bytes // 4 if is_written_beside else 1)

    def fail_late(cursor, part, *names):
        if 2 in part.only:
            raise OSError(5, "the disk is gone")
        return real(cursor, part, *names)

    monkeypatch.setattr(fold_lane, "_fold_run", fail_late)
    with refused(sl.Unavailable):
        compaction.compact(table, full=True)
    assert data_files(table) == before


@pytest.mark.parametrize("run_bytes", [1, 1 << 30])
def test_a_writer_that_fails_after_some_files_leaves_none(make_table, monkeypatch, run_bytes):
    table = make_table(key=["id"], vnodes=4)
    table.upsert([{"id": n, "name": "x"} for n in range(40)])
    before, real = data_files(table), fold_lane._write_rows
    monkeypatch.setattr(fold_lane, "RUN_BYTES", run_bytes)
    written = []

    def fail_late(part, batches, account):
        for file in real(part, batches, account):
            yield file
            written.append(file)
            if len(written) == 3:
                raise OSError(5, "the disk is gone")

    monkeypatch.setattr(fold_lane, "_write_rows", fail_late)
    with refused(sl.Unavailable):
        compaction.compact(table, full=True)
    assert (len(written), data_files(table)) == (3, before)
    monkeypatch.undo()
    assert compaction.compact(table, full=True).rows == 40


@pytest.mark.parametrize("key", [["id"], ["name", "id"], ["name"], []])
def test_a_large_vnode_is_folded_in_ranges_of_keys(make_table, monkeypatch, key):
    monkeypatch.setattr(fold_lane, "SPAN_BYTES", 1000)
    table = make_table(**({"key": key} if key else {}), vnodes=2)
    for at in range(3):
        rows = [{"id": n, "name": f"n{n:04d}", "qty": at} for n in range(at * 50, at * 50 + 100)]
        (table.upsert if key else table.append)(rows)
    expected = rows_of(table.to_arrow())
    part = table.merge().part(range(2))
    commit(table, part, in_tasks(part, [[0], [1]]))
    assert rows_of(table.to_arrow()) == expected
    assert not key or len(table.baseline.refresh().files()) > 4


def test_a_task_needs_few_packages():
    """Spark's workers get the package's code, and need the libraries that read and write files, no others."""
    code = """
import sys
class Block:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("pyspark", "deltalake", "sqlalchemy", "sqlglot", "pyiceberg", "fastapi", "typer"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import strandline.consumers.fold_lane
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
