"""A table of every shape, with a column of every type, a baseline, a log over two schemas, and deletes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from strandline.engines.scan import spark_schema
from strandline.model.types import storage_schema
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
        "doc": sl.JsonText(f'{{"n": {n}, "rev": {rev}}}'),
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


def as_frame(spark, rows, schema, folder):
    """The rows as a DataFrame, by way of a file, so that no value passes through Python's own time zone."""
    plain = pa.schema([field.with_nullable(True) for field in storage_schema(schema)])
    pq.write_table(pa.Table.from_pylist(rows, schema=plain), folder / "rows.parquet")
    return spark.read.schema(spark_schema(schema)).parquet(str(folder / "rows.parquet"))
