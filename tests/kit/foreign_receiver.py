"""A receiver of the forward protocol's level 1 that has nothing of Strandline in it: a process of its own, the standard
library's HTTP server, rows and keys in one SQLite transaction that is on disk before the answer.

Every path is an endpoint of its own. What an endpoint does wrong is told to it by `POST /_control`:

    script      faults, each taken by one request: {"status": 503, "retry_after": "0"}, {"lost": true} (stored, and the
                connection closed instead of an answer), {"cut": true} (closed unread), {"slow_s": 0.5}
    max_bytes, max_rows     413 above them
    refuse      {"column": "name", "value": "bad", "status": 422, "names_row": true}
    token       401 without it
    page        what it shows to a GET instead of a 404

`GET /_rows?path=` and `GET /_requests?path=` say what it has and what it was sent."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Endpoints:
    def __init__(self, file: str) -> None:
        self.lock = threading.Lock()
        self.rules: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, list[dict[str, Any]]] = {}
        self.database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.database.execute("PRAGMA synchronous=FULL")
        self.database.execute("CREATE TABLE keys (path TEXT, key TEXT, PRIMARY KEY (path, key))")
        self.database.execute("CREATE TABLE rows (at INTEGER PRIMARY KEY, path TEXT, key TEXT, row TEXT)")

    def store(self, path: str, key: str, rows: list[Any]) -> bool:
        """Keep the rows of a request; False when it was seen before."""
        self.database.execute("BEGIN IMMEDIATE")
        new = self.database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (path, key)).rowcount == 1
        if new:
            told = [(path, key, json.dumps(row)) for row in rows]
            self.database.executemany("INSERT INTO rows (path, key, row) VALUES (?, ?, ?)", told)
        self.database.execute("COMMIT")
        return new

    def has(self, path: str, key: str) -> bool:
        """Whether a request was seen before: what was done is not judged again."""
        found = self.database.execute("SELECT 1 FROM keys WHERE path = ? AND key = ?", (path, key))
        return found.fetchone() is not None

    def rows(self, path: str) -> list[Any]:
        found = self.database.execute("SELECT row FROM rows WHERE path = ? ORDER BY at", (path,))
        return [json.loads(row) for (row,) in found]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    endpoints: Endpoints

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = parse_qs(parts.query).get("path", [""])[0]
        with self.endpoints.lock:
            if parts.path == "/_rows":
                self.answer(200, self.endpoints.rows(path))
            elif parts.path == "/_requests":
                self.answer(200, self.endpoints.requests.get(path, []))
            else:
                page = self.endpoints.rules.get(parts.path.removesuffix("/positions"), {}).get("page")
                self.answer(200 if page else 404, page or {"error": {"message": "nothing here"}})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        if len(data) < length:
            # Its sender died in the middle: what is there of the body may well look like a whole one.
            self.close_connection = True
            return
        with self.endpoints.lock:
            if self.path == "/_control":
                told = json.loads(data)
                self.endpoints.rules.setdefault(told.pop("path"), {}).update(told)
                self.answer(200, {})
                return
            rules = self.endpoints.rules.setdefault(self.path, {})
            script = rules.get("script") or []
            fault = script.pop(0) if script else {}
        time.sleep(fault.get("slow_s", 0))
        with self.endpoints.lock:
            self.ingest(data, rules, fault)

    def ingest(self, data: bytes, rules: dict[str, Any], fault: dict[str, Any]) -> None:
        rows = self.decoded(data)
        entry = {
            "at_s": time.monotonic(),
            "key": self.headers["Idempotency-Key"],
            "rows": len(rows),
            "bytes": len(data),
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }
        self.endpoints.requests.setdefault(self.path, []).append(entry)
        status, body = self.decided(data, rows, rules, fault)
        entry["status"] = status
        if fault.get("cut") or fault.get("lost"):
            entry["status"] = "cut" if fault.get("cut") else "lost"
            self.close_connection = True
            return
        self.answer(status, body, {"Retry-After": fault.get("retry_after"), "Location": fault.get("location")})

    def decided(self, data: bytes, rows: list[Any], rules: dict[str, Any], fault: dict[str, Any]) -> tuple[int, Any]:
        if fault.get("cut") or "status" in fault:
            return fault.get("status", 0), fault.get("body", {"error": {"message": "as the script says"}})
        if "token" in rules and self.headers["Authorization"] != f"Bearer {rules['token']}":
            return 401, {"error": {"message": "who are you?"}}
        if self.endpoints.has(self.path, self.headers["Idempotency-Key"]):
            return 200, {"new": False}
        if len(data) > rules.get("max_bytes", len(data)) or len(rows) > rules.get("max_rows", len(rows)):
            return 413, {"error": {"message": "too large"}}
        refuse = rules.get("refuse")
        for at, row in enumerate(rows) if refuse else ():
            if row[refuse["column"]] == refuse["value"]:
                error = {"message": f"{refuse['value']!r} is not welcome"}
                return refuse.get("status", 422), {"error": error | ({"row": at} if refuse.get("names_row") else {})}
        return 200, {"new": self.endpoints.store(self.path, self.headers["Idempotency-Key"], rows)}

    def decoded(self, data: bytes) -> list[Any]:
        if self.headers["Content-Type"] == "application/vnd.apache.arrow.stream":
            import pyarrow as pa

            return list(pa.ipc.open_stream(data).read_all().to_pylist())
        text = gzip.decompress(data) if self.headers["Content-Encoding"] == "gzip" else data
        return [json.loads(line) for line in text.splitlines()]

    def answer(self, status: int, body: Any, headers: dict[str, str | None] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def main(file: str) -> None:
    Handler.endpoints = Endpoints(file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@dataclass(frozen=True)
class Endpoint:
    """One path of a running receiver, as a test sees it."""

    server: str
    path: str

    @property
    def url(self) -> str:
        return self.server + self.path

    def control(self, **rules: Any) -> None:
        self._called("/_control", json.dumps({"path": self.path, **rules}).encode())

    def rows(self) -> list[Any]:
        return self._called(f"/_rows?path={self.path}")

    def requests(self) -> list[Any]:
        return self._called(f"/_requests?path={self.path}")

    def _called(self, path: str, data: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.server + path, data, timeout=30) as response:
            return json.load(response)


@contextlib.contextmanager
def foreign_receiver(folder: Path) -> Iterator[str]:
    """A running receiver; yields its address."""
    command = [sys.executable, __file__, str(folder / "received.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main(sys.argv[1])
