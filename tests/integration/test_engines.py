"""One table, every reader: driver, Spark, SQL and other engines see the same rows."""

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from shapes import OPTIONS, build, plain


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
