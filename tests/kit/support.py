"""What several tests share: servers in processes of their own, rows in a comparable form, an oracle for a table."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.model.definition import TableDef
from strandline.storage.commits import read_sealed, seal_actions
from strandline.storage.snapshot import Draft
from strandline.tables.log import prepare

BIN = Path(sys.executable).parent
SRC = Path(sl.__file__).parents[1]
TESTS = Path(__file__).parents[1]
KEY, SECRET, BUCKET = "key", "secret-key", "lakes"
READER = "reader-key"
"""The key of someone who may only read and list."""
TABLE_BUCKET = "tables"
ICEBERG: dict[str, str] = {}
"""The address of the Iceberg REST catalog that belongs to an S3 server, by that server's address."""

ITEMS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())])


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table's rows in an order that does not depend on how they were read; NaN equals NaN here."""
    return sorted((tuple(map(_plain, row.values())) for row in table.to_pylist()), key=repr)


def _plain(value: object) -> object:
    return repr(value) if isinstance(value, float) else value


def by_id(table: sl.Table, **read: Any) -> dict[Any, Any]:
    """The rows of a table of ITEMS shape as {id: name}; fails on a key that occurs twice."""
    rows = table.to_arrow(columns=["id", "name"], **read).to_pylist()
    found = {row["id"]: row["name"] for row in rows}
    assert len(found) == len(rows), "a key occurs twice"
    return found


def files_below(folder: str | Path) -> set[str]:
    """Every file below a folder, temporary ones as well."""
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def data_files(table: sl.Table) -> set[str]:
    """The Parquet files beside a local table's log and baseline that are not checkpoints, claimed or not."""
    root = Path(table.log.storage.uri) / table.entry.folder
    return {name for name in files_below(root) if "_delta_log" not in name}


def claimed_files(table: sl.Table) -> set[str]:
    """The Parquet files that the newest versions of log and baseline claim."""
    return {f"log/{path}" for path in table.log.refresh().snapshot.files} | {
        f"baseline/{path}" for path in table.baseline.refresh().snapshot.files
    }


def trim(table: sl.Table, upto: int) -> None:
    """End the log at its lower side, as retention will: the files up to `upto` leave it in one commit."""
    removed = [file for seq, file in table.log.refresh().by_seq if seq <= upto]
    table.log.delta.commit("TRIM", lambda snapshot, now_ms: Draft(remove=removed, txns={"trim": upto}))


@contextlib.contextmanager
def refused(kind: type[sl.StrandlineError] = sl.Invalid, **fields: Any) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises exactly `kind`, with these fields."""
    with pytest.raises(sl.StrandlineError) as caught:
        yield caught
    assert type(caught.value) is kind, caught.value
    assert fields.items() <= caught.value.fields.items(), caught.value.fields


@contextlib.contextmanager
def nothing_written(table: sl.Table) -> Iterator[None]:
    """The block leaves head, rows and files of a local table as they were."""
    head, rows, files = table.head, rows_of(table.to_arrow()), files_below(table.log.storage.uri)
    yield
    assert table.head == head
    assert rows_of(table.to_arrow()) == rows
    assert files_below(table.log.storage.uri) == files


class Oracle:
    """A table as a plain dict: what `fold` promises, in the simplest words.

    The last change of a key wins and a delete removes it. With a version column a delete clears the key, and after
    that an upsert loses against a higher version."""

    def __init__(self, key: Sequence[str], version: str | None = None) -> None:
        self.key = tuple(key)
        self.version = version
        self.rows: dict[Any, dict[str, Any]] = {}

    def key_of(self, row: Mapping[str, Any]) -> Any:
        return tuple(row[name] for name in self.key)

    def upsert(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in map(dict, rows):
            key = self.key_of(row)
            current = self.rows.get(key)
            if self.version and current is not None and current[self.version] > row[self.version]:
                continue
            self.rows[key] = row

    def delete(self, keys: Iterable[Mapping[str, Any]]) -> None:
        for key in keys:
            self.rows.pop(self.key_of(key), None)

    def copy(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows.values()]


def prepare_both(upserts: pa.Table, deleted: Sequence[Any], definition: TableDef) -> pa.Table:
    """Upserts and deletes of one commit, for a table whose key is one column."""
    (name,) = definition.key
    whole = pa.Table.from_pylist(upserts.to_pylist(), schema=definition.schema)
    keys = pa.Table.from_pylist([{name: key} for key in deleted], schema=pa.schema([definition.schema.field(name)]))
    parts = [prepare(whole, definition, "upsert"), prepare(keys, definition, "delete")]
    return pa.concat_tables(parts).sort_by([("_hash", "ascending"), (name, "ascending")])


def rewrite_commits(folder: Path, change: Callable[[dict[str, Any]], None], root: Path | None = None) -> None:
    """Change actions in the commit files of a folder as a faulty program would have written them: with good digests.

    `root` is the lake's; without it the folder is below `tables/`."""
    top = root or next(parent.parent for parent in folder.parents if parent.name == "tables")
    previous = ""
    for file in sorted(folder.glob("*.json")):
        path = str(file.relative_to(top))
        actions = read_sealed(path, file.read_bytes()).actions
        for action in actions:
            change(action)
            for name in ("actions", "previous", "digest"):
                action.get("commitInfo", action).pop(name, None)
        data, previous = seal_actions(path, actions, previous)
        file.write_bytes(data)


