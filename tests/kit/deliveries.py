"""Hand-made batches for the tests of sinks that write files, and what the cursor does with one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline.model.types import JSON, conform
from strandline.sinks.contract import WITHHELD, Batch, Delivery, Producer, Result

PARTS = pa.schema([("session", pa.string()), ("part", pa.int32()), ("text", pa.string()), ("tools", JSON)])
PRODUCER = Producer("lake", "archive", "parts", "a" * 32, "b" * 32, 1)


def new_batch(after: int, upto: int, *, columns: pa.Schema = PARTS, **facts: Any) -> Batch:
    """The batch of all vnodes of a table in `(after, upto]`; the first one starts at 0."""
    known: dict[str, Any] = {"key": ("session", "part"), "cluster_by": ("session",), "is_first": after == 0}
    return Batch(f"{upto:032x}", tuple(range(4)), after, upto, columns, **{**known, **facts})


def upsert(seq: int, session: int, part: int, **more: Any) -> dict[str, Any]:
    text, tools = f"text {session}-{part} of {seq}", json.dumps({"tools": [session] * 20})
    row = {"session": f"s{session}", "part": part, "text": text, "tools": tools}
    return {"_op": "upsert", "_vnode": session % 4, "_seq": seq, **row, **more}


def delete(seq: int, session: int, part: int) -> dict[str, Any]:
    return {"_op": "delete", "_vnode": session % 4, "_seq": seq, "session": f"s{session}", "part": part}


def withheld(seq: int, session: int, part: int) -> dict[str, Any]:
    return {**delete(seq, session, part), "_op": WITHHELD}


def upserts(seq: int, sessions: Iterable[int], parts: int = 3) -> list[dict[str, Any]]:
    return [upsert(seq, session, part) for session in sessions for part in range(parts)]


def batches_of(batch: Batch, rows: Sequence[dict[str, Any]], *, rows_each: int = 7) -> list[pa.RecordBatch]:
    plain = pa.schema([(f.name, pa.string() if f.type == JSON else f.type) for f in batch.lane_schema])
    table = conform(pa.Table.from_pylist(list(rows), schema=plain), batch.lane_schema)
    return table.to_batches(max_chunksize=rows_each)


def run_lanes(delivery: Delivery, batch: Batch, lanes: Sequence[Sequence[dict[str, Any]]]) -> list[Result]:
    lane = delivery.lane(batch)
    results = [result for rows in lanes for result in lane(iter(batches_of(batch, rows)))]
    assert len(results) == len(lanes)
    return results


def deliver(delivery: Delivery, batch: Batch, *lanes: Sequence[dict[str, Any]]) -> list[Result]:
    """Deliver a batch as a cursor does, each list of rows through a lane of its own; nothing when it is there."""
    if delivery.is_delivered(batch):
        return []
    results = run_lanes(delivery, batch, lanes)
    delivery.finish(batch, results)
    return results


def again(batch: Batch) -> Batch:
    return replace(batch, is_replay=True)


def changes(rows: Iterable[dict[str, Any]], columns: pa.Schema = PARTS) -> list[tuple[Any, ...]]:
    """What a destination holds of these rows, in an order of its own."""
    names = ["_op", "_seq", *columns.names]
    return sorted((tuple(row.get(name) for name in names) for row in rows if row["_op"] != WITHHELD), key=repr)


ROWS = [*upserts(3, range(9)), delete(5, 2, 1), upsert(5, 20, 0)]
FIRST = new_batch(0, 5)
SECOND = new_batch(5, 9)
MORE = [upsert(7, 3, 0), delete(9, 4, 2), *upserts(9, range(30, 34))]
