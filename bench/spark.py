"""A Spark program's own work on Strandline tables, against Spark's plain Parquet files and deltalake.

One session of the user's own, with Spark's defaults, reads the same source files for every contender. A round writes
the narrow rows with each of them in turn, then adds two small commits to Strandline's table, reads it through its log,
compacts it and reads it again; the Parquet files are read in the same minute. Wide rows, a bulk ingest of JSON lines
and the lag of a stream are parts of their own. Every answer is checked. A figure named `a_vs_b` is our time over
theirs, but `upsert_vs_deltalake` is the peer's time over ours."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

import common
import strandline as sl
from common import Samples, interleave, ratio, say, show, significant, turned

PARTS = ("narrow", "wide", "ingest", "stream")
WIDE_ROWS, SESSION_ROWS, TOOLS_BYTES = 200_000, 136, 32 << 10
INGEST_SHARE = 5
SMALL_SHARE = 0.01
FILES = 8
READS, WARMUPS = 3, 1
STREAM_COMMITS = 15
VNODES = 16
PLAIN, SORTED, DELTA, OURS = "parquet", "parquet_sorted", "deltalake", "strandline"

Frame = Callable[[], Any]


def start_session() -> Any:
    """A session as a user makes one: nothing set but what a laptop needs."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("bench").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", os.environ.get("STRANDLINE_SPARK_MEMORY", "4g"))
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
    if events := os.environ.get("BENCH_EVENT_LOG"):
        builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file:{events}")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


# --- the rows -----------------------------------------------------------------------------------------------


def write_narrow(folder: Path, rows: int) -> Path:
    """Rows of `common.SCHEMA` as Parquet files, ids in random order over all of them."""
    folder.mkdir()
    ids = np.random.default_rng(1).permutation(rows)
    for at, part in enumerate(np.array_split(ids, FILES)):
        pq.write_table(common.make_rows(part, seed=at), folder / f"part-{at}.parquet")
    return folder


