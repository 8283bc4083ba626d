"""The processes of the forward benchmark, and the loop that serves one of them.

    python forwarders.py <role> <argument> …

reads one JSON command per line and answers each with one JSON line; `receive` is a server instead, whose first line is
its address."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import common
import peers
import strandline as sl
from strandline.consumers import work
from strandline.engines.choice import DriverLimit
from strandline.engines.spark import is_running, session

CHUNK_ROWS, LANES, VNODES = 5_000, 4, 16
HEADERS = {"Content-Type": "application/vnd.apache.arrow.stream"}
SINK = "central"


def chunks(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        yield rows.slice(start, CHUNK_ROWS)


def encoded(rows: pa.Table) -> bytes:
    """The body of a request, as our own sink makes it."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return bytes(out.getvalue())


def post(client: httpx.Client, url: str, rows: pa.Table, key: str | None = None) -> None:
    headers = HEADERS | ({"Idempotency-Key": key} if key else {})
    client.post(url, content=encoded(rows), headers=headers).raise_for_status()


class Sender:
    """A sink on table `t` of a lake, which starts at the table's head. With an `engine`, all increments go by it."""

    def __init__(self, folder: str, url: str, engine: str = "") -> None:
        if engine:
            most = 0 if engine == "spark" else 1 << 60
            work.DELIVERY = DriverLimit(most, most)
        self.connects = 0
        sys.addaudithook(self._heard)
        self.lake = sl.Lake(folder)
        self.table = self.lake.table("t")
        self.lake.sink(SINK, "t", to=sl.HttpSink(url, chunk_rows=CHUNK_ROWS, lanes=LANES), start="head")

    def _heard(self, event: str, _: tuple[Any, ...]) -> None:
        self.connects += event == "socket.connect"

    def settle(self) -> None:
        """Until there is nothing to do, also for the tables."""
        while not self.lake.tick().is_idle:
            pass

    def upsert(self, path: str, commits: int = 1) -> None:
        rows = peers.read_ipc(path)
        each = -(-rows.num_rows // commits)
        for start in range(0, rows.num_rows, each):
            self.table.upsert(rows.slice(start, each))

    def tick(self) -> dict[str, Any]:
        begin = time.perf_counter()
        report = self.lake.tick(only=[SINK])
        seconds = time.perf_counter() - begin
        for sink in report.sinks:
            if sink.error is not None:
                raise sink.error
        facts = ("rows", "rows_read", "bytes", "requests", "jobs")
        return {"seconds": seconds, **{name: sum(getattr(sink, name) for sink in report.sinks) for name in facts}}

    def watched(self) -> dict[str, Any]:
        """A tick, and the rows of the data files that it opened."""
        with opened(Path(self.lake.storage.uri)) as files:
            told = self.tick()
        return {**told, "rows_in_files": sum(pq.read_metadata(path).num_rows for path in files)}

    def idle(self, ticks: int) -> dict[str, Any]:
        """Seconds of each of so many idle ticks; then what one more opens, and whether any of them began to talk."""
        connects, seconds = self.connects, []
        for _ in range(ticks):
            begin = time.perf_counter()
            report = self.lake.tick()
            seconds.append(time.perf_counter() - begin)
            if not report.is_idle:
                raise SystemExit(f"a tick was not idle: {report.to_dict()}")
        with opened(Path(self.lake.storage.uri)) as files:
            self.lake.tick()
        return {
            "seconds": seconds,
            "bytes_read": sum(path.stat().st_size for path in files),
            "connects": self.connects - connects,
            "jobs": self._jvms(),
        }

    def _jvms(self) -> int:
        """Without a JVM there is no job; that there is one counts for a job."""
        below = psutil.Process().children(recursive=True)
        return int(is_running()) + sum("java" in process.name() for process in below)


@contextmanager
def opened(folder: Path) -> Iterator[set[Path]]:
    """The data files below a folder that any process opens while the block runs, as the kernel tells. Checkpoints are
    no data."""
    libc, is_opened = ctypes.CDLL(None, use_errno=True), 0x20
    watch = libc.inotify_init1(os.O_NONBLOCK)
    places = {
        libc.inotify_add_watch(watch, parent.encode(), is_opened): Path(parent)
        for parent, _, _ in os.walk(folder)
        if not parent.endswith("_delta_log")
    }

    def heard() -> Iterator[Path]:
        while True:
            try:
                events = os.read(watch, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(events):
                place, _, _, length = struct.unpack_from("iIII", events, at)
                yield places[place] / events[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                at += 16 + length

    files: set[Path] = set()
    try:
        yield files
        files |= {path for path in heard() if path.suffix == ".parquet"}
        known = next(folder.rglob("baseline/*.parquet"))
        known.open("rb").close()
        if known not in set(heard()):
            raise SystemExit("inotify does not tell which files are opened: what a tick reads cannot be seen")
    finally:
        os.close(watch)


class Streaming:
    """Structured Streaming over a folder of Parquet files, to which each increment adds one. What a batch has goes to
    the driver and from there to the receiver, which for so few rows is quicker than from tasks.

    `increment` is a query that handles what is there and ends; a resident one goes on, over a folder of its own."""

    columns = "id long, session string, ts timestamp, kind string, value double, n int, text string"

    def __init__(self, folder: str, url: str) -> None:
        self.spark = session()
        self.folder, self.url, self.added = Path(folder), url, 0
        self.client = httpx.Client(timeout=60)
        self.was_sent = threading.Event()
        self.resident: Any = None
        for name in ("once", "resident"):
            (self.folder / name).mkdir(parents=True)

    def add(self, path: str, to: str = "once") -> None:
        staged = self.folder / "staged.parquet"
        pq.write_table(peers.read_ipc(path), staged)
        self.added += 1
        staged.rename(self.folder / to / f"{self.added:06d}.parquet")

    def increment(self) -> dict[str, Any]:
        begin = time.perf_counter()
        self._query("once").trigger(availableNow=True).start().awaitTermination()
        return {"seconds": time.perf_counter() - begin}

    def reside(self) -> None:
        self.resident = self._query("resident").trigger(processingTime="0 seconds").start()

    def resident_increment(self, path: str) -> dict[str, Any]:
        """From when its file is there to when its rows are at the receiver."""
        self.was_sent.clear()
        self.add(path, to="resident")
        begin = time.perf_counter()
        if not self.was_sent.wait(60):
            raise SystemExit(f"the resident query sent nothing: {self.resident.exception()}")
        return {"seconds": time.perf_counter() - begin}

    def leave(self) -> None:
        self.resident.stop()

    def _query(self, name: str) -> Any:
        def send(frame: Any, batch: int) -> None:
            for at, rows in enumerate(chunks(frame.toArrow())):
                post(self.client, self.url, rows, f"{name}-{batch}-{at}")
            self.was_sent.set()

        frame = self.spark.readStream.schema(self.columns).parquet(str(self.folder / name))
        checkpoint = str(self.folder / f"{name}-checkpoint")
        return frame.writeStream.foreachBatch(send).option("checkpointLocation", checkpoint)


class Resend:
    """Sends table `t` of a lake as it is, all of it, over as many connections as our sink has lanes."""

    def __init__(self, folder: str, url: str) -> None:
        self.table, self.url = sl.Lake(folder).table("t"), url
        self.client = httpx.Client(timeout=60)

    def increment(self) -> dict[str, Any]:
        begin = time.perf_counter()
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(lambda rows: post(self.client, self.url, rows), chunks(self.table.to_arrow())))
        return {"seconds": time.perf_counter() - begin}


class Builder:
    """Makes tables, in a process of its own: to compact a large one may start Spark."""

    def __init__(self, folder: str) -> None:
        self.lake = sl.Lake(folder)

    def build(self, name: str, rows: int) -> None:
        """A compacted table of base rows."""
        table = self.lake.create_table(name, common.SCHEMA, key=["id"], vnodes=VNODES)
        if rows:
            table.upsert(common.base_rows(rows))
            table.compact(full=True)


def receive(folder: str) -> None:
    """What `strandline serve` runs, behind a counter: GET /_count tells the requests and the bytes of their bodies."""
    from strandline.server import run

    count = {"requests": 0, "bytes": 0}
    make_app = run.make_app

    def counted(*arguments: Any, **options: Any) -> Callable[..., Any]:
        app = make_app(*arguments, **options)

        async def call(scope: Any, receive: Any, send: Any) -> None:
            async def heard() -> Any:
                message = await receive()
                count["bytes"] += len(message.get("body", b""))
                return message

            if scope["type"] == "http" and scope["path"] == "/_count":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": json.dumps(count).encode()})
                return
            count["requests"] += scope["type"] == "http"
            await app(scope, heard, send)

        return call

    with mock.patch.object(run, "make_app", counted):
        run.serve(sl.Lake(folder), tokens=None, port=0, on_listening=lambda url: print(url, flush=True))


ROLES: dict[str, Any] = {"sender": Sender, "streaming": Streaming, "resend": Resend, "builder": Builder}


def play(role: str, *arguments: str) -> None:
    # The answers get a descriptor of their own; what a library prints goes to stderr and not between them.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        player = ROLES[role](*arguments)
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(player, command.pop("command"))(**command)
            print(json.dumps(answer or {}), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        play(*sys.argv[1:])
