"""One table, every reader: driver, Spark, SQL and other engines see the same rows."""

import datetime as dt
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.engines.choice import DriverLimit
from support import rows_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("n", pa.int16()),
        ("f", pa.float64()),
        ("p", pa.decimal128(9, 2)),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("doc", pa.json_()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)


def row(n, rev=0):
    return {
        "id": n % 10,
        "part": f"p{n // 10}",
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=n),
        "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(microseconds=n),
        "local": None if n % 3 == 0 else dt.datetime(2026, 1, 1) + dt.timedelta(hours=n),
        "n": (n * 7 + rev) % 100 - 50,
        "f": [float("nan"), float("inf"), -0.5, None][n % 4],
        "p": Decimal(n) / 4,
        "flag": n % 2 == 0,
        "raw": bytes([n]),
        "doc": f'{{"n": {n}, "rev": {rev}}}',
        "tags": ["a", None] if n % 2 else [],
        "point": {"x": n, "y": None},
    }


OPTIONS = {
    "keyed": {"key": ["part", "id"], "vnodes": 4, "cluster_by": ["part"]},
    "versioned": {"key": ["part", "id"], "vnodes": 2, "version": "n"},
    "unkeyed": {"vnodes": 2},
}


def build(folder, shape):
    """Baseline, a log over two schemas, and deletes."""
    table = sl.Lake(folder).create_table("t", SCHEMA, **OPTIONS[shape])
    write = table.upsert if table.definition.is_keyed else table.append
    write([row(n) for n in range(30)])
    table.compact(full=True)
    write([row(n, rev=1) for n in range(20, 40)])
    table.evolve(pa.schema([("n", pa.int32()), ("more", pa.string())]))
    write([{**row(n, rev=2), "more": "x"} for n in range(35, 45)])
    if table.definition.is_keyed:
        table.delete([{"part": "p0", "id": 3}, {"part": "p4", "id": 4}, {"part": "none", "id": 1}])
    return table


def plain(table):
    """Rows as the engines without JSON types show them, with times in UTC."""
    columns = []
    for field in table.schema:
        column = table.column(field.name)
        if isinstance(field.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=pa.string())
        elif pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us", tz="UTC" if field.type.tz else None))
        columns.append(column)
    return rows_of(pa.table(columns, names=table.column_names))


@pytest.mark.parametrize("shape", OPTIONS)
def test_every_way_to_read_gives_the_same_rows(spark, tmp_path, shape):
    table = build(tmp_path, shape)
    lake = sl.Lake(tmp_path)
    expected = plain(table.to_arrow())
    assert len(expected) == (60 if shape == "unkeyed" else 43)
    assert plain(pa.Table.from_batches(table.to_batches(batch_rows=7))) == expected
    assert plain(lake.sql("SELECT * FROM t")) == expected
    assert plain(table.to_spark().toArrow()) == expected
    assert plain(lake.table("t").to_arrow()) == expected
    for seq in (1, 2, 4):
        assert plain(table.to_spark(at=seq).toArrow()) == plain(table.to_arrow(at=seq))
    names = ["more", "part", "n"]
    assert plain(table.to_spark(columns=names, where="n > 0").toArrow()) == plain(
        table.to_arrow(columns=names, where="n > 0")
    )


@pytest.mark.parametrize("shape", OPTIONS)
def test_a_folded_table_is_an_ordinary_delta_table(tmp_path, shape):
    table = build(tmp_path, shape)
    table.compact(full=True)
    names = table.schema.names
    expected = plain(table.to_arrow())
    delta = DeltaTable(f"{tmp_path}/{table.baseline.folder}")
    assert plain(delta.to_pyarrow_table().select(names)) == expected
    files = [f"{tmp_path}/{table.baseline.folder}/{f.path}" for f in table.baseline.refresh().files()]
    assert {file.removeprefix("file://") for file in delta.file_uris()} == set(files)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f'"{name}"' for name in names)
        found = connection.sql(f"SELECT {columns} FROM read_parquet({files!r}, union_by_name = true)")
        assert plain(found.to_arrow_table().cast(_storage(table))) == expected


def test_polars_reads_a_folded_table(tmp_path):
    table = build(tmp_path, "keyed")
    table.compact(full=True)
    names = ["part", "id", "n", "day", "at", "flag", "more"]
    found = pl.scan_delta(f"{tmp_path}/{table.baseline.folder}").select(names).collect()
    assert plain(found.to_arrow().cast(pa.schema([_storage(table).field(name) for name in names]))) == plain(
        table.to_arrow(columns=names)
    )


def _storage(table):
    from strandline.model.types import storage_schema

    return pa.schema([field.with_nullable(True) for field in storage_schema(table.schema)])


@pytest.mark.parametrize("shape", OPTIONS)
def test_a_log_is_an_ordinary_delta_table(tmp_path, shape):
    table = build(tmp_path, shape)
    delta = DeltaTable(f"{tmp_path}/{table.log.folder}")
    changes = table.changes()
    assert delta.version() == table.head
    assert plain(delta.to_pyarrow_table().select(changes.column_names)) == plain(changes)


def test_json_keeps_its_logical_type_in_the_files(tmp_path):
    import pyarrow.parquet as pq

    table = build(tmp_path, "keyed")
    table.compact(full=True)
    for folder, state in ((table.log.folder, table.log.refresh()), (table.baseline.folder, table.baseline.refresh())):
        for path in state.snapshot.files:
            schema = pq.ParquetFile(f"{tmp_path}/{folder}/{path}").schema
            column = next(schema.column(at) for at in range(len(schema)) if schema.column(at).path == "doc")
            assert str(column.logical_type) == "JSON"


def test_a_dataframe_stays_at_its_seq_however_late_it_runs(spark, tmp_path):
    table = build(tmp_path, "keyed")
    expected = plain(table.to_arrow())
    frame = table.to_spark()
    table.upsert([row(n, rev=9) for n in range(5)])
    table.delete([{"part": "p1", "id": 1}])
    table.compact(full=True)
    assert plain(frame.toArrow()) == expected


def test_spark_computes_a_large_fold_itself_and_finds_the_same(spark, tmp_path, monkeypatch):
    from strandline.tables import store as table_module

    monkeypatch.setattr(table_module, "BULK", DriverLimit(0, 0))
    for shape in OPTIONS:
        table = build(tmp_path / shape, shape)
        assert plain(table.to_spark().toArrow()) == plain(table.to_arrow()), shape
