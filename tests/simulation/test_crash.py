"""kill -9 at every named place: what was acknowledged is there once, what was not is there whole or not at all."""

import datetime as dt
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.consumers import compaction
from strandline.consumers.packing import plan_packs
from strandline.tables.packing import pack_files
from strandline.tables.rejects import Rejects
from support import ITEMS, SRC, TESTS, claimed_files, data_files, environment, python, rows_of

POINTS = sorted(
    {name for path in SRC.rglob("*.py") for name in re.findall(r'crash_point\("([a-z_.]+)"\)', path.read_text())}
)
MORE = pa.schema([("colour", pa.string())])


def steps(lake):
    """What the doomed process does, in order: (name, call). Each writes rows of its own under a token of its own."""
    items, events = lake.table("items"), lake.table("events")
    return [
        ("upsert", lambda: items.upsert([{"id": n, "name": "a"} for n in range(20)], token="1")),
        ("append", lambda: events.append([{"id": 1}, {"id": 1}], token="2")),
        ("delete", lambda: items.delete([3, 4], token="3")),
        ("upsert one", lambda: items.upsert([{"id": 5, "name": "b"}], token="3b")),
        ("pack", partial(pack, items)),
        ("fold", partial(items.compact, full=True)),
        ("append again", lambda: events.append([{"id": 1}], token="4")),
        ("fold events", partial(events.compact, full=True)),
        ("evolve", lambda: items.evolve(MORE)),
        ("upsert more", lambda: items.upsert([{"id": 4, "colour": "red"}, {"id": 50, "name": "b"}], token="5")),
        ("fold again", partial(items.compact, full=True)),
    ]


def pack(table):
    """Pack the files of the log, as a compaction does that folds nothing."""
    if bundles := plan_packs(table.log.refresh()):
        pack_files(table.log, bundles)


def spark_steps(lake):
    """The same with Spark, which is slow to start: few steps."""
    from strandline.engines.spark import session

    items = lake.table("items")
    frame = session().createDataFrame([(n, "spark") for n in range(30)], "id long, name string")
    return [
        ("upsert", lambda: items.upsert([{"id": n, "name": "a"} for n in range(20)], token="1")),
        ("spark upsert", lambda: items.upsert(frame, token="2")),
        ("spark fold", lambda: compaction.compact(items, full=True, driver_rows=0)),
    ]


CHILD = """
import sys
sys.path.insert(0, sys.argv[3])
import test_crash
import strandline as sl
for name, call in getattr(test_crash, sys.argv[2])(sl.Lake(sys.argv[1])):
    call()
    print(name, flush=True)
"""


def make_lake(folder, compact_files=2):
    lake = sl.Lake(folder)
    lake.create_table("items", ITEMS, key=["id"], vnodes=4, compact_files=compact_files)
    lake.create_table("events", ITEMS, vnodes=2)
    return lake


def contents(lake):
    """Everything that can be read: rows of both tables at every seq."""
    found = {}
    for name in ("items", "events"):
        table = lake.table(name)
        found[name] = [_padded(table.to_arrow(at=seq)) for seq in range(table.head + 1)]
    return found


def _padded(table):
    """Rows with the column that a later step adds, so that states from before and after compare."""
    if "colour" not in table.column_names:
        table = table.append_column("colour", pa.nulls(table.num_rows, pa.string()))
    return rows_of(table)


def die(folder, script, crash):
    """Run the steps in a process that ends at a crash point; the steps it acknowledged, or None when it lived."""
    ended = python(CHILD, str(folder), script, str(Path(__file__).parent), crash=crash)
    if ended.returncode == 0:
        return None
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return len(ended.stdout.splitlines())