@contextlib.contextmanager
def no_job(spark: Any) -> Iterator[None]:
    """The block starts no Spark job."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    yield
    assert scheduler.numTotalJobs() == before


def plan_of(frame: Any) -> str:
    """The physical plan of a DataFrame as `explain` shows it, before it runs."""
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text.split("== Initial Plan ==")[-1]


# --- processes -------------------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    """For child processes: this source tree, and no crash point that our own environment names."""
    plain = {name: value for name, value in os.environ.items() if name != "STRANDLINE_CRASH"}
    # A process that a test starts may import the kit and the test's own module.
    folders = sorted(str(folder) for folder in TESTS.iterdir() if folder.is_dir())
    path = os.pathsep.join([str(SRC), *folders, plain.get("PYTHONPATH", "")])
    return {**plain, "PYTHONPATH": path, **more}


def python(
    code: str, *arguments: str, timeout_s: float = 120, crash: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own and wait for its end, good or bad."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(**({"STRANDLINE_CRASH": crash} if crash else {}), **more),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start_python(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start Python code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer_of(process: subprocess.Popen[str], timeout_s: float = 120) -> Any:
    """The JSON that a process printed last; its complaint is the test's when it failed."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


# --- servers ---------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def options_for(endpoint: str) -> dict[str, str]:
    return {"endpoint": endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}


