"""DuckDB's one instance: what a failure means, and that an instance which died is replaced."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.engines.duck import Duck
from strandline.jobs.doctor import examine
from strandline.model.change import UPSERT
from strandline.model.definition import TableDef
from strandline.storage.local import LocalStorage
from strandline.tables.baseline import Baseline
from strandline.tables.catalog import Entry
from strandline.tables.log import Log, prepare
from support import answer_of, start_python
from unsound import of_bytes, of_numbers

POISON = pa.schema([("id", pa.int64()), ("v", pa.decimal128(38, 0))])
FATAL = "SELECT CAST(v AS VARCHAR) FROM poison"


@pytest.fixture
def poison(lake: sl.Lake) -> sl.Table:
    """A table as an earlier version could write it: a decimal of 39 digits, on which a cast ends DuckDB."""
    table = lake.create_table("poison", POISON, key=["id"], vnodes=1)
    values = of_numbers(pa.decimal128(38, 0), [-(2**127)], 16)
    committed(table, pa.table({"id": [1], "v": values}, schema=POISON))
    return table


def committed(table: sl.Table, rows: pa.Table) -> None:
    """Commit rows that nobody looked at."""
    definition = table.definition
    table.log.commit(table.log.write(prepare(rows, definition, UPSERT), definition), operation="UPSERT")


def filled(lake: sl.Lake, name: str = "items") -> sl.Table:
    """A table whose reads need a fold in DuckDB."""
    table = lake.create_table(name, pa.schema([("id", pa.int64()), ("n", pa.int64())]), key=["id"], vnodes=4)
    for n in range(3):
        table.upsert([{"id": i, "n": n} for i in range(10)])
    return table


def rows_of(table: sl.Table) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = table.to_arrow().sort_by("id").to_pylist()
    return rows


EXPECTED = [{"id": i, "n": 2} for i in range(10)]


def test_after_an_internal_error_of_duckdb_every_table_is_read_on(lake: sl.Lake, poison: sl.Table) -> None:
    table = filled(lake)
    assert rows_of(table) == EXPECTED
    with pytest.raises(sl.Invalid, match="DuckDB failed on this query"):
        lake.sql(FATAL)
    assert rows_of(table) == EXPECTED
    assert lake.sql("SELECT count(*) AS n FROM items").to_pylist() == [{"n": 10}]
    # The fold was lost with the instance; it is built and extended again.
    table.upsert([{"id": 0, "n": 7}])
    assert rows_of(table)[0] == {"id": 0, "n": 7}
    assert table.to_arrow(at=2).num_rows == 10
    table.compact(full=True)
    assert rows_of(table)[1:] == EXPECTED[1:]


def test_each_death_of_duckdb_is_survived(lake: sl.Lake, poison: sl.Table) -> None:
    table = filled(lake)
    for _ in range(5):
        with pytest.raises(sl.Invalid):
            lake.sql(FATAL)
        assert rows_of(table) == EXPECTED


def test_threads_read_on_while_others_end_duckdb(lake: sl.Lake, poison: sl.Table) -> None:
    tables = [filled(lake, f"items{at}") for at in range(3)]
    done = threading.Event()

    def read(table: sl.Table) -> int:
        good = 0
        while not done.is_set() or not good:
            try:
                assert rows_of(table) == EXPECTED
                good += 1
            except sl.Unavailable:
                # DuckDB was ended under this very read; the next one works.
                pass
        return good

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, table) for table in tables]
        try:
            for _ in range(10):
                with pytest.raises((sl.Invalid, sl.Unavailable)):
                    lake.sql(FATAL)
        finally:
            done.set()
        assert all(reader.result(timeout=120) for reader in readers)
    assert [rows_of(table) for table in tables] == [EXPECTED] * 3


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT CASE WHEN i > 2000000 THEN error('no') ELSE i END FROM range(3000000) t(i)", sl.Invalid),
        ("SELECT list(repeat('x', 1000) || i) FROM range(300000) t(i) GROUP BY i % 2", sl.Unavailable),
    ],
)
def test_a_failure_in_the_middle_of_a_stream_is_an_error_of_ours(
    tmp_path: Path, sql: str, kind: type[sl.StrandlineError]
) -> None:
    duck = Duck(LocalStorage(str(tmp_path)), memory_bytes=64 << 20)
    with pytest.raises(kind), duck.transaction() as cursor:
        for _ in cursor.sql(sql).to_arrow_reader(1000):
            pass


def test_a_stream_of_batches_that_duckdb_died_under_ends_in_an_error(lake: sl.Lake, poison: sl.Table) -> None:
    table = filled(lake)
    stream = table.to_batches(batch_rows=1)
    next(stream)
    with pytest.raises(sl.Invalid):
        lake.sql(FATAL)
    # The rows were already read, or the stream says that it ended too early: never fewer rows without a word.
    with suppress(sl.StrandlineError):
        assert sum(batch.num_rows for batch in stream) == 9
    assert rows_of(table) == EXPECTED


def test_text_of_an_earlier_version_that_is_not_utf8_is_an_error_of_its_table_alone(lake: sl.Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    bad, good = lake.create_table("bad", schema, key=["id"], vnodes=1), filled(lake)
    committed(bad, pa.table({"id": [1, 2], "v": of_bytes([b"ok", b"\xff"])}, schema=schema))
    for read in (bad.to_arrow, bad.changes, lambda: list(bad.to_batches()), lambda: lake.sql("SELECT * FROM bad")):
        with pytest.raises(sl.Corrupt, match=r"\.parquet"):
            read()
    assert rows_of(good) == EXPECTED


def test_a_field_without_a_name_of_an_earlier_version_is_named(lake: sl.Lake) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.struct([("", pa.int64())]))])
    definition = TableDef(("id",), (), 1, None, (schema,))

    def make(entry: Entry) -> None:
        Log.create(lake.storage, f"{entry.folder}/log", "odd", definition)
        Baseline.create(lake.storage, f"{entry.folder}/baseline", "odd", definition)

    lake.catalog.add("odd", make)
    with pytest.raises(sl.Invalid, match="cannot read a field with the name ''"):
        lake.table("odd").to_arrow()


def test_a_deep_look_of_doctor_finds_values_that_no_engine_reads(lake: sl.Lake, poison: sl.Table) -> None:
    filled(lake)
    report = examine(LocalStorage(lake.storage.uri), deep=True)
    assert [found.table for found in report.findings if "more digits" in found.what] == ["poison"]
    assert not report.is_sound


AT_EXIT = """
import atexit, os, sys

def tell(duck_threads):
    print(len(duck_threads()))

def of_duckdb():
    return [task for task in os.listdir("/proc/self/task") if int(task) in started]

atexit.register(tell, of_duckdb)  # called last, when strandline has put its things away
import strandline as sl
lake = sl.Lake(sys.argv[1])
before = {int(task) for task in os.listdir("/proc/self/task")}
lake.duck.run("SELECT 1")
started = {int(task) for task in os.listdir("/proc/self/task")} - before
assert started, "DuckDB has threads"
lake.cycle = lake  # not freed by anybody before the end
"""


def test_duckdb_has_ended_its_threads_before_the_interpreter_ends(lake: sl.Lake) -> None:
    """One that needs the interpreter after its end aborts the process."""
    assert answer_of(start_python(AT_EXIT, lake.storage.uri)) == 0


def test_a_closed_instance_is_opened_anew(lake: sl.Lake) -> None:
    lake.duck.run("SELECT 1")
    lake.duck.close()
    lake.duck.close()
    assert lake.duck.table("SELECT 2 AS n").to_pylist() == [{"n": 2}]
