"""A receiver of the forward protocol's level 2 that does what the protocol's tables say, of positions and of replays,
word for word.

`faults` are taken one by one: a status, "lost" (done, and the connection closed instead of an answer) or "cut" (nothing
done, closed). `refuses` says which rows it does not take; `limit` how many rows a request may have."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

Position = tuple[int, int]


class PositionsReceiver:
    def __init__(self) -> None:
        self.reset()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                receiver.queries.append(query)
                sink = query["sink"][0]
                life = int(query["life"][0]) if "life" in query else receiver.lives.get(sink, 0)
                receiver.questions += 1
                if receiver.lives.get(sink, 0) > life:
                    self.answer(410, {"error": {"kind": "Conflict", "message": "old", "life": receiver.lives[sink]}})
                    return
                held = receiver.positions.get(sink, {}) if receiver.lives.get(sink) == life else {}
                told = [[vnode, vnode, *at] for vnode, at in sorted(held.items())]
                self.answer(200, {"sink": sink, "life": life, "positions": told})

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                receiver.queries.append(parse_qs(urlsplit(self.path).query))
                fault = receiver.faults.pop(0) if receiver.faults else None
                if fault == "cut":
                    self.close_connection = True
                elif isinstance(fault, int):
                    self.answer(fault, {"error": {"message": "not now"}})
                else:
                    status, body = receiver.taken(self.headers, data)
                    if fault == "lost":
                        self.close_connection = True
                    else:
                        self.answer(status, body)

            def answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def reset(self) -> None:
        self.lives: dict[str, int] = {}
        self.positions: dict[str, dict[int, Position]] = {}
        self.rows: list[dict[str, Any]] = []
        self.replays: dict[str, int] = {}
        self.done: set[str] = set()
        self.chunks: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.faults: list[str | int | None] = []
        self.refuses: Callable[[dict[str, Any]], bool] = lambda row: False
        self.names_rows = True
        self.limit = 1 << 30
        self.questions = 0
        self.queries: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/ingest/items"

    def taken(self, headers: Any, data: bytes) -> tuple[int, Any]:
        if "Strandline-Replay" in headers:
            return self.replayed(headers, data)
        chunk = json.loads(headers["Strandline-Chunk"])
        rows = _decoded(headers, data)
        self.chunks.append({**chunk, "rows": len(rows), "headers": headers})
        self.keys.append(headers["Idempotency-Key"])
        sink, life = chunk["sink"], chunk["life"]
        if self.lives.get(sink, 0) > life:
            return 410, {"error": {"kind": "Conflict", "message": "an older life", "life": self.lives[sink]}}
        held = self.positions.get(sink, {}) if self.lives.get(sink) == life else {}
        ends = {v: (seq, index) for first, last, _, _, seq, index in chunk["ranges"] for v in range(first, last + 1)}
        if all(vnode in held and held[vnode] >= end for vnode, end in ends.items()):
            return 200, {"rows": 0, "skipped": len(rows), "seq": None}
        if len(rows) > self.limit:
            return 413, {"error": {"message": "too large"}}
        skip: dict[int, Position] = {}
        moved: dict[int, Position] = {}
        for first, last, *begin, to_seq, to_index in chunk["ranges"]:
            for vnode in range(first, last + 1):
                assert vnode not in skip, "a vnode is in two ranges"
                at, start, end = held.get(vnode), tuple(begin), (to_seq, to_index)
                assert start <= end, "a range that goes back"
                for row in rows:
                    if row["_vnode"] == vnode:
                        assert start <= (row["_seq"], row["_index"]) < end, "a row outside its range"
                if (at is None and not chunk["is_first"]) or (at is not None and at < start):
                    told = [[vnode, vnode, *each] for vnode, each in sorted(held.items())]
                    return 409, {"error": {"kind": "Conflict", "message": "a gap", "positions": told}}
                skip[vnode] = at or (0, 0)
                moved[vnode] = max(at or (0, 0), end)
        new = [row for row in rows if (row["_seq"], row["_index"]) >= skip[row["_vnode"]]]
        for row in new:
            if self.refuses(row):
                error = {"kind": "Invalid", "message": "a bad row"}
                return 422, {"error": error | ({"row": rows.index(row)} if self.names_rows else {})}
        self.rows += new
        self.begin(sink, life)
        self.positions[sink] = held | moved
        return 200, {"rows": len(new), "skipped": len(rows) - len(new), "seq": len(self.rows) or None}

    def replayed(self, headers: Any, data: bytes) -> tuple[int, Any]:
        assert "Strandline-Chunk" not in headers
        replay, key, rows = (
            json.loads(headers["Strandline-Replay"]),
            headers["Idempotency-Key"],
            _decoded(headers, data),
        )
        sink, life, as_of = replay["sink"], replay["life"], replay["as_of"]
        if self.lives.get(sink, 0) > life:
            return 410, {"error": {"kind": "Conflict", "message": "an older life", "life": self.lives[sink]}}
        if key in self.done:
            return 200, {"rows": len(rows), "skipped": 0, "seq": None, "repeated": True}
        is_known = self.lives.get(sink) == life
        held = self.positions.get(sink, {}) if is_known else {}
        there = [seq if index else seq - 1 for seq, index in held.values()]
        there += [self.replays[sink]] if is_known and sink in self.replays else []
        if any(seq > as_of for seq in there):
            return 409, {"error": {"kind": "Conflict", "message": "newer rows", "as_of": max(there)}}
        if any(map(self.refuses, rows)):
            return 422, {"error": {"kind": "Invalid", "message": "a bad row"}}
        self.begin(sink, life)
        self.rows += rows
        self.replays[sink] = as_of
        self.done.add(key)
        return 200, {"rows": len(rows), "skipped": 0, "seq": len(self.rows)}

    def begin(self, sink: str, life: int) -> None:
        """A higher life replaces all that is kept of the lower one."""
        if self.lives.get(sink) != life:
            self.positions[sink] = {}
            self.replays.pop(sink, None)
        self.lives[sink] = life


def _decoded(headers: Any, data: bytes) -> list[dict[str, Any]]:
    if headers["Content-Type"] == "application/vnd.apache.arrow.stream":
        return list(pa.ipc.open_stream(data).read_all().to_pylist())
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


@contextlib.contextmanager
def positions_receiver() -> Iterator[PositionsReceiver]:
    receiver = PositionsReceiver()
    threading.Thread(target=receiver.server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
