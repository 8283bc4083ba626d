"""Forwarding to a receiver: an idle tick, a thousand new rows, a backlog; against Structured Streaming and a resend.

The receiver, which is what `strandline serve` runs, and every contender run in processes of their own. Two tables of
ours, one a hundred times as large, are compacted, as a table is that is looked after, and have a sink each. In every
round each contender gets a thousand rows, a tenth of them with new keys, and sends them; then the receiver's tables
must have exactly the rows that they should. Measured ticks are `lake.tick(only=["central"])`: the care for tables, with
which a tick ends, is no part of forwarding. An idle tick is a whole `lake.tick()`. What it reads the kernel tells
(inotify); what it sends the receiver, which counts its requests, and the sender's attempts to connect."""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa

import common
import forwarders
import peers
import strandline as sl
from common import Batches, Contender, Expected, Samples, ratio, say, show
from forwarders import CHUNK_ROWS, HEADERS, LANES

NEW_ROWS, NEW_SHARE = 1_000, 0.1
BACKLOG_ROWS, BACKLOG_COMMITS, BACKLOG_ROUNDS = 500_000, 20, 3
IDLE_TICKS, WARMUPS = 20, 6
PARTS = ("noop", "increment", "backlog", "receiver")
ENGINES = ("driver", "spark")
# Contenders, which are also the names of the receiver's tables.
OURS, OURS_LARGE, STREAMING, RESIDENT = "strandline", "strandline_large", "streaming", "streaming_resident"
RESEND, RESEND_LARGE, ALONE = "resend", "resend_large", "alone"