WIDE = pa.schema(
    [
        pa.field("part_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string()),
        pa.field("role", pa.string()),
        pa.field("created_at", pa.timestamp("us", "UTC")),
        pa.field("content_text", pa.string()),
        pa.field("tools", pa.string()),
        pa.field("message_index", pa.int32()),
    ]
)


def write_wide(folder: Path, rows: int) -> Path:
    """Messages as a gateway records them: one large `tools` text, the same on all rows of a session."""
    folder.mkdir()
    rng = np.random.default_rng(2)
    words = pa.array([f"{word:08x}" for word in rng.integers(0, 2**32, 4096)])
    for at, ids in enumerate(np.array_split(np.arange(rows), FILES)):
        with pq.ParquetWriter(folder / f"part-{at}.parquet", WIDE, compression="zstd") as file:
            for start in range(0, len(ids), SESSION_ROWS):
                file.write_table(_session_rows(ids[start : start + SESSION_ROWS], f"{at}-{start}", words, rng))
    return folder


def _session_rows(ids: np.ndarray, session: str, words: pa.Array, rng: np.random.Generator) -> pa.Table:
    count = len(ids)

    def text(size: int) -> str:
        return " ".join(words.take(pa.array(rng.integers(0, len(words), size // 9 + 1))).to_pylist())

    columns = {
        "part_id": [f"{id_:012x}-{session}#0" for id_ in ids],
        "session_id": [f"session-{session}"] * count,
        "role": rng.choice(["user", "assistant", "tool"], count).tolist(),
        "created_at": (1_700_000_000_000_000 + ids * 1_000_000).tolist(),
        "content_text": [text(400) for _ in ids],
        "tools": [text(TOOLS_BYTES)] * count,
        "message_index": list(range(count)),
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in WIDE}, schema=WIDE)


def write_lines(source: Path, folder: Path, rows: int) -> Path:
    """The first rows of the narrow source as JSON lines in a few files."""
    import duckdb

    folder.mkdir()
    each = rows // FILES
    with duckdb.connect() as duck:
        for at in range(FILES):
            rows_sql = f"SELECT * FROM read_parquet('{source}/part-{at}.parquet') LIMIT {each}"
            duck.execute(f"COPY ({rows_sql}) TO '{folder}/part-{at}.jsonl' (FORMAT json)")
    return folder


# --- narrow rows --------------------------------------------------------------------------------------------


class Narrow:
    """The narrow part: samples by operation, then by contender."""

    def __init__(self, lake: Any, spark: Any, folder: Path, rows: int) -> None:
        self.lake, self.spark, self.folder, self.rows = lake, spark, folder, rows
        self.source = write_narrow(folder / "narrow", rows)
        self.samples: dict[str, dict[str, Samples]] = {}
        self.keys = np.random.default_rng(3).choice(rows, 100, replace=False)

    def run(self, repeats: int) -> None:
        for round_ in range(repeats + WARMUPS):
            at = self.folder / f"round-{round_}"
            at.mkdir()
            table = self.lake.create_table(f"narrow_{round_}", common.SCHEMA, key=["id"], vnodes=VNODES)
            self._write(at, table, round_)
            self._read("written", at, table, round_)
            batches = common.Batches(self.rows, new_share=0.0, seed=round_)
            for _ in range(2):
                table.upsert(batches.make(max(1, round(self.rows * SMALL_SHARE))))
            self._read("merged", at, table, round_)
            before = self._answers(table)
            self._time("compact", OURS, round_, lambda table=table: table.compact(full=True))
            self._read("compacted", at, table, round_)
            if self._answers(table) != before:
                raise SystemExit(f"the compaction changed answers: {before} became {self._answers(table)}")
            self.lake.drop_table(table.name)
            shutil.rmtree(at)
            shutil.rmtree(table.log.storage.url(table.entry.folder), ignore_errors=True)

    def _frame(self) -> Any:
        return self.spark.read.parquet(str(self.source))

    def _write(self, at: Path, table: Any, round_: int) -> None:
        def deltalake() -> None:
            write_deltalake(str(at / DELTA), pd.dataset(self.source).scanner().to_reader())

        writes: dict[str, Callable[[], object]] = {
            OURS: lambda: table.upsert(self._frame()),
            PLAIN: lambda: self._frame().write.parquet(str(at / PLAIN)),
            SORTED: lambda: self._frame().sort("id").write.parquet(str(at / SORTED)),
            DELTA: deltalake,
        }
        for name in turned(list(writes), round_):
            self._time("write", name, round_, writes[name])
        if DeltaTable(str(at / DELTA)).count() != self.rows:
            raise SystemExit("deltalake lost rows")

    def _read(self, state: str, at: Path, table: Any, round_: int) -> None:
        frames: dict[str, Frame] = {
            OURS: table.to_spark,
            PLAIN: lambda: self.spark.read.parquet(str(at / PLAIN)),
            SORTED: lambda: self.spark.read.parquet(str(at / SORTED)),
        }
        kinds = (("count", self._count), ("agg", self._aggregate), ("lookup", self._look_up), ("filter", self._look_up))
        for read, run in kinds:
            by_contender = {name: partial(run, frame) for name, frame in frames.items()}
            if read == "lookup":
                by_contender[OURS] = partial(self._look_up_by_key, table)
            found = interleave(by_contender, repeats=READS)
            by_name = self.samples.setdefault(f"{read}_{state}", {name: Samples() for name in frames})
            for name, samples in found.items():
                for seconds in samples.seconds:
                    by_name[name].add(seconds, is_warmup=round_ < WARMUPS)
            medians = ", ".join(f"{name} {show(found[name].median, 'ms')}" for name in frames)
            say(f"round {round_}: {read} {state}: {medians}; first {show(found[OURS].warmup_seconds[0], 'ms')}")

    def _count(self, frame: Frame, _: int) -> None:
        if (count := frame().count()) != self.rows:
            raise SystemExit(f"{count} rows; expected {self.rows}")

    def _aggregate(self, frame: Frame, _: int) -> None:
        kinds = frame().groupBy("kind").agg({"value": "sum", "n": "max", "id": "count"}).collect()
        if len(kinds) != 4 or sum(kind["count(id)"] for kind in kinds) != self.rows:
            raise SystemExit(f"the aggregate is wrong: {kinds}")

    def _look_up(self, frame: Frame, round_: int) -> None:
        if len(found := frame().where(f"id = {self.keys[round_]}").collect()) != 1:
            raise SystemExit(f"a lookup found {len(found)} rows")

    def _look_up_by_key(self, table: Any, round_: int) -> None:
        if len(found := table.to_spark(where=f"id = {self.keys[round_]}").collect()) != 1:
            raise SystemExit(f"a lookup found {len(found)} rows")

    def _answers(self, table: Any) -> list[Any]:
        sums = "count(*)", "sum(n)", "sum(crc32(text))", "bit_xor(unix_micros(ts))"
        return table.to_spark().selectExpr(*sums).collect()

    def _time(self, operation: str, name: str, round_: int, action: Callable[[], object]) -> None:
        begin = time.perf_counter()
        action()
        seconds = time.perf_counter() - begin
        samples = self.samples.setdefault(operation, {}).setdefault(name, Samples())
        samples.add(seconds, is_warmup=round_ < WARMUPS)
        say(f"round {round_}: {operation} {name}: {seconds:.2f} s")

    def median(self, operation: str, name: str) -> float | None:
        found = self.samples.get(operation, {}).get(name)
        return found.median if found else None

    def ratio(self, operation: str, below: str) -> float | None:
        return ratio(self.median(operation, OURS), self.median(operation, below))

    def figures(self) -> dict[str, float | None]:
        return {
            "upsert_vs_parquet": self.ratio("write", PLAIN),
            "upsert_vs_deltalake": ratio(self.median("write", DELTA), self.median("write", OURS)),
            "count_merged_vs_parquet": self.ratio("count_merged", PLAIN),
            "agg_merged_vs_parquet": self.ratio("agg_merged", PLAIN),
            "agg_compacted_vs_parquet": self.ratio("agg_compacted", PLAIN),
            "compact_vs_parquet_write": ratio(self.median("compact", OURS), self.median("write", PLAIN)),
            # Sorted files let Spark skip row groups, as ours do. A lookup is `to_spark(where=...)`, a filter is
            # `to_spark().where(...)`.
            "lookup_vs_parquet": self.ratio("lookup_merged", SORTED),
            "filter_vs_parquet": self.ratio("filter_merged", SORTED),
        }


# --- the other parts ----------------------------------------------------------------------------------------


def measure_wide(lake: Any, spark: Any, folder: Path, rows: int, repeats: int) -> dict[str, Samples]:
    """Writes of wide rows: ours by key, Spark's as they come, deltalake's by batches."""
    source = write_wide(folder / "wide", rows)
    say(f"wide source: {sum(file.stat().st_size for file in source.iterdir()) / 1e6:,.0f} MB")
    # With Spark's default of 4,096 rows a batch, two tasks would hold 256 MB of such texts, several times over.
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", "256")

    def clear(name: str, round_: int) -> Path:
        shutil.rmtree(folder / f"wide-{name}-{round_ - 1}", ignore_errors=True)
        return folder / f"wide-{name}-{round_}"

    def ours(round_: int) -> None:
        table = lake.create_table(f"wide_{round_}", WIDE, key=["part_id"], vnodes=VNODES)
        table.upsert(spark.read.parquet(str(source)))
        if table.count() != rows:
            raise SystemExit(f"{table.count()} wide rows; expected {rows}")
        lake.drop_table(table.name)
        shutil.rmtree(table.log.storage.url(table.entry.folder), ignore_errors=True)

    def plain(round_: int) -> None:
        spark.read.parquet(str(source)).write.parquet(str(clear(PLAIN, round_)))

    def deltalake(round_: int) -> None:
        reader = pd.dataset(source).scanner(batch_size=1024).to_reader()
        write_deltalake(str(clear(DELTA, round_)), reader)

    found = interleave({OURS: ours, PLAIN: plain, DELTA: deltalake}, repeats=repeats, warmups=0)
    say("wide: " + ", ".join(f"{name} {show(samples.median, ' s')}" for name, samples in found.items()))
    return found


def measure_ingest(lake: Any, spark: Any, source: Path, folder: Path, rows: int, repeats: int) -> dict[str, Samples]:
    """JSON lines into a table, against Spark's own reader with the schema given, and Parquet."""
    lines = write_lines(source, folder / "lines", rows)
    columns = "id long, session string, ts timestamp, kind string, value double, n int, text string"

    def ours(round_: int) -> None:
        table = lake.create_table(f"lines_{round_}", common.SCHEMA, key=["id"], vnodes=VNODES)
        lake.ingest(table.name, str(lines))
        if table.count() != rows // FILES * FILES:
            raise SystemExit(f"{table.count()} rows ingested; expected {rows}")
        lake.drop_table(table.name)

    def plain(round_: int) -> None:
        spark.read.schema(columns).json(str(lines)).write.parquet(str(folder / f"lines-{round_}"))
        shutil.rmtree(folder / f"lines-{round_}")

    found = interleave({OURS: ours, PLAIN: plain}, repeats=repeats)
    say("ingest: " + ", ".join(f"{name} {show(samples.median, ' s')}" for name, samples in found.items()))
    return found


def measure_stream(lake: Any, spark: Any, folder: Path) -> list[float]:
    """Seconds from the return of a commit until `foreachBatch` has its rows; the stream triggers as soon as it can."""
    from strandline import spark_source

    spark_source.register(spark)
    table = lake.create_table("streamed", common.SCHEMA, key=["id"], vnodes=4)
    table.upsert(common.base_rows(1_000))
    seen: dict[int, float] = {}

    def note(frame: Any, _: int) -> None:
        ids = [row["id"] for row in frame.select("id").collect()]
        seen.update(dict.fromkeys(ids, time.perf_counter()))

    options = {"lake": str(folder / "lake"), "table": "streamed", "start": str(table.head)}
    stream = spark.readStream.format("strandline").options(**options).load()
    query = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(folder / "stream")).start()
    lags = []
    try:
        for at in range(STREAM_COMMITS):
            table.upsert(common.make_rows(np.array([10_000 + at]), seed=at))
            committed = time.perf_counter()
            while 10_000 + at not in seen:
                if query.exception() or time.perf_counter() - committed > 60:
                    raise SystemExit(f"the stream did not see commit {at}: {query.exception()}")
                time.sleep(0.005)
            lags.append(seen[10_000 + at] - committed)
            # Commits fall anywhere between two looks of the stream.
            time.sleep(0.05 + 0.1 * (at % 3))
    finally:
        query.stop()
    # The first batch compiles its plan.
    return lags[3:]


def main() -> None:
    parser = common.arguments("Spark programs", rows=5_000_000, repeats=3)
    parser.add_argument("--wide-rows", type=int, help=f"rows of the wide part (default {WIDE_ROWS:,})")
    parser.add_argument("--only", help=f"parts, by comma; known: {', '.join(PARTS)}")
    args = common.parse(parser)
    parts = args.only.split(",") if args.only else list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    wide_rows = args.wide_rows or (2_000 if args.quick else WIDE_ROWS)

    with common.workspace(args.dir) as folder:
        spark = start_session()
        lake = sl.Lake(str(folder / "lake"), spark=spark)
        narrow = Narrow(lake, spark, folder, args.rows)
        say(f"{args.rows:,} narrow rows, {folder}")
        if "narrow" in parts:
            narrow.run(args.repeats)
        others: dict[str, dict[str, Samples]] = {}
        if "ingest" in parts:
            rows = args.rows // INGEST_SHARE
            others["ingest"] = measure_ingest(lake, spark, narrow.source, folder, rows, args.repeats)
        lags: list[float] = []
        if "stream" in parts:
            try:
                lags = measure_stream(lake, spark, folder)
            except ImportError as error:
                say(f"the stream is left out: {error}")
        if "wide" in parts:
            others["wide"] = measure_wide(lake, spark, folder, wide_rows, max(1, args.repeats - 1))
        spark.stop()

    ingest, wide = others.get("ingest", {}), others.get("wide", {})
    figures = {
        **narrow.figures(),
        "ingest_vs_spark": ratio(ingest[OURS].median, ingest[PLAIN].median) if ingest else None,
        "stream_lag_ms": significant(statistics.median(lags) * 1000) if lags else None,
    }
    seconds = {**narrow.samples, **others}
    common.print_table(
        f"{args.rows:,} narrow rows, {wide_rows:,} wide ones (medians)",
        ["operation", OURS, PLAIN, SORTED, DELTA],
        [
            [
                operation.replace("_", " "),
                *(show(by[name].median, " s") if name in by else "-" for name in (OURS, PLAIN, SORTED, DELTA)),
            ]
            for operation, by in seconds.items()
        ],
    )
    detail: dict[str, Any] = {
        "rows": args.rows,
        "wide_rows": wide_rows,
        "repeats": args.repeats,
        "wide_vs_parquet": ratio(wide[OURS].median, wide[PLAIN].median) if wide else None,
        "upsert_vs_parquet_sorted": narrow.ratio("write", SORTED),
        "lookup_vs_parquet_unsorted": narrow.ratio("lookup_merged", PLAIN),
        "stream_lags_ms": [significant(lag * 1000) for lag in lags],
        "seconds": {operation: {name: by[name].rounded for name in by} for operation, by in seconds.items()},
    }
    common.print_result("spark", figures, detail)


if __name__ == "__main__":
    main()
