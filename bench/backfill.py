"""History delivered to a new sink on Spark while a writer commits 1,000 rows a second; against an export of the same
rows, and against Spark's own read and write of them.

Two tables: narrow rows, and wide ones with a large text that repeats. Each contender runs in a Spark session that is
warm. The sink's runner is a process of its own, which is killed when half of the history is delivered, and started
again. The age of a live change is the time from its commit until the manifest of its batch exists; the writer changes
keys at the beginning of the order, which are delivered first. At the end each destination must equal its table."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa

import common
import forwarders
import spark as spark_bench
import strandline as sl
from common import Samples, ratio, say, show, significant
from strandline.consumers import ranges, rounds, work
from strandline.engines.choice import DriverLimit

LIVE_ROWS, LIVE_EVERY_S = 100, 0.1
VNODES = 16
RATE_ROWS, RATE_S = 20_000, 60.0
WIDE_ROWS = 200_000
SMALL_ROUNDS = "BENCH_ROUND_ROWS"
_LOOK_S = 0.05


# --- the processes ------------------------------------------------------------------------------------------


def run_sink(root: str, name: str, table: str, to: str) -> None:
    """The runner: add the sink if it is new, and tick until everything is sent. Says its report as JSON."""
    if small := int(os.environ.get(SMALL_ROUNDS, "0")):
        ranges.SMALL, rounds.FIRST_ROWS = DriverLimit(small, 1 << 40), small
        work.DELIVERY = DriverLimit(small // 2, 1 << 40)
    lake = sl.Lake(root, spark=spark_bench.start_session())
    # The session is as warm as that of the peers.
    with tempfile.TemporaryDirectory(dir=Path(root).parent) as folder:
        lake.table(table).export(Path(folder, "warm"), engine="spark")
    sink = sl.HttpSink(to) if to.startswith("http") else sl.ParquetSink(to)
    lake.sink(name, table, to=sink)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    peak, stop = [0], threading.Event()
    threading.Thread(target=_watch_memory, args=(peak, stop), daemon=True).start()
    begin = time.perf_counter()
    report = lake.tick(only=[name])
    seconds = time.perf_counter() - begin
    stop.set()
    report.raise_for_errors()
    (done,) = report.sinks
    print(json.dumps({"seconds": seconds, "rows": done.rows, "jobs": done.jobs, "peak_mb": peak[0] / 1e6}), flush=True)


def _watch_memory(peak: list[int], stop: threading.Event) -> None:
    """The memory of this Python process; Spark's JVM has a size of its own."""
    process = psutil.Process()
    while not stop.wait(_LOOK_S):
        peak[0] = max(peak[0], process.memory_info().rss)


class Runner:
    """A runner's process, ready to begin."""

    def __init__(self, root: Path, name: str, table: str, to: str) -> None:
        command = [sys.executable, __file__, "--run-sink", str(root), name, table, to]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a runner ended early, exit code {self.process.wait()}")
        return dict(json.loads(line))

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        found = self._answer()
        self.process.wait(120)
        return found

    def kill(self) -> None:
        """As a power cut would: the runner and its JVM."""
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for each in family:
            each.send_signal(signal.SIGKILL)
        self.process.wait(60)


