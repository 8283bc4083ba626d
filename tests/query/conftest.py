"""Fixtures of this folder."""

import pyarrow as pa
import pytest

OWNERS = pa.schema([("id", pa.int64()), ("owner", pa.string())])


@pytest.fixture
def owners(lake):
    return lake.create_table("owners", OWNERS, key=["id"], vnodes=2)


@pytest.fixture
def filled(lake, items, owners):
    items.upsert([{"id": 1, "name": "a", "qty": 1}, {"id": 2, "name": "b", "qty": 2}])
    items.compact(full=True)
    items.upsert([{"id": 2, "name": "B", "qty": 3}, {"id": 3, "name": "c", "qty": None}])
    owners.upsert([{"id": 1, "owner": "x"}, {"id": 2, "owner": "y"}])
    return lake
