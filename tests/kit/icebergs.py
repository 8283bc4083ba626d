"""Iceberg tables of real catalogs, and batches of changes to them.

A test module takes the fixtures that it needs by assignment, as in `opened = icebergs.opened`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.sinks.contract import WITHHELD, Batch, Producer, Result
from strandline.sinks.iceberg import IcebergDelivery, IcebergSink
from support import ICEBERG, KEY, SECRET, TABLE_BUCKET, rows_of

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("qty", pa.int32())])
PRODUCER = Producer("lake-1", "ice", "items", "table-life", "sink-life", 1)
Row = Mapping[str, Any]


def local_catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/ware house"}


def rest_catalog(s3: str, uri: str | None = None) -> dict[str, str]:
    uri = uri or ICEBERG[s3]
    return {
        "type": "rest",
        "uri": uri,
        "warehouse": f"s3://{TABLE_BUCKET}",
        "credential": f"{KEY}:{SECRET}",
        "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        "s3.endpoint": s3,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }


@pytest.fixture(params=["sqlite", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings of a real catalog; the test runs for each kind."""
    if request.param == "sqlite":
        return local_catalog(tmp_path)
    return rest_catalog(request.getfixturevalue("seaweed"))


@pytest.fixture
def local(tmp_path: Path) -> dict[str, str]:
    return local_catalog(tmp_path)


@pytest.fixture
def opened() -> Iterator[Callable[..., IcebergDelivery]]:
    """Opens deliveries to one table of this test's own, and closes them."""
    table = f"n{uuid.uuid4().hex[:8]}.items"
    made: list[IcebergDelivery] = []

    def open_delivery(catalog: Mapping[str, str], producer: Producer = PRODUCER, **options: Any) -> IcebergDelivery:
        made.append(IcebergSink(catalog, options.pop("table", table), **options).open(producer))
        return made[-1]

    yield open_delivery
    for delivery in made:
        delivery.close()


def batch_of(after: int, upto: int, columns: pa.Schema = COLUMNS, **facts: Any) -> Batch:
    facts = {"key": ("id",), "is_first": after == 0, **facts}
    return Batch(f"batch-{upto}", (0, 1), after, upto, columns, **facts)


def up(seq: int, id: int, **values: Any) -> Row:
    return {"_op": "upsert", "_vnode": id % 2, "_seq": seq, "id": id, **values}


def gone(seq: int, id: int) -> Row:
    return {"_op": "delete", "_vnode": id % 2, "_seq": seq, "id": id}


def withheld(seq: int, id: int) -> Row:
    return {**gone(seq, id), "_op": WITHHELD}


def written(delivery: IcebergDelivery, batch: Batch, *rows: Row) -> list[Result]:
    """What two lanes make of the rows."""
    lane = delivery.lane(batch)
    parts = [part for part in (rows[::2], rows[1::2]) if part]
    results = [r for part in parts for r in lane(iter([pa.RecordBatch.from_pylist(part, schema=batch.lane_schema)]))]
    assert [result.error for result in results if result.error] == []
    return results


def deliver(delivery: IcebergDelivery, batch: Batch, *rows: Row) -> bool:
    """The way a cursor goes; False when the destination has the batch."""
    if delivery.is_delivered(batch):
        return False
    delivery.finish(batch, written(delivery, batch, *rows))
    return True


def table_of(delivery: IcebergDelivery) -> Any:
    table = delivery._load_table()
    assert table is not None
    return table


def held(delivery: IcebergDelivery, *columns: str) -> list[tuple[Any, ...]]:
    return rows_of(table_of(delivery).scan().to_arrow().select(columns or ["_op", "_seq", "id", "name", "qty"]))


def snapshots(delivery: IcebergDelivery) -> int:
    return len(table_of(delivery).snapshots())


Opened = Callable[..., IcebergDelivery]
