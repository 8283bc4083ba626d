"""Forwarding to a receiver: an idle tick, a thousand new rows, a backlog; against Structured Streaming and a resend.

The receiver, which is what `strandline serve` runs, and every contender run in processes of their own. Two tables of
ours, one a hundred times as large, are compacted, as a table is that is looked after, and have a sink each. In every
round each contender gets a thousand rows, a tenth of them with new keys, and sends them; then the receiver's tables
must have exactly the rows that they should. Measured ticks are `lake.tick(only=["central"])`: the care for tables, with
which a tick ends, is no part of forwarding. An idle tick is a whole `lake.tick()`. What it reads the kernel tells
(inotify); what it sends the receiver, which counts its requests, and the sender's attempts to connect."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import common
import peers
import strandline as sl
from common import Batches, Contender, Expected, Samples, ratio, say, show, significant
from strandline import plan
from strandline.spark import is_running

NEW_ROWS, NEW_SHARE = 1_000, 0.1
CHUNK_ROWS, LANES, VNODES = 5_000, 4, 16
BACKLOG_ROWS, BACKLOG_COMMITS, BACKLOG_ROUNDS = 500_000, 20, 3
IDLE_TICKS, WARMUPS = 20, 3
SINK = "central"
PARTS = ("noop", "increment", "backlog", "receiver")
SMALL, LARGE, STREAMING, RESIDENT = "strandline", "strandline_large", "streaming", "streaming_resident"
RESEND, RESEND_LARGE = "resend", "resend_large"
ENGINES = ("driver", "spark")
ALONE = "alone"
HEADERS = {"Content-Type": "application/vnd.apache.arrow.stream"}


# --- roles: each is a process ---------------------------------------------------------------------------------


class Sender:
    """A sink on table `t` of a lake, which starts at the table's head. With an `engine`, large increments go by it."""

    def __init__(self, folder: str, url: str, engine: str = "") -> None:
        if engine:
            plan.DRIVER_ROWS, plan.DRIVER_BYTES = (0, 0) if engine == "spark" else (1 << 60, 1 << 60)
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
        """Seconds of each of so many idle ticks, and what they touched."""
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
        """No JVM, no job: what counts as one is that there is a JVM at all."""
        below = psutil.Process().children(recursive=True)
        return int(is_running()) + sum("java" in process.name() for process in below)


@contextmanager
def opened(folder: Path) -> Iterator[set[Path]]:
    """The Parquet files below a folder that any process opens while the block runs; checkpoints are no data."""
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


def encoded(rows: pa.Table) -> bytes:
    """The body of a request, as our own sink makes it."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return out.getvalue().to_pybytes()


def post(client: httpx.Client, url: str, rows: pa.Table, key: str | None) -> None:
    headers = HEADERS | ({"Idempotency-Key": key} if key else {})
    client.post(url, content=encoded(rows), headers=headers).raise_for_status()


def chunks(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        yield rows.slice(start, CHUNK_ROWS)


class Streaming:
    """Structured Streaming over a folder of Parquet files, to which each increment adds one. What a batch has goes to
    the driver and from there to the receiver, which for so few rows is quicker than from tasks.

    `increment` is a query that handles what is there and ends; a resident one goes on, over a folder of its own."""

    columns = "id long, session string, ts timestamp, kind string, value double, n int, text string"

    def __init__(self, folder: str, url: str) -> None:
        from strandline.spark import session

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
        return frame.writeStream.foreachBatch(send).option(
            "checkpointLocation", str(self.folder / f"{name}-checkpoint")
        )


class Resend:
    """Sends table `t` of a lake as it is, all of it, over as many connections as our sink has lanes."""

    def __init__(self, folder: str, url: str) -> None:
        self.table, self.url = sl.Lake(folder).table("t"), url
        self.client = httpx.Client(timeout=60)

    def increment(self) -> dict[str, Any]:
        begin = time.perf_counter()
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(lambda rows: post(self.client, self.url, rows, None), chunks(self.table.to_arrow())))
        return {"seconds": time.perf_counter() - begin}


class Builder:
    """Makes tables, where Spark may be needed: no other process of ours has one before it asks."""

    def __init__(self, folder: str) -> None:
        self.lake = sl.Lake(folder)

    def build(self, name: str, rows: int) -> None:
        """A compacted table of base rows."""
        table = self.lake.create_table(name, common.SCHEMA, key=["id"], vnodes=VNODES)
        if rows:
            table.upsert(common.base_rows(rows))
            table.compact(full=True)


def receive(folder: str) -> None:
    """What `strandline serve` runs, with a counter before it: GET /_count."""
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
    """Answer commands, one JSON object a line, as `peers` does."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever a library prints must not get between the answers
        player = ROLES[role](*arguments)
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(player, command.pop("command"))(**command)
            print(json.dumps(answer or {}), file=answers, flush=True)


