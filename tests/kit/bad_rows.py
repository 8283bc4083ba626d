"""Tables that take some rows of a file and refuse others.

A test module takes the fixtures that it needs by assignment, as in `flat = bad_rows.flat`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model.types import JSON
from strandline.tables.rejects import Rejects

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("doc", JSON),
        ("tags", pa.list_(pa.string())),
    ]
)


FLAT = pa.schema([field for field in SCHEMA if field.name != "tags"])


@pytest.fixture
def things(lake: sl.Lake) -> sl.Table:
    return lake.create_table("things", SCHEMA, key=["id"])


@pytest.fixture
def flat(lake: sl.Lake) -> sl.Table:
    return lake.create_table("flat", FLAT, key=["id"])


def rejects_of(table: sl.Table) -> list[dict[str, Any]]:
    return Rejects(table.log.storage, table.entry).latest(1000)


GOOD = '{"id": %d, "text": "fine"}\n'


HEADER = "id,n,f,ok,text,at,local,day,price,doc\n"