def audit(folder, acknowledged, expected, make_steps):
    """Invariants 1 to 3 after a crash with so many steps acknowledged."""
    lake = sl.Lake(folder)
    found = contents(lake)
    # Whole or absent: the lake is where it was after the acknowledged steps, or after one more.
    assert found in (expected[acknowledged], expected[acknowledged + 1])
    for name in ("items", "events"):
        table = lake.table(name)
        assert max(table.baseline.refresh().marks) <= table.head
        assert claimed_files(table) <= data_files(table)
        assert table.to_arrow().num_rows == len(found[name][-1])
    # The next process goes on where this one ended: repeating the step in question changes nothing twice.
    for _, call in make_steps(lake)[acknowledged:]:
        call()
    assert contents(lake) == expected[-1]
    assert contents(sl.Lake(folder)) == expected[-1]
    for name in ("items", "events"):
        table = lake.table(name)
        assert DeltaTable(f"{folder}/{table.log.folder}").version() == table.head
        assert DeltaTable(f"{folder}/{table.baseline.folder}").to_pyarrow_table().num_rows <= table.to_arrow().num_rows


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What can be read after each step of a process that lives."""
    lake = make_lake(tmp_path_factory.mktemp("alive"))
    found = [contents(lake)]
    for _, call in steps(lake):
        call()
        found.append(contents(lake))
    return found


# Points of other modules are walked beside those modules' own tests.
HERE = ("delta.", "log.", "fold.", "pack.", "catalog.", "vacuum.", "purge.")
SPARK_POINTS = ["log.lanes_written"]
CARE = ("vacuum.", "purge.")
CARE_POINTS = [point for point in POINTS if point.startswith((*CARE, "delta.committed"))]
DRIVER_POINTS = [
    point for point in POINTS if point.startswith(HERE) and not point.startswith(CARE) and point not in SPARK_POINTS
]


def test_every_crash_point_is_walked_by_a_test():
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert set(SPARK_POINTS) < set(POINTS)
    assert [point for point in POINTS if not point.startswith(HERE) and point not in tests] == []


def walk(point, attempt):
    """Kill a process at the first pass of a point, at the second, and so on, until one gets to its end."""
    deaths = []
    with ThreadPoolExecutor(2) as pool:
        for first in range(1, 30, 2):
            outcomes = list(pool.map(attempt, (first, first + 1)))
            deaths += [outcome for outcome in outcomes if outcome is not None]
            if None in outcomes:
                break
    assert None in outcomes, "no process gets to its end"
    assert deaths, f"no step passes {point}"
    assert deaths == sorted(deaths)


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_process_killed_at_a_point_loses_and_doubles_nothing(tmp_path, expected, point):
    def attempt(ordinal):
        folder = tmp_path / str(ordinal)
        make_lake(folder)
        acknowledged = die(folder, "steps", f"{point}:{ordinal}")
        if acknowledged is not None:
            audit(folder, acknowledged, expected, steps)
        return acknowledged

    walk(point, attempt)


@pytest.mark.parametrize("point", [*SPARK_POINTS, "fold.files_written"])
def test_a_process_killed_in_a_write_or_a_fold_on_spark_loses_and_doubles_nothing(spark, tmp_path, point):
    alive = make_lake(tmp_path / "alive", compact_files=32)
    expected = [contents(alive)]
    for rows in ([(n, "a") for n in range(20)], [(n, "spark") for n in range(30)]):
        alive.table("items").upsert([{"id": id_, "name": name} for id_, name in rows])
        expected.append(contents(alive))
    expected.append(expected[-1])
    make_lake(tmp_path / "dead", compact_files=32)
    acknowledged = die(tmp_path / "dead", "spark_steps", point)
    assert acknowledged == (1 if point in SPARK_POINTS else 2)
    audit(tmp_path / "dead", acknowledged, expected, spark_steps)
    table = sl.Lake(tmp_path / "dead").table("items")
    assert set(table.baseline.refresh().marks) == {2}, "a dead process claims nothing"


# --- looking after a table -------------------------------------------------------------------------------------

VISITS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us")), ("old", pa.string())])
PURGED = 7


def care_steps(lake):
    """Everything that looks after a table; a step that is repeated after a crash does nothing twice."""
    visits = lake.table("visits")
    vacuum = partial(visits.vacuum, keep=0, grace=0)
    upsert = partial(visits.upsert, missing="null")
    one = partial(upsert, [{"id": 1, "name": "one"}, {"id": 200, "name": "x"}], token="one")
    two = partial(upsert, [{"id": 1, "name": "two"}, {"id": PURGED, "name": "secret 2"}], token="two")
    return [
        ("expire", lambda: visits.expire(dt.datetime(2026, 1, 3))),
        ("drop column", lambda: "old" in visits.schema.names and visits.drop_column("old")),
        ("fold", partial(visits.compact, full=True)),
        ("vacuum", vacuum),
        ("upsert", one),
        ("upsert again", two),
        ("restore", lambda: visits.restore(one().seq)),
        ("upsert for the purge", lambda: upsert([{"id": PURGED, "name": "secret 3"}], token="three")),
        ("purge", lambda: visits.purge([PURGED])),
        ("fold again", partial(visits.compact, full=True)),
        ("vacuum again", vacuum),
    ]


@pytest.fixture(scope="module")
def worn(tmp_path_factory):
    """A lake with a past: unfolded changes, older folds, refused rows and a file that no commit claims."""
    folder = tmp_path_factory.mktemp("worn")
    lake = sl.Lake(folder / "lake")
    visits = lake.create_table("visits", VISITS, key=["id"], vnodes=2, time="at")
    for at in range(1, 4):
        visits.upsert([{"id": n + at, "name": f"{at}", "at": dt.datetime(2026, 1, at)} for n in range(9)])
        if at < 3:
            visits.compact(full=True)
    (folder / "bad.jsonl").write_text(f'{{"id": {PURGED}, "at": "secret 4"}}\n{{"id": 8, "at": "bad"}}\n')
    lake.ingest("visits", [str(folder / "bad.jsonl")], rejects=True)
    orphan = folder / "lake" / visits.log.folder / f"0000-{'a' * 32}.parquet"
    orphan.write_bytes(b"half a file")
    return folder / "lake"


@pytest.fixture(scope="module")
def cared(worn, tmp_path_factory):
    """The rows of the head after each step of a process that lives."""
    folder = tmp_path_factory.mktemp("cared") / "lake"
    shutil.copytree(worn, folder)
    lake = sl.Lake(folder)
    found = [head_rows(lake)]
    for _, call in care_steps(lake):
        call()
        found.append(head_rows(lake))
    check_clean(lake)
    return found


def head_rows(lake, at=None):
    return rows_of(lake.table("visits").to_arrow(at=at, columns=["id", "name", "at"]))


def without_purged(rows):
    return [row for row in rows if row[0] != PURGED]


def check_clean(lake):
    """What is on the disk is what the newest versions claim; nothing tells of the purged rows; others can open it."""
    visits = lake.table("visits")
    for _ in range(2):
        visits.vacuum(keep=0, grace=0)
    rejects = Rejects(lake.storage, visits.entry)
    assert [row["text"] for row in rejects.latest(10)] == ['{"id": 8, "at": "bad"}']
    claimed = claimed_files(visits) | {f"rejects/{path}" for path in rejects.log.refresh().snapshot.files}
    assert data_files(visits) == claimed
    root = Path(lake.storage.uri)
    for name in claimed:
        assert "secret" not in repr(pq.read_table(root / visits.entry.folder / name).to_pylist())
    assert DeltaTable(str(root / visits.log.folder)).version() == visits.head
    found = DeltaTable(str(root / visits.baseline.folder)).to_pyarrow_table(columns=["id"])
    assert set(found["id"].to_pylist()) == {row[0] for row in head_rows(lake)}


def audit_care(folder, acknowledged, before, cared):
    lake = sl.Lake(folder)
    visits = lake.table("visits")
    head = head_rows(lake)
    assert head in (cared[acknowledged], cared[acknowledged + 1])
    # Every state that can still be read is one that the table had, in that order; at most the purged row is missing.
    expected = [without_purged(rows) for rows in (*before, *cared)]
    at = 0
    for seq in range(visits.head + 1):
        try:
            rows = without_purged(head_rows(lake, at=seq))
        except sl.NotRetained as error:
            assert seq < error.fields["oldest"] == visits.oldest
            continue
        assert rows in expected[at:], seq
        at = expected.index(rows, at)
    assert claimed_files(visits) <= data_files(visits)
    for _, call in care_steps(lake)[acknowledged:]:
        call()
    assert head_rows(lake) == head_rows(sl.Lake(folder)) == cared[-1]
    for seq in range(visits.oldest, visits.head + 1):
        assert PURGED not in {row[0] for row in head_rows(lake, at=seq)}
    check_clean(lake)
    assert head_rows(sl.Lake(folder)) == cared[-1]


@pytest.mark.parametrize("point", CARE_POINTS)
def test_a_process_killed_while_it_looks_after_a_table_loses_nothing_and_the_next_one_completes_it(
    tmp_path, worn, cared, point
):
    def attempt(ordinal):
        folder = tmp_path / str(ordinal)
        shutil.copytree(worn, folder)
        acknowledged = die(folder, "care_steps", f"{point}:{ordinal}")
        if acknowledged is not None:
            audit_care(folder, acknowledged, before, cared)
        return acknowledged

    lake = sl.Lake(worn)
    before = [head_rows(lake, at=seq) for seq in range(lake.table("visits").head + 1)]
    walk(point, attempt)


LOOP = """
import itertools, sys
import strandline as sl
table = sl.Lake(sys.argv[1]).table("items")
for n in itertools.count(int(sys.argv[2])):
    table.upsert([{"id": n, "name": "x"}, {"id": -1, "name": str(n)}])
    print(n, flush=True)
    if n % 7 == 0:
        table.compact(full=True)
"""


def test_a_process_killed_at_any_moment_leaves_a_whole_table(tmp_path):
    """Not at a named place but by the clock: each life goes on where the last one was ended."""
    table = make_lake(tmp_path).table("items")
    known = -1
    for life in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path), str(known + 1)],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        process.stdout.readline()
        time.sleep(0.05 + 0.07 * life)
        process.kill()
        said = [known + 1, *(int(line) for line in process.stdout if line.strip())]
        process.wait()
        rows = {row["id"]: row["name"] for row in table.to_arrow().to_pylist()}
        last = max(id_ for id_ in rows)
        assert last in (max(said), max(said) + 1)
        assert set(rows) == {-1, *range(last + 1)}, "nothing is lost"
        assert rows[-1] == str(last), "a commit is whole"
        known = last
    assert len(set(table.changes()["_seq"].to_pylist())) == known + 1, "nothing landed twice"
    assert [len(rows_of(table.to_arrow(at=seq))) for seq in (1, 2, 3)] == [2, 3, 4]