class Process(common.Worker):
    """A role of `forwarders` in its process."""

    def __init__(self, role: str, *arguments: object) -> None:
        self.contender = Contender(role)
        command = [sys.executable, forwarders.__file__, role, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Receiver:
    """The receiver's process, and its lake as another process sees it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, forwarders.__file__, "receive", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.lake = sl.Lake(folder)

    def ingest(self, table: str) -> str:
        return f"{self.url}/ingest/{table}"

    def count(self) -> dict[str, int]:
        """What it was sent so far; this question does not count."""
        return dict(httpx.get(f"{self.url}/_count").json())

    def check(self, table: str, expected: Expected) -> None:
        expected.check(table, *peers.first_row(self.lake.sql(f"select count(*), sum(value) from {table}")))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@dataclass
class Setting:
    """What the parts share. `sizes` are the rows of our two tables."""

    folder: Path
    receiver: Receiver
    sizes: dict[str, int]
    repeats: int
    stack: ExitStack

    def start(self, role: str, *arguments: object) -> Process:
        process = Process(role, *arguments)
        self.stack.callback(process.close)
        return process


def build(folder: Path, tables: dict[str, int]) -> None:
    builder = Process("builder", folder)
    for name, rows in tables.items():
        builder.ask("build", name=name, rows=rows)
        say(f"built {folder.name}/{name}: {rows:,} rows")
    builder.close()


# --- the parts ----------------------------------------------------------------------------------------------------


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
    say("idle ticks: " + ", ".join(f"{name} {show(sample.median, 'ms')}" for name, sample in samples.items()))
    return {
        "seconds": samples,
        "bytes": after["bytes"] - before["bytes"] + sum(answer["bytes_read"] for answer in told),
        "requests": after["requests"] - before["requests"],
        "connects": sum(answer["connects"] for answer in told),
        "jobs": max(answer["jobs"] for answer in told),
    }


def increments(setting: Setting, senders: dict[str, Process]) -> dict[str, Any]:
    """Rounds of a thousand rows: first they are written for everyone, then each contender sends them, in turn."""
    receiver, sizes, folder = setting.receiver, setting.sizes, setting.folder
    streaming = setting.start("streaming", folder / "streaming", receiver.ingest(STREAMING))
    resend = setting.start("resend", folder / "small", receiver.ingest(RESEND))
    batches = {size: Batches(rows, new_share=NEW_SHARE) for size, rows in sizes.items()}
    expected = {size: Expected(common.base_rows(rows)) for size, rows in sizes.items()}
    samples = {name: Samples() for name in (OURS, OURS_LARGE, STREAMING, RESEND)}
    ticks: list[dict[str, Any]] = []

    def new(size: str) -> str:
        """The file of the next batch for a table of that size."""
        batch = batches[size].make(NEW_ROWS)
        expected[size].apply(batch)
        return str(common.write_ipc(batch, folder / f"{size}.arrow"))

    def act(name: str, is_warmup: bool) -> float:
        if name in (STREAMING, RESEND):
            return float((streaming if name == STREAMING else resend).ask("increment")["seconds"])
        # In a warm-up it is seen what they read; that takes time.
        told = senders["large" if name == OURS_LARGE else "small"].ask("watched" if is_warmup else "tick")
        ticks.append(told)
        return float(told["seconds"])

    streaming.ask("add", path=str(common.write_ipc(common.base_rows(sizes["small"]), folder / "base.arrow")))
    streaming.ask("increment")
    for round_ in range(WARMUPS + setting.repeats):
        for size, sender in senders.items():
            path = new(size)
            sender.ask("upsert", path=path)
            if size == "small":
                streaming.ask("add", path=path)
        for name in common.turned(list(samples), round_):
            samples[name].add(act(name, round_ < WARMUPS), is_warmup=round_ < WARMUPS)
        for name in samples:
            receiver.check(name, expected["large" if name == OURS_LARGE else "small"])
        last = ", ".join(f"{n} {show((s.seconds or s.warmup_seconds)[-1], 'ms')}" for n, s in samples.items())
        say(f"round {round_ - WARMUPS + 1} of {setting.repeats}: {last}")

    samples[RESIDENT] = Samples()
    streaming.ask("reside")
    for round_ in range(1 + setting.repeats):
        told = streaming.ask("resident_increment", path=new("small"))
        samples[RESIDENT].add(told["seconds"], is_warmup=round_ == 0)
        receiver.check(STREAMING, expected["small"])
    streaming.ask("leave")

    large = setting.start("resend", folder / "large", receiver.ingest(RESEND_LARGE))
    samples[RESEND_LARGE] = Samples([large.ask("increment")["seconds"]])
    receiver.check(RESEND_LARGE, expected["large"])
    for process in (streaming, resend, large):
        process.close()
    return {"seconds": samples, "ticks": ticks}


def backlog(setting: Setting, rows: int) -> dict[str, Samples]:
    """A sink that was away: rows of some commits, sent in one tick, by either engine in turn."""
    senders = {}
    for engine in ENGINES:
        build(setting.folder / engine, {"t": 1_000})
        url = setting.receiver.ingest(f"backlog_{engine}")
        senders[engine] = setting.start("sender", setting.folder / engine, url, engine)
        senders[engine].ask("tick")
    samples = {engine: Samples() for engine in ENGINES}
    for round_ in range(1 + min(BACKLOG_ROUNDS, setting.repeats)):
        table = common.make_rows(np.random.default_rng(round_).permutation(rows), seed=round_)
        path = str(common.write_ipc(table, setting.folder / "backlog.arrow"))
        for engine in common.turned(ENGINES, round_):
            senders[engine].ask("upsert", path=path, commits=BACKLOG_COMMITS)
            told = senders[engine].ask("tick")
            if told["rows"] != rows or bool(told["jobs"]) != (engine == "spark"):
                raise SystemExit(f"{engine} sent {told['rows']:,} rows of {rows:,} in {told['jobs']} Spark jobs")
            samples[engine].add(told["seconds"], is_warmup=round_ == 0)
            setting.receiver.check(f"backlog_{engine}", Expected(table.sort_by("id")))
            say(f"backlog {round_} by {engine}: {rows / told['seconds']:,.0f} rows/s")
    for sender in senders.values():
        sender.close()
    return samples


def alone(setting: Setting, rows: int) -> Samples:
    """Prepared chunks over as many connections as a sink has lanes: how long the receiver takes for them."""
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
        pieces = list(forwarders.chunks(table))
        lanes = [prepared(pieces[lane::LANES], lane) for lane in range(LANES)]
        begin = time.perf_counter()
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(send, lanes))
        samples.add(time.perf_counter() - begin, is_warmup=round_ == 0)
        setting.receiver.check(ALONE, Expected(table.sort_by("id")))
    return samples


def prepared(pieces: Sequence[pa.Table], vnode: int) -> list[tuple[bytes, dict[str, str]]]:
    """Requests of the forward protocol: each piece is a commit of one vnode of a sink of its own."""
    requests, producer = [], uuid.uuid4().hex
    for seq, rows in enumerate(pieces, 1):
        count = rows.num_rows
        hidden = {
            "_op": pa.array(["upsert"] * count),
            "_vnode": pa.array(np.full(count, vnode), pa.int32()),
            "_seq": pa.array(np.full(count, seq), pa.int64()),
            "_index": pa.array(np.arange(count), pa.int64()),
        }
        whole = pa.table({**hidden, **{name: rows[name] for name in rows.column_names}})
        ranges = [[vnode, vnode, seq, 0, seq + 1, 0]]
        sender = {"version": 1, "sink": producer, "life": 1, "source": {}}
        chunk = {**sender, "is_first": seq == 1, "ranges": ranges}
        requests.append((forwarders.encoded(whole), HEADERS | {"Strandline-Chunk": json.dumps(chunk)}))
    return requests


# --- results ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = common.arguments("forward benchmark", rows=2_000_000, repeats=21)
    parser.add_argument("--only", help=f"parts, by comma; known: {', '.join(PARTS)}")
    args = common.parse(parser)
    chosen = set(args.only.split(",") if args.only else PARTS)
    if unknown := sorted(chosen - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    sizes = {"small": max(2_000, args.rows // 100), "large": args.rows}
    backlog_rows = 20_000 if args.quick else BACKLOG_ROWS
    is_followed = bool(chosen & {"noop", "increment"})
    noop: dict[str, Any] = {}
    increment: dict[str, Any] = {}
    engines: dict[str, Samples] = {}
    receiving = Samples()

    with common.workspace(args.dir) as folder, ExitStack() as stack:
        tables = dict.fromkeys([STREAMING, RESEND, RESEND_LARGE, *(f"backlog_{each}" for each in ENGINES), ALONE], 0)
        if is_followed:
            for size, rows in sizes.items():
                build(folder / size, {"t": rows})
            tables |= {OURS: sizes["small"], OURS_LARGE: sizes["large"]}
        build(folder / "received", tables)
        receiver = Receiver(folder / "received")
        stack.callback(receiver.close)
        setting = Setting(folder, receiver, sizes, args.repeats, stack)
        if is_followed:
            urls = {"small": receiver.ingest(OURS), "large": receiver.ingest(OURS_LARGE)}
            senders = {size: setting.start("sender", folder / size, urls[size]) for size in sizes}
            noop = idle(setting, senders)
            increment = increments(setting, senders) if "increment" in chosen else {}
        if "backlog" in chosen:
            engines = backlog(setting, backlog_rows)
        if "receiver" in chosen:
            receiving = alone(setting, backlog_rows)

    took: dict[str, Samples] = increment.get("seconds", {})
    ticks: list[dict[str, Any]] = increment.get("ticks", [])
    still: dict[str, Samples] = noop.get("seconds", {})

    def seconds(samples: dict[str, Samples], name: str) -> float | None:
        return samples[name].median if name in samples else None

    def size_of(name: str) -> str:
        return "large" if name in (OURS_LARGE, RESEND_LARGE) else "small"

    def against(name: str) -> float | None:
        """A contender's time over ours, for a table of the same size."""
        return ratio(seconds(took, name), seconds(took, OURS_LARGE if size_of(name) == "large" else OURS))

    per_s = {engine: ratio(backlog_rows, seconds(engines, engine)) for engine in ENGINES}
    receiver_per_s = ratio(backlog_rows, receiving.median)
    if took:
        common.print_table(
            f"{NEW_ROWS:,} new rows (medians)",
            ["contender", "rows in the table", "increment", "x ours", "idle tick"],
            [
                [
                    name,
                    f"{sizes[size_of(name)]:,}",
                    show(sample.median, "ms"),
                    show(against(name), "x"),
                    show(seconds(still, size_of(name)) if name in (OURS, OURS_LARGE) else None, "ms"),
                ]
                for name, sample in took.items()
            ],
        )
    rates = {**{f"backlog by {each}": per_s[each] for each in ENGINES}, "receiver alone": receiver_per_s}
    if any(rates.values()):
        common.print_table(
            f"{backlog_rows:,} rows to a Strandline receiver (medians)",
            ["", "rows/s"],
            [[name, "-" if rate is None else f"{rate:,.0f}"] for name, rate in rates.items()],
        )
    figures = {
        "noop_bytes": noop.get("bytes"),
        "noop_jobs": noop.get("jobs"),
        "noop_growth": ratio(seconds(still, "large"), seconds(still, "small")),
        "read_per_new": max(
            (told["rows_in_files"] / NEW_ROWS for told in ticks if "rows_in_files" in told), default=None
        ),
        "sent_per_new": max((told["rows"] / NEW_ROWS for told in ticks), default=None),
        "tick_growth": ratio(seconds(took, OURS_LARGE), seconds(took, OURS)),
        "vs_structured_streaming": against(STREAMING),
        "vs_full_resend": against(RESEND_LARGE),
        "vs_full_resend_20k": against(RESEND),
        "rows_per_s": max((rate for rate in per_s.values() if rate is not None), default=None),
        "receiver_rows_per_s": receiver_per_s,
    }
    detail = {
        "rows": sizes,
        "new_rows": NEW_ROWS,
        "repeats": args.repeats,
        "chunk_rows": CHUNK_ROWS,
        "lanes": LANES,
        "increment_s": {name: sample.rounded for name, sample in took.items()},
        "increment_jobs": max((told["jobs"] for told in ticks), default=None),
        "idle_s": {name: sample.rounded for name, sample in still.items()},
        "idle_requests": noop.get("requests"),
        "idle_connects": noop.get("connects"),
        "vs_resident_streaming": against(RESIDENT),
        "backlog_rows": backlog_rows,
        "backlog_s": {engine: sample.rounded for engine, sample in engines.items()},
        "backlog_rows_per_s": per_s,
        "receiver_s": receiving.rounded,
        "versions": {name: version(name) for name in ("pyspark", "pyarrow", "httpx", "uvicorn")},
    }
    common.print_result("forward", figures, detail)


if __name__ == "__main__":
    main()