@contextlib.contextmanager
def serving(command: Sequence[str], endpoint: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that accepts connections at `endpoint`, ended by its own id."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait_for(endpoint, process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_for(endpoint: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 60) -> None:
    host, port = endpoint.removeprefix("http://").split(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"no server at {endpoint}: {log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def seaweedfs() -> Iterator[str]:
    """A real S3 server with the bucket BUCKET; yields its address."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-weed-"))
    identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
    identity["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
    reader = {
        "name": "reader",
        "credentials": [{"accessKey": READER, "secretKey": SECRET}],
        "actions": ["Read", "List"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity, reader]}))
    (folder / "data").mkdir()
    services = ["s3", "master", "filer", "volume", "admin"]
    ports = iter(free_ports(2 * len(services) + 3))
    # A service's own port first; the gRPC port is not left to its default, port + 10000, which may be taken.
    numbers = {f"{service}.port{kind}": next(ports) for service in services for kind in ("", ".grpc")}
    numbers |= {"s3.port.iceberg": next(ports), "s3.port.lance": next(ports), "webdav.port": next(ports)}
    endpoint = f"http://127.0.0.1:{numbers['s3.port']}"
    command = [str(BIN / "weed"), "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-webdav=false", "-admin.ui=false", f"-s3.config={folder / 's3.json'}"]
    command += [f"-tableBucket={TABLE_BUCKET}"]
    ICEBERG[endpoint] = f"http://127.0.0.1:{numbers['s3.port.iceberg']}"
    command += [f"-{name}={port}" for name, port in numbers.items()]
    try:
        with serving(command, endpoint, folder / "weed.log"):
            _create_bucket(endpoint)
            yield endpoint
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create_bucket(endpoint: str, timeout_s: float = 60) -> None:
    from pyarrow import fs

    deadline = time.monotonic() + timeout_s
    store = fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    while True:
        try:
            store.create_dir(BUCKET)
            # The port answers before a volume can take data.
            with store.open_output_stream(f"{BUCKET}/ready") as stream:
                stream.write(b"yes")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def is_commit(command: str, path: str) -> bool:
    return command == "PUT" and "/_delta_log/" in path and path.split("?")[0].endswith(".json")


def is_part(command: str, path: str) -> bool:
    return command == "PUT" and "partNumber=" in path


def is_completion(command: str, path: str) -> bool:
    return command == "POST" and "uploadId=" in path


class Proxy:
    """A real HTTP proxy in front of the S3 server. `faults` are taken one by one by the requests that `is_aimed` picks:
    lost: forwarded, and the connection is closed instead of an answer; unsent: closed at once; busy: a 503; cut: half
    of the body is forwarded, then both connections are closed; down: from here on every request is closed at once,
    until `is_down` is taken back; a pair of status and code: answered so, as S3 words its errors."""

    def __init__(self, upstream: str) -> None:
        self.is_aimed: Callable[[str, str], bool] = is_commit
        self.faults: list[str | tuple[int, str]] = []
        self.seen: list[str | tuple[int, str]] = []
        self.requests: list[str] = []
        self.is_down = False
        self._lock = threading.Lock()
        host, port = upstream.removeprefix("http://").split(":")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def handle_any(self) -> None:
                fault = proxy.take(self.command, self.path)
                length = int(self.headers.get("Content-Length") or 0)
                if fault == "cut":
                    self.forward_half(length)
                    return
                body = self.rfile.read(length)
                if fault == "unsent":
                    self.close_connection = True
                    return
                if isinstance(fault, tuple):
                    self.answer(fault[0], [], f"<Error><Code>{fault[1]}</Code></Error>".encode())
                    return
                if fault == "busy":
                    self.answer(503, [], b"")
                    return
                upstream = http.client.HTTPConnection(host, int(port), timeout=30)
                try:
                    upstream.request(self.command, self.path, body=body, headers=dict(self.headers))
                    response = upstream.getresponse()
                    data = response.read()
                finally:
                    upstream.close()
                if fault == "lost":
                    self.close_connection = True
                    return
                self.answer(response.status, response.getheaders(), data)

            def forward_half(self, length: int) -> None:
                self.close_connection = True
                upstream = http.client.HTTPConnection(host, int(port), timeout=30)
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(self.rfile.read(length // 2))
                upstream.close()

            def answer(self, status: int, headers: Iterable[tuple[str, str]], data: bytes) -> None:
                self.send_response_only(status)
                known = set()
                for name, value in headers:
                    known.add(name.lower())
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                if "content-length" not in known:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, command: str, path: str) -> str | tuple[int, str]:
        with self._lock:
            self.requests.append(f"{command} {path}")
            if not self.is_down and self.is_aimed(command, path):
                fault = self.faults.pop(0) if self.faults else "ok"
                self.seen.append(fault)
                self.is_down = fault == "down"
                if not self.is_down:
                    return fault
        return "unsent" if self.is_down else "ok"


@contextlib.contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """A proxy that serves as long as the block lasts."""
    proxy = Proxy(upstream)
    threading.Thread(target=proxy.server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()


@contextlib.contextmanager
def one_connect_server() -> Iterator[None]:
    """Wait until no other test process runs a local Spark Connect server: all of them take the same port."""
    with open(Path(tempfile.gettempdir()) / "strandline-tests-connect.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
