"""A table is set back to a seq: on the driver as on Spark, and never over a commit unseen."""

import datetime as dt

import pyarrow as pa
import pytest

import strandline as sl
from strandline.consumers import compaction
from strandline.engines.choice import BULK, DriverLimit
from strandline.jobs.doctor import examine
from strandline.jobs.restore import restore
from support import data_files, refused, rows_of

WIDE = pa.schema([("part", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("n", pa.int32())])

LIMITS = {"driver": BULK, "spark": DriverLimit(0, 0)}


@pytest.fixture
def parts(tmp_path):
    """A table with a key of two columns, and what it was at each seq."""
    table = sl.Lake(tmp_path / "lake").create_table("parts", WIDE, key=["part", "id"], vnodes=4)
    history = [rows_of(table.to_arrow())]

    def step(call):
        call()
        history.append(rows_of(table.to_arrow()))

    def rows(start, name):
        return [{"part": f"p{n % 3}", "id": n, "name": f"{name}{n}", "n": n} for n in range(start, start + 20)]

    step(lambda: table.upsert(rows(0, "a")))
    step(lambda: table.delete([{"part": "p1", "id": 1}, {"part": "p2", "id": 2}]))
    table.compact(full=True)
    step(lambda: table.upsert(rows(10, "b")))
    step(lambda: table.upsert([{"part": "p1", "id": 1, "name": None, "n": None}, {"part": "", "id": -1}]))
    step(lambda: table.delete([{"part": "p0", "id": n} for n in (0, 3, 27)]))
    return table, history


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_a_table_is_restored_to_any_seq_on_the_driver_as_on_spark(request, parts, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    table, history = parts
    # On Spark: the head itself, a seq after the fold, the empty table, and one before what was there.
    for at in (5, 3, 1, 4, 0, 2) if engine == "driver" else (5, 3, 0, 2):
        head = table.head
        commit = restore(table, at, limit=LIMITS[engine])
        assert commit.seq in (head, head + 1)
        for handle in (table, sl.Lake(table.log.storage.uri).table("parts")):
            assert rows_of(handle.to_arrow()) == history[at]
            assert rows_of(handle.to_arrow(at=head)) == history[head] if head < len(history) else True
        history += [history[at]] * (table.head - head)
    table.compact(full=True)
    assert rows_of(table.to_arrow()) == history[2]
    assert examine(table.log.storage, deep=True).is_sound


@pytest.mark.parametrize("engine", ["driver", "spark"])
@pytest.mark.parametrize("is_disjoint", [True, False])
def test_a_restore_that_another_commit_overtakes_never_undoes_it_unseen(request, parts, engine, is_disjoint):
    """A write of another key stays; one of a key that the restore changes as well makes it look again."""
    if engine == "spark":
        request.getfixturevalue("spark")
    table, history = parts
    other = sl.Lake(table.log.storage.uri).table("parts")
    commit = table.log.commit
    tried = []

    def overtaken(files, **options):
        tried.append(len(files))
        if len(tried) < 3:
            key = {"part": "new", "id": len(tried)} if is_disjoint else {"part": "p1", "id": 1}
            other.upsert([{**key, "name": "late"}])
        return commit(files, **options)

    table.log.commit = overtaken
    restored = restore(table, 3, limit=LIMITS[engine])
    assert len(tried) == (1 if is_disjoint else 3)
    late = [("new", 1, "late", None)] if is_disjoint else []
    assert restored.seq == table.head
    for handle in (table, other):
        assert rows_of(handle.to_arrow()) == sorted([*history[3], *late], key=repr)
    assert len([name for name in data_files(table) if name.startswith("log/")]) == len(table.log.refresh().by_seq)


@pytest.mark.parametrize("engine", ["driver", "spark"])
def test_restoring_after_a_column_was_dropped_brings_back_rows_without_it(request, parts, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    table, history = parts
    table.drop_column("name")
    table.evolve(pa.schema([("colour", pa.string())]))
    table.upsert([{"part": "p0", "id": 6, "colour": "red"}], missing="null")
    expected = sorted(((part, id_, n, None) for part, id_, _, n in history[1]), key=repr)
    assert rows_of(table.to_arrow(at=1)) == expected
    restore(table, 1, limit=LIMITS[engine])
    fresh = sl.Lake(table.log.storage.uri).table("parts")
    for handle in (table, fresh):
        assert rows_of(handle.to_arrow()) == expected
    with refused(sl.Invalid, column="name"):
        fresh.evolve(pa.schema([("name", pa.string())]))
    with refused(sl.Invalid, column="name"):
        fresh.evolve(pa.schema([("name", pa.int64())]))
    compaction.compact(fresh, full=True, driver_rows=0 if engine == "spark" else BULK.rows)
    assert rows_of(table.to_arrow()) == expected
    assert not [file for file in fresh.baseline.refresh().files() if not file.path.startswith("0002-")]
    assert examine(table.log.storage, deep=True).is_sound


def test_rows_that_have_expired_since_stay_hidden_in_a_restore(tmp_path):
    """Horizons only rise; what a restore brings back is what has not expired."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.date32())])
    table = sl.Lake(tmp_path / "lake").create_table("t", schema, key=["id"], vnodes=1, time="at")
    table.upsert([{"id": n, "at": dt.date(2026, 1, n + 1)} for n in range(10)])
    table.expire(dt.date(2026, 1, 5))
    assert table.to_arrow().num_rows == 6
    table.delete([7])
    table.restore(1)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [4, 5, 6, 7, 8, 9]
