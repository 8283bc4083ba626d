"""What the tests of the receiver share: bodies, chunks, and a server in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow as pa
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

import strandline as sl
from strandline.model.types import JSON
from strandline.server.app import make_app
from strandline.server.body import decode
from strandline.server.memory_cost import Weight
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS, start_python

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
MIB = 1 << 20

SERVE = """
import json, sys
import strandline as sl
from strandline.server.run import serve
from strandline.state.tokens import Tokens
lake = sl.Lake(sys.argv[1])
tokens = Tokens(lake.state.database)
serve(lake, tokens=tokens, on_listening=lambda url: print(url, flush=True), **json.loads(sys.argv[2]))
"""


def arrow(rows: Sequence[dict[str, Any]] | pa.Table, *, compression: str | None = "zstd") -> bytes:
    if isinstance(rows, pa.Table):
        table = rows
    else:
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def chunk_of(*ranges: Sequence[int], first: bool = False, sink: str = "s", life: int = 1) -> dict[str, str]:
    """The headers of a chunk of Arrow rows."""
    facts = {"version": 1, "sink": sink, "life": life, "is_first": first, "ranges": ranges, "source": {}}
    return {"Content-Type": ARROW, "Strandline-Chunk": json.dumps(facts)}


def row_at(vnode: int, seq: int, index: int, op: str = "upsert", **values: Any) -> dict[str, Any]:
    return {"_op": op, "_vnode": vnode, "_seq": seq, "_index": index, **values}


class Client:
    """Asks an app in this process, without a socket between; threads may share it."""

    def __init__(self, portal: BlockingPortal, client: httpx.AsyncClient) -> None:
        self._portal = portal
        self._client = client

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._portal.call(lambda: self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


@contextlib.contextmanager
def asking(app: FastAPI) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        with portal.wrap_async_context_manager(app.router.lifespan_context(app)):
            yield Client(portal, httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60))


@pytest.fixture
def client(lake: sl.Lake, items: sl.Table) -> Iterator[Client]:
    """Asks a server of the lake; a test module takes it by assignment."""
    with asking(make_app(lake, linger_ms=0)) as opened:
        yield opened


def post(client: Client, rows: Any, table: str = "items", **headers: str) -> httpx.Response:
    content = rows if isinstance(rows, bytes) else arrow(rows)
    return client.post(f"/ingest/{table}", content=content, headers={"Content-Type": ARROW, **headers})


def send(
    client: Client, ranges: Sequence[Sequence[int]], rows: Any, *, first: bool = False, table: str = "items"
) -> httpx.Response:
    """Post a chunk; `rows` are those of its body."""
    return client.post(f"/ingest/{table}", content=arrow(rows), headers=chunk_of(*ranges, first=first))


def positions(client: Client, table: str = "items", sink: str = "s", life: int = 1) -> Any:
    return client.get(f"/ingest/{table}/positions", params={"sink": sink, "life": life}).json()["positions"]


def light(most: int = MIB) -> Weight:
    return Weight(most, 1_000_000, 4096)


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


@dataclass
class Served:
    """A server process and a client of it."""

    process: subprocess.Popen[str]
    url: str
    client: httpx.Client

    def post(self, table: str, content: Any, headers: dict[str, str]) -> httpx.Response:
        return self.client.post(f"/ingest/{table}", content=content, headers=headers)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        return self.process.wait(30)


@contextlib.contextmanager
def served(folder: str, *, crash: str = "", **options: Any) -> Iterator[Served]:
    """A server of the lake in `folder`, at a port of its own."""
    more = {"STRANDLINE_CRASH": crash} if crash else {}
    process = start_python(SERVE, folder, json.dumps({"port": 0, **options}), **more)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate(timeout=10)[1]
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Served(process, url, client)
    finally:
        process.kill()
        process.communicate(timeout=10)


def weight(most=64 * MIB, *, rows=1_000_000, columns=4096):
    return Weight(most, rows, columns)


def refusal(data, form, limit=None):
    with pytest.raises(Refusal) as caught:
        body = decode(data, form, limit or weight())
        body.rows(ITEMS)
    return caught.value.status


SHAPES = pa.schema(
    [
        ("id", pa.int64()), ("f", pa.float64()), ("h", pa.float32()), ("t", pa.string()), ("y", pa.bool_()),
        ("i", pa.int16()), ("d", pa.decimal128(9, 2)), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32()),
        ("l", pa.list_(pa.int32())), ("r", pa.struct([("x", pa.int64()), ("s", pa.string())])), ("j", JSON),
    ]
)  # fmt: skip


WITH_HAND = pa.schema([*SHAPES, ("b", pa.binary()), ("m", pa.map_(pa.string(), pa.int32()))])