class Process(common.Worker):
    """A role in its process."""

    def __init__(self, role: str, *arguments: object) -> None:
        self.contender = Contender(role)
        command = [sys.executable, __file__, role, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Receiver:
    """The receiver's process, and its lake as another process sees it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, "receive", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.lake = sl.Lake(folder)

    def ingest(self, table: str) -> str:
        return f"{self.url}/ingest/{table}"

    def count(self) -> dict[str, int]:
        return dict(httpx.get(f"{self.url}/_count").json())

    def check(self, table: str, expected: Expected) -> None:
        expected.check(table, *peers.first_row(self.lake.sql(f"select count(*), sum(value) from {table}")))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


# --- the parts --------------------------------------------------------------------------------------------------


class Setting:
    """What the parts share."""

    def __init__(self, folder: Path, receiver: Receiver, sizes: dict[str, int], repeats: int, stack: ExitStack) -> None:
        self.folder, self.receiver, self.sizes, self.repeats = folder, receiver, sizes, repeats
        self._stack = stack

    def start(self, role: str, *arguments: object) -> Process:
        process = Process(role, *arguments)
        self._stack.callback(process.close)
        return process


def build(folder: Path, tables: dict[str, int]) -> None:
    builder = Process("builder", folder)
    for name, rows in tables.items():
        builder.ask("build", name=name, rows=rows)
        say(f"built {folder.name}/{name}: {rows:,} rows")
    builder.close()


def idle(setting: Setting, senders: dict[str, Process]) -> dict[str, Any]:
    """Idle ticks of both tables in turn; what they read, sent and started, over all rounds."""
    for sender in senders.values():
        sender.ask("tick")
        sender.ask("settle")
    samples = {name: Samples() for name in senders}
    told: list[dict[str, Any]] = []
    before = setting.receiver.count()
    for round_ in range(1 + setting.repeats):
        for name in common.turned(list(senders), round_):
            told.append(senders[name].ask("idle", ticks=IDLE_TICKS))
            samples[name].add(statistics.median(told[-1]["seconds"]), is_warmup=round_ == 0)
    after = setting.receiver.count()
    # Asking for the count is no request that is counted.
    sent = after["bytes"] - before["bytes"]
    return {
        "seconds": samples,
        "bytes": sent + sum(answer["bytes_read"] for answer in told),
        "requests": after["requests"] - before["requests"],
        "connects": sum(answer["connects"] for answer in told),
        "jobs": max(answer["jobs"] for answer in told),
    }


def increments(setting: Setting, senders: dict[str, Process]) -> dict[str, Any]:
    """Rounds of a thousand rows: first they are written for everyone, then each contender sends them, in turn."""
    receiver, sizes, folder = setting.receiver, setting.sizes, setting.folder
    streaming = setting.start("streaming", folder / "streaming", receiver.ingest(STREAMING))
    resend = setting.start("resend", folder / "small", receiver.ingest(RESEND))
    batches = {name: Batches(sizes[name], new_share=NEW_SHARE) for name in sizes}
    expected = {name: Expected(common.base_rows(sizes[name])) for name in sizes}
    streaming.ask("add", path=str(common.write_ipc(common.base_rows(sizes["small"]), folder / "base.arrow")))
    streaming.ask("increment")
    samples = {name: Samples() for name in (SMALL, LARGE, STREAMING, RESEND)}
    ticks: list[dict[str, Any]] = []

    def act(name: str, round_: int) -> float:
        if name in (STREAMING, RESEND):
            return float((streaming if name == STREAMING else resend).ask("increment")["seconds"])
        sender = senders["small" if name == SMALL else "large"]
        # In a warm-up it is seen what they read; that takes time.
        ticks.append(sender.ask("watched" if round_ < WARMUPS else "tick"))
        return float(ticks[-1]["seconds"])

    def new(size: str) -> str:
        batch = batches[size].make(NEW_ROWS)
        expected[size].apply(batch)
        return str(common.write_ipc(batch, folder / f"{size}.arrow"))

    for round_ in range(WARMUPS + setting.repeats):
        for size in sizes:
            path = new(size)
            senders[size].ask("upsert", path=path)
            if size == "small":
                streaming.ask("add", path=path)
        for name in common.turned(list(samples), round_):
            samples[name].add(act(name, round_), is_warmup=round_ < WARMUPS)
        for name in (SMALL, LARGE, STREAMING, RESEND):
            receiver.check(name, expected["large" if name == LARGE else "small"])
        last = ", ".join(f"{n} {show((s.seconds or s.warmup_seconds)[-1], 'ms')}" for n, s in samples.items())
        say(f"round {round_ - WARMUPS + 1} of {setting.repeats}: {last}")

    samples[RESIDENT] = Samples()
    streaming.ask("reside")
    for round_ in range(1 + setting.repeats // 3):
        path = new("small")
        samples[RESIDENT].add(streaming.ask("resident_increment", path=path)["seconds"], is_warmup=round_ == 0)
        receiver.check(STREAMING, expected["small"])
    streaming.ask("leave")

    samples[RESEND_LARGE] = Samples()
    large = setting.start("resend", folder / "large", receiver.ingest(RESEND_LARGE))
    samples[RESEND_LARGE].add(large.ask("increment")["seconds"])
    receiver.check(RESEND_LARGE, expected["large"])
    say(f"{RESEND_LARGE} {show(samples[RESEND_LARGE].median, ' s')}")
    return {"seconds": samples, "ticks": ticks}


def backlog(setting: Setting, rows: int) -> dict[str, Samples]:
    """A sink that was away: all rows of a table changed in some commits, sent in one tick, by either engine."""
    setting.receiver.lake.catalog.refresh()
    senders = {}
    for engine in ENGINES:
        build(setting.folder / engine, {"t": 1_000})
        senders[engine] = setting.start(
            "sender", setting.folder / engine, setting.receiver.ingest(f"backlog_{engine}"), engine
        )
        senders[engine].ask("tick")
    samples = {engine: Samples() for engine in ENGINES}
    for round_ in range(1 + min(BACKLOG_ROUNDS, setting.repeats)):
        table = common.make_rows(np.random.default_rng(round_).permutation(rows), seed=round_)
        path = str(common.write_ipc(table, setting.folder / "backlog.arrow"))
        expected = Expected(table.sort_by("id"))
        for engine in common.turned(ENGINES, round_):
            senders[engine].ask("upsert", path=path, commits=BACKLOG_COMMITS)
            told = senders[engine].ask("tick")
            if told["rows"] != rows or bool(told["jobs"]) != (engine == "spark"):
                raise SystemExit(f"{engine} sent {told['rows']:,} rows of {rows:,} in {told['jobs']} Spark jobs")
            samples[engine].add(told["seconds"], is_warmup=round_ == 0)
            setting.receiver.check(f"backlog_{engine}", expected)
            say(f"backlog {round_} by the {engine}: {rows / told['seconds']:,.0f} rows/s")
    for engine in ENGINES:
        senders[engine].close()
    return samples


def alone(setting: Setting, rows: int) -> Samples:
    """Prepared chunks, as a sink's lanes would send them, over as many connections; how long the receiver takes."""
    place = urlsplit(setting.receiver.ingest(ALONE))
    samples = Samples()

    def send(lane: Sequence[tuple[bytes, dict[str, str]]]) -> None:
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=60)
        for data, headers in lane:
            connection.request("POST", place.path, data, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise SystemExit(f"the receiver answered {answer.status}: {said!r}")
        connection.close()

    for round_ in range(1 + min(BACKLOG_ROUNDS, setting.repeats)):
        table = common.make_rows(np.random.default_rng(round_).permutation(rows), seed=round_)
        pieces = list(chunks(table))
        lanes = [prepared(pieces[lane::LANES], lane, uuid.uuid4().hex) for lane in range(LANES)]
        begin = time.perf_counter()
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(send, lanes))
        samples.add(time.perf_counter() - begin, is_warmup=round_ == 0)
        setting.receiver.check(ALONE, Expected(table.sort_by("id")))
    return samples


