"""A table whose columns have names of every kind, through all that a table can do: on the driver and on Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import strandline as sl
from odd_names import KEY, NUMBER, ODD, SCHEMA, TEXT, in_order, odd_rows, quoted
from strandline.consumers import compaction
from strandline.engines.choice import DriverLimit
from strandline.jobs.export import export
from strandline.jobs.restore import restore
from strandline.model.names import join_names, split_names
from strandline.model.schema_text import parse_schema
from support import refused


@pytest.fixture
def table(lake):
    made = lake.create_table("t", SCHEMA, key=KEY, vnodes=2, cluster_by=["c,d"])
    made.upsert(odd_rows(0, 5))
    made.upsert(pa.Table.from_pylist(odd_rows(3, 8), SCHEMA))
    return made


def rows_of(table, **options):
    return in_order(table.to_arrow(**options).to_pylist())


def test_every_column_is_read_chosen_and_compared(lake, table):
    assert rows_of(table) == odd_rows(0, 8)
    assert in_order(lake.sql("select * from t").to_pylist()) == odd_rows(0, 8)
    for at, name in enumerate(ODD[1:], 1):
        assert table.to_arrow(where=f"{quoted(name)} = '2-{at}'", columns=[name]).to_pylist() == [{name: f"2-{at}"}]
        found = lake.sql(f"select {quoted(name)} from t where {quoted(NUMBER)} = 7").to_pylist()
        assert found == [{name: f"7-{at}"}]


def test_the_table_is_folded_changed_restored_and_purged(lake, table, tmp_path):
    table.compact(full=True)
    assert rows_of(table) == odd_rows(0, 8)
    seq = table.head
    table.delete([{NUMBER: 7, TEXT: "7-1"}])
    assert rows_of(table) == odd_rows(0, 7)
    assert len(list(table.changes(seq).to_pylist())) == 1
    table.evolve(pa.schema([("new;col 1", pa.int64())]))
    table.drop_column("new;col 1")
    table.restore(seq)
    assert rows_of(table) == odd_rows(0, 8)
    assert table.purge([{NUMBER: 0, TEXT: "0-1"}]).keys == 1
    table.compact(full=True)
    table.vacuum()
    assert rows_of(table) == odd_rows(1, 8)
    lake.backup(tmp_path / "copy")
    assert rows_of(sl.Lake(tmp_path / "copy").table("t")) == odd_rows(1, 8)
    for part in (table.log.folder, table.baseline.folder):
        found = DeltaTable(f"{lake.storage.uri}/{part}")
        assert set(ODD) <= set(pa.table(pa.RecordBatchReader.from_stream(found.scan())).column_names)


def test_an_export_is_imported_and_ingested_with_its_names(lake, table, tmp_path):
    table.export(tmp_path / "out")
    lake.import_table("two", tmp_path / "out", key=KEY, names="keep")
    lake.ingest("three", [str(file) for file in Path(tmp_path / "out").glob("**/*.parquet")], key=KEY, names="keep")
    assert rows_of(lake.table("two")) == rows_of(lake.table("three")) == odd_rows(0, 8)


def test_version_time_and_rows_without_a_key(lake):
    now = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    schema = pa.schema([("k `y", pa.int64()), ("ver.sion", pa.int64())])
    versions = lake.create_table("v", schema, key=["k `y"], version="ver.sion")
    versions.upsert([{"k `y": 1, "ver.sion": 5}])
    versions.compact(full=True)
    versions.upsert([{"k `y": 1, "ver.sion": 4}, {"k `y": 2, "ver.sion": 3}])
    assert sorted(row["ver.sion"] for row in versions.to_arrow().to_pylist()) == [3, 5]
    times = lake.create_table(
        "w", pa.schema([("k.y", pa.int64()), ("ti `me", pa.timestamp("us", "UTC"))]), time="ti `me"
    )
    times.append([{"k.y": 1, "ti `me": now}, {"k.y": 2, "ti `me": now - dt.timedelta(days=9)}])
    times.expire(now - dt.timedelta(days=1))
    assert times.to_arrow(columns=["k.y"]).to_pylist() == [{"k.y": 1}]
    rows = lake.create_table("u", SCHEMA)
    rows.append(odd_rows(0, 3))
    rows.compact(full=True)
    rows.append(odd_rows(3, 4))
    assert rows_of(rows) == odd_rows(0, 4)


def test_spark_writes_reads_folds_restores_and_exports_every_column(lake, table, spark, tmp_path, monkeypatch):
    def frame(start, stop):
        return spark.createDataFrame(pa.Table.from_pylist(odd_rows(start, stop), SCHEMA))

    def rows(**options):
        return in_order(table.to_spark(**options).toArrow().to_pylist())

    table.upsert(frame(6, 9), order_by='say "hi"')
    assert rows() == rows_of(table) == odd_rows(0, 9)
    condition = " AND ".join(f"{quoted(name)} = '2-{at}'" for at, name in enumerate(ODD) if at)
    assert rows(where=condition) == odd_rows(2, 3)
    compaction.compact(table, full=True, driver_rows=0)
    seq = table.head
    table.delete([{NUMBER: 8, TEXT: "8-1"}])
    assert rows() == odd_rows(0, 8)
    restore(table, seq, limit=DriverLimit(rows=0, raw_bytes=0))
    assert rows() == rows_of(table) == odd_rows(0, 9)
    monkeypatch.setattr(export, "BULK", DriverLimit(rows=0, raw_bytes=0))
    assert table.export(tmp_path / "out").engine == "spark"
    assert in_order(pq.read_table(tmp_path / "out").select(ODD).to_pylist()) == odd_rows(0, 9)
    assert table.export(tmp_path / "changes", changes=(0, seq)).engine == "spark"
    assert {row[TEXT] for row in pq.read_table(tmp_path / "changes").to_pylist()} == {
        row[TEXT] for row in odd_rows(0, 9)
    }


@pytest.mark.parametrize("name", ["", "a\0b", "_seq", "_OP", "_index", "_sl_x"])
def test_only_empty_unreadable_and_reserved_names_are_refused(lake, name):
    with refused(sl.Invalid, column=name):
        lake.create_table("t", pa.schema([(name, pa.int64())]))


def test_names_in_texts_are_quoted_as_in_sql():
    assert split_names('a, Order Date ,"c, d","say ""hi"""," x "') == ("a", "Order Date", "c, d", 'say "hi"', " x ")
    assert (split_names(""), split_names('it"s,b')) == ((), ('it"s', "b"))
    names = ("a", "Order Date", "", " x ", "c, d", 'say "hi"', "e:f", '"')
    assert split_names(join_names([*names, "a"])) == names
    schema = parse_schema('id:int64!, "a:b, c":list<string>, Order Date:decimal(10,2), "say ""hi""" : string')
    assert schema.names == ["id", "a:b, c", "Order Date", 'say "hi"']
    assert schema.field(2).type == pa.decimal128(10, 2)