class Writer(threading.Thread):
    """Changes the first keys of a table, a commit every 0.1 s. `commits` are the seq and the time of each."""

    def __init__(self, root: Path, table: str, rows: pa.Table) -> None:
        super().__init__(daemon=True)
        self._table = sl.Lake(root).table(table)
        self._rows = rows
        self._rng = np.random.default_rng(11)
        self._done = threading.Event()
        self.commits: list[tuple[int, float]] = []

    def run(self) -> None:
        due = time.monotonic()
        while not self._done.is_set():
            chosen = np.sort(self._rng.choice(self._rows.num_rows, min(LIVE_ROWS, self._rows.num_rows), replace=False))
            seq = self._table.upsert(self._rows.take(pa.array(chosen))).seq
            self.commits.append((seq, time.time()))
            due += LIVE_EVERY_S
            self._done.wait(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        self._done.set()
        self.join(60)


@contextmanager
def writing(root: Path, table: str, rows: pa.Table) -> Iterator[Writer]:
    writer = Writer(root, table, rows)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


# --- the parts ----------------------------------------------------------------------------------------------


class Setting:
    """A lake with both tables, and the session of the peers."""

    def __init__(self, folder: Path, rows: int, wide_rows: int) -> None:
        self.folder, self.root = folder, folder / "lake"
        self.spark = spark_bench.start_session()
        self.lake = sl.Lake(self.root, spark=self.spark)
        self.rows = {"narrow": rows, "wide": wide_rows}
        self.first: dict[str, pa.Table] = {}
        for name, schema, key, write in (
            ("narrow", common.SCHEMA, "id", spark_bench.write_narrow),
            ("wide", spark_bench.WIDE, "part_id", spark_bench.write_wide),
        ):
            write(folder / name, self.rows[name])
            table = self.lake.create_table(name, schema, key=[key], vnodes=VNODES)
            table.upsert(self._source(name))
            table.compact(full=True)
            text = "text" if name == "narrow" else "content_text"
            lowest = f"SELECT * FROM read_parquet('{folder / name}/*.parquet') ORDER BY {key} LIMIT 1000"
            found = duckdb.sql(lowest).to_arrow_table().cast(schema)
            at = found.schema.get_field_index(text)
            self.first[name] = found.set_column(at, schema.field(text), pa.array(["changed"] * found.num_rows))
            say(f"built {name}: {self.rows[name]:,} rows")

    def _source(self, name: str) -> Any:
        if name == "wide":
            self.spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", "256")
        return self.spark.read.parquet(str(self.folder / name))

    def export(self, name: str) -> float:
        target = self.folder / "exported"
        with writing(self.root, name, self.first[name]):
            begin = time.perf_counter()
            self.lake.table(name).export(target, engine="spark")
            seconds = time.perf_counter() - begin
        shutil.rmtree(target)
        say(f"export of {name}: {seconds:.2f} s")
        return seconds

    def rewrite(self, name: str) -> float:
        target = self.folder / "rewritten"
        with writing(self.root, name, self.first[name]):
            begin = time.perf_counter()
            self._source(name).write.option("compression", "zstd").parquet(str(target))
            seconds = time.perf_counter() - begin
        shutil.rmtree(target)
        say(f"Spark's read and write of {name}: {seconds:.2f} s")
        return seconds

    def backfill(self, name: str, number: int) -> dict[str, Any]:
        """A new sink, with the ages of live changes."""
        sink, target = f"{name}_{number}", self.folder / f"sink-{name}-{number}"
        runner = Runner(self.root, sink, name, str(target))
        with writing(self.root, name, self.first[name]) as writer:
            runner.begin()
            found = runner.finish()
        found |= self._ages(sink, target, writer)
        found["wrong"] = self._finish(sink, name, target)
        say(
            f"backfill of {name}: {found['seconds']:.2f} s, {found['rounds']} rounds of {found['round_s']:.1f} s,"
            f" live changes {show(found['lag_s'], ' s')} old"
        )
        return found

    def killed_backfill(self, name: str) -> dict[str, Any]:
        """A new sink whose runner is killed when half of the history is there."""
        sink, target = f"{name}_killed", self.folder / f"sink-{name}-killed"
        runner = Runner(self.root, sink, name, str(target))
        with writing(self.root, name, self.first[name]):
            runner.begin()
            while self._delivered(sink) < self.rows[name] // 2:
                if runner.process.poll() is not None:
                    raise SystemExit("the runner was quicker than the kill")
                time.sleep(_LOOK_S)
            runner.kill()
            before = self._positions(sink)
            runner = Runner(self.root, sink, name, str(target))
            runner.begin()
            found = runner.finish()
        began = any(at.is_begun for at in before.values())
        after = self._positions(sink)
        done = sum(at.rows for at in after.values())
        # Rows of the round under way at the kill are read again; those of finished rounds are not.
        rounds = max(at.round for at in after.values())
        redone = max(0, done - self.rows[name]) + (done // rounds if began else 0)
        found |= {"rows_redone": redone, "round_rows": done // rounds, "wrong": self._finish(sink, name, target)}
        say(f"killed at half: {redone:,} rows of a round were redone; a round has {found['round_rows']:,}")
        return found

    def rate(self, name: str) -> float:
        """A sink with a rate for a minute: how far its rows a second were from what was asked."""
        sink, target = f"{name}_rate", self.folder / f"sink-{name}-rate"
        self.lake.state.rates.set_rate(sink, RATE_ROWS, None)
        runner = Runner(self.root, sink, name, str(target))
        runner.begin()
        while not self._delivered(sink):
            time.sleep(_LOOK_S)
        begin, rows = time.perf_counter(), self._delivered(sink)
        time.sleep(RATE_S)
        measured = (self._delivered(sink) - rows) / (time.perf_counter() - begin)
        runner.kill()
        say(f"{measured:,.0f} rows a second; {RATE_ROWS:,} were asked")
        self.lake.retire_sink(sink)
        shutil.rmtree(target)
        return measured / RATE_ROWS - 1

    def forward(self, name: str, url: str) -> dict[str, Any]:
        """A new HTTP sink to a receiver in a process of its own."""
        sink = f"{name}_http"
        runner = Runner(self.root, sink, name, url)
        with writing(self.root, name, self.first[name]):
            runner.begin()
            found = runner.finish()
        self._catch_up(sink)
        say(f"forward of {name}: {found['seconds']:.2f} s")
        return found

    # --- what the state and the destination say -------------------------------------------------------------

    def _positions(self, sink: str) -> dict[int, Any]:
        return dict(self.lake.consumer_state(sink).positions)

    def _delivered(self, sink: str) -> int:
        return sum(at.rows for at in self._positions(sink).values())

    def _ages(self, sink: str, target: Path, writer: Writer) -> dict[str, Any]:
        """The ages of live changes when the manifest of their batch came, during the backfill."""
        manifests = []
        for path in (target / "_strandline").rglob("*.json"):
            document = json.loads(path.read_text())
            manifests.append((document["upto"], document.get("round"), path.stat().st_mtime))
        manifests.sort(key=lambda each: each[2])
        rounds = [each for each in manifests if each[1] is not None]
        first_s, last_s = manifests[0][2], manifests[-1][2]
        ages = []
        for seq, at_s in writer.commits:
            seen = next((when for upto, _, when in manifests if upto >= seq and when >= at_s), None)
            if at_s > first_s and seen is not None:
                ages.append(seen - at_s)
        count = len({each[1] for each in rounds}) + 1
        return {
            "rounds": count,
            "round_s": (last_s - first_s) / max(1, count - 1),
            "lag_s": float(np.percentile(ages, 95)) if ages else None,
        }

    def _catch_up(self, sink: str) -> None:
        while self.lake.plan().sinks and any(each.works for each in self.lake.plan().sinks if each.name == sink):
            self.lake.tick(only=[sink]).raise_for_errors()

    def _finish(self, sink: str, name: str, target: Path) -> int:
        """How many rows are wrong at the end, when the changes made meanwhile are sent too."""
        self._catch_up(sink)
        key = "id" if name == "narrow" else "part_id"
        columns = [each for each in self.lake.table(name).schema.names if each not in (key, "tools")]
        files = f"read_parquet('{target}/data/*/*/*.parquet', union_by_name=true)"
        print_of = f"sum(hash({key}, {', '.join(columns)}) % 1000000007)"
        newest = f"SELECT * FROM {files} QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY _seq DESC) = 1"
        with duckdb.connect() as duck:
            found = f"SELECT count(*), {print_of} FROM ({newest}) WHERE _op = 'upsert'"
            count, sum_of = duck.execute(found).fetchall()[0]
            duck.register("rows", self.lake.table(name).to_arrow(columns=[key, *columns]))
            want, want_sum = duck.execute(f"SELECT count(*), {print_of} FROM rows").fetchall()[0]
        self.lake.retire_sink(sink)
        shutil.rmtree(target)
        return abs(count - want) + (sum_of != want_sum)


def main() -> None:
    if sys.argv[1:2] == ["--run-sink"]:
        run_sink(*sys.argv[2:])
        return
    parser = common.arguments("history for a new sink", rows=5_000_000, repeats=3)
    parser.add_argument("--wide-rows", type=int, help=f"rows of the wide table (default {WIDE_ROWS:,})")
    args = common.parse(parser)
    wide_rows = args.wide_rows or (2_000 if args.quick else WIDE_ROWS)
    if args.quick:
        os.environ[SMALL_ROUNDS] = "2000"
    ours, exports, rewrites = ({name: Samples() for name in ("narrow", "wide")} for _ in range(3))
    runs: dict[str, list[dict[str, Any]]] = {"narrow": [], "wide": []}
    with common.workspace(args.dir) as folder:
        setting = Setting(folder, args.rows, wide_rows)
        for name in ("narrow", "wide"):
            for round_ in range(args.repeats if name == "narrow" else max(1, args.repeats - 1)):
                exports[name].add(setting.export(name))
                rewrites[name].add(setting.rewrite(name))
                runs[name].append(setting.backfill(name, round_))
                ours[name].add(runs[name][-1]["seconds"])
        killed = setting.killed_backfill("narrow")
        error = None if args.quick else setting.rate("narrow")
        receiver = subprocess.Popen(
            [sys.executable, forwarders.__file__, "receive", str(folder / "receiver")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert receiver.stdout is not None
            url = receiver.stdout.readline().strip()
            there = sl.Lake(folder / "receiver")
            there.create_table("narrow", common.SCHEMA, key=["id"], vnodes=VNODES, if_exists="open")
            http = setting.forward("narrow", f"{url}/ingest/narrow")
            lost = abs(there.table("narrow").count() - setting.lake.table("narrow").count())
        finally:
            receiver.terminate()
            receiver.wait(60)
        setting.spark.stop()
    wrong = sum(each["wrong"] for each in [*runs["narrow"], *runs["wide"], killed]) + lost
    lags = [(each["lag_s"], each["round_s"]) for each in runs["narrow"] if each["lag_s"] is not None]
    lag_s, round_s = max(lags, default=(None, None))
    figures = {
        "overhead_vs_export": ratio(ours["narrow"].median, exports["narrow"].median),
        "overhead_vs_spark": ratio(ours["narrow"].median, rewrites["narrow"].median),
        "wide_overhead_vs_export": ratio(ours["wide"].median, exports["wide"].median),
        "wide_overhead_vs_spark": ratio(ours["wide"].median, rewrites["wide"].median),
        "rows_redone": killed["rows_redone"],
        "rows_redone_rounds": ratio(killed["rows_redone"], killed["round_rows"]),
        "live_lag_s": significant(lag_s),
        "live_lag_rounds": ratio(lag_s, round_s),
        "rate_error": significant(error),
        "http_rows_per_s": significant(args.rows / http["seconds"]),
        "peak_rss_mb": significant(max(each["peak_mb"] for each in [*runs["narrow"], *runs["wide"], killed, http])),
        "wrong": wrong,
    }
    rows = [
        [name, *(show(each[name].median, " s") for each in (ours, exports, rewrites))] for name in ("narrow", "wide")
    ]
    common.print_table(
        f"{args.rows:,} narrow rows, {wide_rows:,} wide ones", ["rows", "backfill", "export", "spark"], rows
    )
    detail = {
        "rows": args.rows,
        "wide_rows": wide_rows,
        "runs": {name: [{k: significant(v) for k, v in run.items()} for run in each] for name, each in runs.items()},
        "seconds": {
            kind: {name: each.rounded for name, each in by.items()}
            for kind, by in (("backfill", ours), ("export", exports), ("spark", rewrites))
        },
        "http_seconds": significant(http["seconds"]),
        "killed": {name: significant(value) for name, value in killed.items()},
    }
    common.print_result("backfill", figures, detail)


if __name__ == "__main__":
    main()
