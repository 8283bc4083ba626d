"""Existing Delta and Parquet tables become tables of the lake, whole or not at all."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import strandline as sl
from strandline.jobs.leftovers import leftovers, sweep
from strandline.tables.catalog import IMPORTING
from support import files_below, python, refused, rows_of

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "part": pa.array([f"p{i % 3}" for i in range(100)]),
        "at": pa.array(range(100), pa.timestamp("us", "UTC")),
        "n": pa.array([None if i % 7 == 0 else i for i in range(100)], pa.uint16()),
    }
)


@pytest.fixture
def delta(tmp_path: Path) -> str:
    path = str(tmp_path / "delta")
    write_deltalake(path, ROWS.slice(0, 60), partition_by=["part"])
    write_deltalake(path, ROWS.slice(60), mode="append")
    return path


def test_a_delta_table_is_imported_as_it_is_now(lake: sl.Lake, delta: str) -> None:
    DeltaTable(delta).delete("id >= 90")
    table = lake.import_table("mine", delta, key=["id"], cluster_by=["part"], vnodes=4)
    assert rows_of(table.to_arrow()) == rows_of(ROWS.slice(0, 90))
    assert table.definition.key == ("id",) and table.definition.vnodes == 4
    assert table.head == 1
    table.upsert([{"id": 1, "part": "new", "at": dt.datetime.now(dt.UTC)}], missing="null")
    assert DeltaTable(delta).version() == 2, "the source stays as it is"


def test_equal_keys_are_refused_by_name_unless_an_order_decides(lake: sl.Lake, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 1, 3], "v": [5, 1, None, 7], "name": ["high", "b", "null", "c"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    with refused(sl.Invalid, key={"id": 1}, column="id"):
        lake.import_table("t", tmp_path / "a.parquet", key=["id"])
    assert lake.tables() == []
    assert files_below(Path(lake.storage.uri) / "tables") == set()
    table = lake.import_table("t", tmp_path / "a.parquet", key=["id"], order_by="v")
    assert {row["id"]: row["name"] for row in table.to_arrow().to_pylist()} == {1: "high", 2: "b", 3: "c"}


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (pa.table({"id": pa.array([1], pa.uint64())}), {"key": ["id"]}),
        (pa.table({"id": [1, None]}), {"key": ["id"]}),
        (pa.table({"id": [1.5]}), {"key": ["id"]}),
        (pa.table({"id": [1]}), {"key": ["nope"]}),
        (pa.table({"id": [1]}), {"key": ["id"], "order_by": "nope"}),
        (pa.table({"id": [1]}), {"key": ["id"], "vnodes": 3}),
    ],
)
def test_what_a_table_cannot_hold_is_refused(
    lake: sl.Lake, tmp_path: Path, rows: pa.Table, options: dict[str, object]
) -> None:
    pq.write_table(rows, tmp_path / "a.parquet")
    with refused(sl.Invalid):
        lake.import_table("t", tmp_path / "a.parquet", **options)
    assert lake.tables() == []
    assert files_below(Path(lake.storage.uri) / "tables") == set()


def test_a_name_that_is_taken_is_refused_before_anything_is_read(
    lake: sl.Lake, items: sl.Table, tmp_path: Path
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    before = files_below(lake.storage.uri)
    with refused(sl.Invalid, table="items"):
        lake.import_table("items", tmp_path / "a.parquet", key=["id"])
    assert files_below(lake.storage.uri) == before


def test_an_empty_table_is_imported(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(ROWS.schema.empty_table(), tmp_path / "a.parquet")
    assert lake.import_table("t", tmp_path / "a.parquet", key=["id"]).to_arrow().num_rows == 0


@pytest.mark.parametrize("point", ["log.file_written", "delta.before_commit", "log.committed", "import.filled"])
def test_after_a_kill_there_is_no_table_and_the_import_can_be_repeated(
    lake: sl.Lake, tmp_path: Path, point: str
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).import_table('t', sys.argv[2], key=['id'])"
    assert python(code, lake.storage.uri, str(tmp_path / "a.parquet"), crash=point).returncode == -9
    assert lake.tables() == []
    lake.create_table("other", ROWS.schema, key=["id"])
    assert lake.import_table("t", tmp_path / "a.parquet", key=["id"]).to_arrow().num_rows == 100
    assert rest_of_imports(lake) == ["tables/t"]
    late = lake.storage.now_s() + 10 * 86400
    (left,) = leftovers(lake.storage, now_s=late, grace_s=3600)
    has_commits = point in ("log.committed", "import.filled")
    what = "of an import that did not finish" if has_commits else "of a table that was never finished"
    assert (left.table, left.what, left.is_lost, left.is_deletable) == ("t", what, False, not has_commits)


def rest_of_imports(lake: sl.Lake) -> list[str]:
    """The tables whose folders say that an import is under way."""
    paths = [info.path for info in lake.storage.list("tables")]
    return [path.rsplit("/", 2)[0] for path in paths if path.endswith(f"/{IMPORTING}")]


def test_a_refused_import_killed_while_it_is_cleared_away_locks_nobody_out(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(pa.concat_tables([ROWS, ROWS]), tmp_path / "a.parquet")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).import_table('t', sys.argv[2], key=['id'])"
    assert python(code, lake.storage.uri, str(tmp_path / "a.parquet"), crash="import.cleared").returncode == -9
    assert rest_of_imports(lake) == ["tables/t"]
    sl.Lake(lake.storage.uri).create_table("other", ROWS.schema, key=["id"])


def test_a_mark_that_an_import_left_excuses_no_table_that_was_written_to(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    table = lake.import_table("t", tmp_path / "a.parquet", key=["id"])
    table.upsert(ROWS.slice(0, 1))
    lake.storage.put_new(f"{table.entry.folder}/{IMPORTING}", b"")
    entries = sorted(info.path for info in lake.storage.list("catalog"))
    lake.storage.delete(entries[-1:])
    with refused(sl.Corrupt, path="catalog"):
        sl.Lake(lake.storage.uri).create_table("other", ROWS.schema, key=["id"])
    (left,) = leftovers(lake.storage, now_s=lake.storage.now_s() + 86400, grace_s=3600)
    assert left.is_lost
    assert not left.is_deletable


def test_an_import_killed_after_it_is_registered_is_a_table(lake: sl.Lake, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    code = "import sys, strandline as sl; sl.Lake(sys.argv[1]).import_table('t', sys.argv[2], key=['id'])"
    ended = python(code, lake.storage.uri, str(tmp_path / "a.parquet"), crash="import.registered")
    assert ended.returncode == -9
    assert lake.table("t").to_arrow().num_rows == 100
    assert rest_of_imports(lake) == ["tables/t"]
    late = lake.storage.now_s() + 10 * 86400
    sweep(lake.storage, leftovers(lake.storage, now_s=late, grace_s=3600))
    assert rest_of_imports(lake) == []
    assert sl.Lake(lake.storage.uri).table("t").to_arrow().num_rows == 100