def prepared(pieces: Sequence[pa.Table], vnode: int, producer: str) -> list[tuple[bytes, dict[str, str]]]:
    """Requests of the forward protocol: each piece is a commit of one vnode."""
    requests = []
    for seq, rows in enumerate(pieces, 1):
        hidden = {
            "_op": pa.array(["upsert"] * rows.num_rows),
            "_vnode": pa.array(np.full(rows.num_rows, vnode), pa.int32()),
            "_seq": pa.array(np.full(rows.num_rows, seq), pa.int64()),
            "_index": pa.array(np.arange(rows.num_rows), pa.int64()),
        }
        whole = pa.table({**hidden, **{name: rows[name] for name in rows.column_names}})
        ranges = [[vnode, vnode, seq, 0, seq + 1, 0]]
        chunk = {"version": 1, "producer": producer, "is_first": seq == 1, "ranges": ranges, "source": {}}
        requests.append((encoded(whole), HEADERS | {"Strandline-Chunk": json.dumps(chunk)}))
    return requests


# --- results ----------------------------------------------------------------------------------------------------


def median_of(samples: dict[str, Samples], name: str) -> float | None:
    return samples[name].median if name in samples else None


def main() -> None:
    parser = common.arguments("forward benchmark", rows=2_000_000, repeats=15)
    parser.add_argument("--only", help=f"parts, by comma; known: {', '.join(PARTS)}")
    args = common.parse(parser)
    chosen = args.only.split(",") if args.only else list(PARTS)
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    sizes = {"small": max(2_000, args.rows // 100), "large": args.rows}
    backlog_rows = 20_000 if args.quick else BACKLOG_ROWS
    noop: dict[str, Any] = {}
    increment: dict[str, Any] = {}
    engines: dict[str, Samples] = {}
    receiving = Samples()

    with common.workspace(args.dir) as folder, ExitStack() as stack:
        tables: dict[str, int] = {ALONE: 0, **{f"backlog_{engine}": 0 for engine in ENGINES}}
        if {"noop", "increment"} & set(chosen):
            for name, rows in sizes.items():
                build(folder / name, {"t": rows})
            tables |= {SMALL: sizes["small"], LARGE: sizes["large"]}
            tables |= {STREAMING: 0, RESEND: 0, RESEND_LARGE: 0}
        build(folder / "received", tables)
        receiver = Receiver(folder / "received")
        stack.callback(receiver.close)
        setting = Setting(folder, receiver, sizes, args.repeats, stack)
        if {"noop", "increment"} & set(chosen):
            urls = {"small": receiver.ingest(SMALL), "large": receiver.ingest(LARGE)}
            senders = {name: setting.start("sender", folder / name, urls[name]) for name in sizes}
            noop = idle(setting, senders)
            say("idle ticks are done")
            if "increment" in chosen:
                increment = increments(setting, senders)
        if "backlog" in chosen:
            engines = backlog(setting, backlog_rows)
        if "receiver" in chosen:
            receiving = alone(setting, backlog_rows)

    took: dict[str, Samples] = increment.get("seconds", {})
    ours = {"small": median_of(took, SMALL), "large": median_of(took, LARGE)}
    still = {name: median_of(noop.get("seconds", {}), name) for name in sizes}
    per_s = {engine: ratio(backlog_rows, median_of(engines, engine)) for engine in ENGINES}
    seen = [tick for tick in increment.get("ticks", []) if "rows_in_files" in tick]
    common.print_table(
        f"{NEW_ROWS:,} new rows, tables of {sizes['small']:,} and {sizes['large']:,} rows (medians)",
        ["contender", "rows in the table", "increment", "x ours", "idle tick"],
        [
            [
                name,
                f"{sizes['large' if name in (LARGE, RESEND_LARGE) else 'small']:,}",
                show(sample.median, "ms"),
                show(ratio(sample.median, ours["large" if name in (LARGE, RESEND_LARGE) else "small"]), "x"),
                show({SMALL: still["small"], LARGE: still["large"]}.get(name), "ms"),
            ]
            for name, sample in took.items()
        ],
    )
    alone_per_s = ratio(backlog_rows, receiving.median)
    rates = {**{f"backlog by the {engine}": per_s[engine] for engine in ENGINES}, "receiver alone": alone_per_s}
    common.print_table(
        f"{backlog_rows:,} rows to a Strandline receiver (medians)",
        ["", "rows/s"],
        [[name, "-" if rate is None else f"{rate:,.0f}"] for name, rate in rates.items()],
    )
    figures = {
        "noop_bytes": noop.get("bytes"),
        "noop_jobs": noop.get("jobs"),
        "noop_growth": ratio(still["large"], still["small"]),
        "read_per_new": max((tick["rows_in_files"] / NEW_ROWS for tick in seen), default=None),
        "sent_per_new": max((tick["rows"] / NEW_ROWS for tick in increment.get("ticks", [])), default=None),
        "tick_growth": ratio(ours["large"], ours["small"]),
        "vs_structured_streaming": ratio(median_of(took, STREAMING), ours["small"]),
        "vs_full_resend": ratio(median_of(took, RESEND_LARGE), ours["large"]),
        "vs_full_resend_20k": ratio(median_of(took, RESEND), ours["small"]),
        "rows_per_s": max((rate for rate in per_s.values() if rate is not None), default=None),
        "receiver_rows_per_s": alone_per_s,
    }
    detail = {
        "rows": sizes,
        "new_rows": NEW_ROWS,
        "repeats": args.repeats,
        "chunk_rows": CHUNK_ROWS,
        "lanes": LANES,
        "increment_s": {name: sample.rounded for name, sample in took.items()},
        "idle_s": {name: sample.rounded for name, sample in noop.get("seconds", {}).items()},
        "idle_requests": noop.get("requests"),
        "idle_connects": noop.get("connects"),
        "vs_resident_streaming": ratio(median_of(took, RESIDENT), ours["small"]),
        "vs_structured_streaming_large": ratio(median_of(took, STREAMING), ours["large"]),
        "backlog_rows": backlog_rows,
        "backlog_s": {engine: sample.rounded for engine, sample in engines.items()},
        "rows_per_s": {engine: significant(rate) for engine, rate in per_s.items()},
        "receiver_s": receiving.rounded,
        "versions": {name: version(name) for name in ("pyspark", "pyarrow", "httpx", "uvicorn")},
    }
    common.print_result("forward", figures, detail)


if __name__ == "__main__":
    if sys.argv[1:2] == ["receive"]:
        receive(sys.argv[2])
    elif sys.argv[1:2] and sys.argv[1] in ROLES:
        play(*sys.argv[1:])
    else:
        main()
