"""A batch on its way over HTTP: rows, a sink, and receivers in processes and threads of their own.

A test module takes the fixtures that it needs by assignment, as in `endpoint = forwarding.endpoint`."""

from __future__ import annotations

import itertools
import json
import pickle
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from positions_receiver import positions_receiver
from strandline.model.change import RefusedRows
from strandline.sinks.contract import Batch, Producer
from strandline.sinks.http import HttpSink

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
PRODUCER = Producer("lake-1", "central", "items", "table-1", "9b1d-1", 7)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with foreign_receiver(tmp_path_factory.mktemp("foreign")) as address:
        yield address


@pytest.fixture
def endpoint(foreign: Any) -> Endpoint:
    return Endpoint(foreign, f"/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with positions_receiver() as running:
        yield running


@pytest.fixture
def receiver(server: Any) -> Any:
    server.reset()
    return server


def batch_of(vnodes: Iterable[int] = (0, 1, 2, 3), after: int = 4, upto: int = 7, **rest: Any) -> Batch:
    return Batch(f"{after}-{upto}", tuple(vnodes), after, upto, COLUMNS, ("id",), **rest)


def rows_of(
    batch: Batch,
    places: Iterable[tuple[int, int]],
    withheld: Collection[int] = (),
    name: Callable[[int], str] = lambda at: f"name {at}",
    first_id: int = 0,
) -> pa.RecordBatch:
    """One row for each (vnode, seq), in that order; those whose ordinal is in `withheld` do not leave."""
    rows = []
    for at, (vnode, seq) in enumerate(sorted(places)):
        op = "withheld" if at in withheld else "delete" if at % 5 == 4 else "upsert"
        told = name(at) if op == "upsert" else None
        rows.append({"_op": op, "_vnode": vnode, "_seq": seq, "id": first_id + at, "name": told})
    return pa.RecordBatch.from_pylist(rows, schema=batch.lane_schema)


def some_rows(batch: Batch, count: int = 20, **rest: Any) -> pa.RecordBatch:
    vnodes, seqs = itertools.cycle(batch.vnodes), itertools.cycle(range(batch.upto, batch.after, -1))
    return rows_of(batch, [(next(vnodes), next(seqs)) for _ in range(count)], **rest)


@dataclass
class Outcome:
    """What the lanes of a batch did, over all their runs."""

    rows: int = 0
    withheld: int = 0
    requests: int = 0
    retries: int = 0
    bytes: int = 0
    dead: list[RefusedRows] = field(default_factory=list)
    error: sl.StrandlineError | None = None
    cuts: list[object] = field(default_factory=list)

    @property
    def dead_ids(self) -> list[int]:
        return [row["id"] for each in self.dead for row in pa.ipc.open_stream(each.keys).read_all().to_pylist()]


def deliver(sink: HttpSink, batch: Batch, rows: pa.RecordBatch, step: int = 7) -> Outcome:
    """Run a batch as the cursor does: save what a lane asks for and run it again."""
    done = Outcome()
    delivery = sink.open(PRODUCER)
    try:
        if delivery.is_delivered(batch):
            return done
        while True:
            pieces = (rows.slice(at, step) for at in range(0, rows.num_rows, step))
            [result] = pickle.loads(pickle.dumps(delivery.lane(batch)))(pieces)
            for name in ("rows", "withheld", "requests", "retries", "bytes"):
                setattr(done, name, getattr(done, name) + getattr(result, name))
            done.dead += result.dead
            done.error = result.error
            if result.cuts is None:
                if result.error is None:
                    delivery.finish(batch, [result])
                return done
            done.cuts.append(result.cuts)
            batch = replace(batch, cuts=json.loads(json.dumps(result.cuts)))
    finally:
        delivery.close()


def leaving(rows: pa.RecordBatch) -> list[int]:
    return [row["id"] for row in rows.to_pylist() if row["_op"] != "withheld"]


def any_sink(url: str, **rest: Any) -> HttpSink:
    return HttpSink(url, receiver="any", **{"chunk_rows": 5, "patience": "2s", **rest})


def keys_of(requests: Iterable[Mapping[str, Any]]) -> list[str]:
    return [request["key"] for request in requests]
