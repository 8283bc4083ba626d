"""Export of a table whose rows repeat a wide value: against Spark's own Parquet writer and pyarrow's.

One compacted table of generated messages, 128 KB of `tools` on every row and the same on all rows of a conversation.
Every contender writes the same rows of it in turn, in one Spark session, and what it wrote is read back: the number of
rows, of keys, and a checksum over all columns must be those of the generated rows. Sizes are those of the Parquet
footers. Then the export's lane runs alone, in one Spark task of a new worker process, over a tenth of the rows, all of
them and ten times as many: its memory must not follow the rows."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import common
import strandline as sl
import strandline.jobs.export.export as exports
from common import Samples, ratio, say, show, significant
from strandline.demo.messages import CLUSTER_BY, KEY, SCHEMA, messages
from strandline.engines.choice import DriverLimit
from strandline.engines.lanes import RECEIPT, ExportLane, staged_of
from strandline.engines.spark import TASK_BYTES, parallelism, run_lane, running_job, session
from strandline.jobs.export.source import new_source
from strandline.storage.open import open_storage

ROWS, QUICK_ROWS, WARMUP_ROWS = 10_500, 2_200, 300
TOOLS_BYTES, TAIL_BYTES = 128 << 10, 50_000
VNODES = 16
MEMORY_REPEATS = 2
# Spark's reader takes 4,096 rows a batch, half a gigabyte of these; ours sets its own.
READ_ROWS = 128
OURS, PLAIN = "strandline", "pyarrow"
# Smaller columns are mostly page headers: what they weigh says nothing about a writer.
WEIGHTY_SHARE = 0.01


# --- the rows -----------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A table and what must come out of it, reckoned from the generated rows, not from the table."""

    table: Any
    lanes: int = 0
    rows: int = 0
    checksum: int = 0
    raw_bytes: Counter[str] = field(default_factory=Counter)

    def check(self, name: str, found: tuple[int, int, int]) -> None:
        if found != (self.rows, self.rows, self.checksum):
            raise SystemExit(f"{name}: rows, keys, checksum are {found}; expected {self.rows} twice, {self.checksum}")


def checksum_sql(relation: str) -> str:
    """Rows, keys and a checksum over all columns; types that a format may spell in two ways are made one."""

    def plain(column: pa.Field) -> str:
        if pa.types.is_timestamp(column.type):
            return f'epoch_us("{column.name}")'
        return f'"{column.name}"::varchar' if isinstance(column.type, pa.BaseExtensionType) else f'"{column.name}"'

    columns = ", ".join(map(plain, SCHEMA))
    return f'select count(*), count(distinct "{KEY[0]}"), coalesce(bit_xor(hash({columns})), 0) from {relation}'


def load(lake: Any, name: str, rows: int, tail_bytes: int) -> Loaded:
    """Generated messages, upserted batch by batch and folded."""
    table = lake.create_table(name, SCHEMA, key=KEY, cluster_by=CLUSTER_BY, vnodes=VNODES)
    loaded = Loaded(table)
    with duckdb.connect() as duck:
        for batch in messages(rows=rows, tools_bytes=TOOLS_BYTES, tail_bytes=tail_bytes):
            table.upsert(batch)
            for column, values in zip(batch.schema.names, batch.columns, strict=True):
                is_wrapped = isinstance(values.type, pa.BaseExtensionType)
                loaded.raw_bytes[column] += (values.storage if is_wrapped else values).nbytes
            duck.register("batch", pa.table(batch))
            [(count, _, checksum)] = duck.sql(checksum_sql("batch")).fetchall()
            loaded.rows, loaded.checksum = loaded.rows + count, loaded.checksum ^ checksum
    table.compact(full=True)
    return loaded


# --- the contenders -----------------------------------------------------------------------------------------


def spark_snappy(loaded: Loaded, folder: Path) -> None:
    loaded.table.to_spark().write.parquet(str(folder))


def spark_zstd(loaded: Loaded, folder: Path) -> None:
    loaded.table.to_spark().write.option("compression", "zstd").parquet(str(folder))


def spark_zstd_clustered(loaded: Loaded, folder: Path) -> None:
    """As many lanes as ours, cut and ordered as ours."""
    frame = loaded.table.to_spark().repartition(loaded.lanes, *CLUSTER_BY).sortWithinPartitions(*CLUSTER_BY, *KEY)
    frame.write.option("compression", "zstd").parquet(str(folder))


def pyarrow(loaded: Loaded, folder: Path) -> None:
    folder.mkdir()
    pq.write_table(loaded.table.to_arrow(), folder / "all.parquet")


def strandline(loaded: Loaded, folder: Path) -> None:
    report = loaded.table.export(str(folder))
    if report.engine != "spark":
        raise SystemExit(f"strandline exported {report.raw_bytes:,} raw bytes by the {report.engine}: take more --rows")


CONTENDERS: dict[str, Callable[[Loaded, Path], None]] = {
    "spark_snappy": spark_snappy,
    "spark_zstd": spark_zstd,
    "spark_zstd_clustered": spark_zstd_clustered,
    PLAIN: pyarrow,
    OURS: strandline,
}


@dataclass
class Written:
    """What a contender wrote, by the footers of its files: columns are in compressed bytes."""

    bytes: int = 0
    files: int = 0
    row_groups: int = 0
    tools_unpacked: int = 0
    columns: Counter[str] = field(default_factory=Counter)


def written(folder: Path) -> Written:
    result = Written()
    for path in folder.glob("*.parquet"):
        footer = pq.read_metadata(path)
        result.bytes += path.stat().st_size
        result.files += 1
        result.row_groups += footer.num_row_groups
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                result.columns[chunk.path_in_schema] += chunk.total_compressed_size
                if chunk.path_in_schema == "tools":
                    result.tools_unpacked += chunk.total_uncompressed_size
    return result


def run_once(name: str, loaded: Loaded, folder: Path) -> tuple[float, Written]:
    """Seconds of one export, and what it wrote, checked and removed."""
    begin = time.perf_counter()
    CONTENDERS[name](loaded, folder)
    seconds = time.perf_counter() - begin
    with duckdb.connect() as duck:
        [found] = duck.sql(checksum_sql(f"read_parquet('{folder}/*.parquet')")).fetchall()
    loaded.check(name, found)
    result = written(folder)
    shutil.rmtree(folder)
    return seconds, result


def measure(
    loaded: Loaded, warmup: Loaded, names: list[str], folder: Path, repeats: int
) -> tuple[dict[str, Samples], dict[str, Written]]:
    """Seconds of every round; sizes are of the last one.

    The first round does not count either: the JVM goes on compiling long after a small table."""
    # So few rows would be exported on the driver.
    with mock.patch.object(exports, "BULK", DriverLimit(0, 0)):
        for name in names:
            say(f"warming up {name}")
            run_once(name, warmup, folder / name)
    samples: dict[str, Samples] = {name: Samples() for name in names}
    results: dict[str, Written] = {}
    for round_ in range(1 + repeats):
        for name in common.turned(names, round_):
            seconds, results[name] = run_once(name, loaded, folder / name)
            samples[name].add(seconds, is_warmup=round_ == 0)
            say(f"round {round_} of {repeats}: {name} {show(seconds, ' s')}, {results[name].bytes / 1e6:,.1f} MB")
    if PLAIN in results and results[PLAIN].tools_unpacked < 0.85 * loaded.raw_bytes["tools"]:
        raise SystemExit(f"{PLAIN} wrote tools in {results[PLAIN].tools_unpacked:,} bytes: not the plain fallback")
    return samples, results


# --- memory of one lane -------------------------------------------------------------------------------------


class MeasuredLane:
    """An export's lane, and the memory of the worker that runs it: before the first row, and at its peak.

    It reaches the worker by value, as part of the main module, so it leans on nothing else of this file."""

    def __init__(self, lane: ExportLane) -> None:
        self.lane = lane

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        idle_mb = self.memory_mb("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak counts from here
        receipts = list(self.lane(batches))
        peak_mb = self.memory_mb("VmHWM")
        for receipt in receipts:
            for name, value in (("idle_mb", idle_mb), ("peak_mb", peak_mb)):
                receipt = receipt.append_column(name, pa.array([value]))
            yield receipt

    @staticmethod
    def memory_mb(wanted: str) -> float:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{wanted}:"))


def lane_memory(loaded: Loaded, folder: Path, rows: int) -> dict[str, float]:
    """Idle and peak MB of one lane over the first so many rows as they are laid, in a worker of a new session.

    More rows than the table has are its rows again, as other sessions."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    session().stop()
    spark = session()
    source = new_source(loaded.table, at=None, changes=None, columns=None, where=None)
    storage = open_storage(str(folder))
    lane = MeasuredLane(ExportLane(storage, uuid4().hex, source.schema, source.cluster_by))
    with running_job(spark, source.raw_bytes // source.rows):
        laid = source.frame(spark).coalesce(1).sortWithinPartitions(*source.order)
        copies = [
            laid.withColumn("session_id", F.concat("session_id", F.lit(f"-{copy}")))
            for copy in range(max(1, rows // loaded.rows))
        ]
        taken = copies[0].limit(rows) if len(copies) == 1 else reduce(DataFrame.union, copies).coalesce(1)
        receipts = run_lane(taken, lane, f"{RECEIPT}, idle_mb double, peak_mb double").collect()
    files, staged, failure = staged_of(receipts)
    if failure is not None:
        raise failure
    storage.delete([each.temporary for each in staged])
    if sum(file.rows for file in files) != rows:
        raise SystemExit(f"the lane wrote {sum(file.rows for file in files)} rows of {rows}")
    return {"rows": rows, "idle_mb": receipts[0]["idle_mb"], "peak_mb": receipts[0]["peak_mb"]}


def measure_memory(loaded: Loaded, folder: Path, repeats: int) -> dict[str, dict[str, Any]]:
    """A tenth of the rows, which is less than one row group, all of them, and ten times as many, in turn."""
    sizes = {"tenth": loaded.rows // 10, "all": loaded.rows, "ten times": 10 * loaded.rows}
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in sizes}
    for round_ in range(repeats):
        for name in common.turned(list(sizes), round_):
            answers[name].append(lane_memory(loaded, folder, sizes[name]))
            say(f"memory {round_ + 1} of {repeats}: {name}, {answers[name][-1]}")
    return {
        name: {
            "rows": each[0]["rows"],
            "idle_mb": significant(statistics.median(answer["idle_mb"] for answer in each)),
            "peak_mb": significant(statistics.median(answer["peak_mb"] for answer in each)),
            "above_idle_mb": significant(statistics.median(answer["peak_mb"] - answer["idle_mb"] for answer in each)),
            "peaks_mb": [significant(answer["peak_mb"]) for answer in each],
        }
        for name, each in answers.items()
    }


# --- results ------------------------------------------------------------------------------------------------


def column_ratios(results: dict[str, Written], peer: str) -> dict[str, float | None]:
    """By column: our bytes over a peer's; the largest ratio first."""
    if OURS not in results or peer not in results:
        return {}
    ratios = {name: ratio(results[OURS].columns[name], results[peer].columns[name]) for name in SCHEMA.names}
    return dict(sorted(ratios.items(), key=lambda item: item[1] or 0, reverse=True))


def worst_weighty(results: dict[str, Written], ratios: dict[str, float | None]) -> float | None:
    """The largest of sorted ratios whose column holds its share of our bytes."""
    weighty = (results[OURS].columns[name] >= WEIGHTY_SHARE * results[OURS].bytes for name in ratios)
    return next((value for value, counts in zip(ratios.values(), weighty, strict=True) if counts), None)


def main() -> None:
    parser = common.arguments("export benchmark", rows=ROWS, repeats=5)
    parser.add_argument("--tail-bytes", type=int, default=TAIL_BYTES, help="what the longest content_text comes near")
    parser.add_argument("--only", help=f"contenders, by comma, and memory; known: {', '.join(CONTENDERS)}, memory")
    is_sized = parser.parse_args().rows is not None
    args = common.parse(parser)
    rows = args.rows if is_sized or not args.quick else QUICK_ROWS
    chosen = args.only.split(",") if args.only else [*CONTENDERS, "memory"]
    if unknown := sorted(set(chosen) - {*CONTENDERS, "memory"}):
        parser.error(f"unknown contender {', '.join(unknown)}; known: {', '.join(CONTENDERS)}, memory")
    names = [name for name in CONTENDERS if name in chosen]

    memory: dict[str, dict[str, Any]] = {}
    with common.workspace(args.dir) as folder:
        lake = sl.Lake(str(folder / "lake"))
        warmup = load(lake, "warmup", WARMUP_ROWS, args.tail_bytes)
        loaded = load(lake, "messages", rows, args.tail_bytes)
        tools, text = loaded.raw_bytes["tools"], loaded.raw_bytes["content_text"]
        raw = {"tools": tools, "content_text": text, "rest": loaded.raw_bytes.total() - tools - text}
        say(f"loaded {rows:,} rows, raw bytes: " + ", ".join(f"{name} {size:,}" for name, size in raw.items()))
        spark = session()
        spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", READ_ROWS)
        source = new_source(loaded.table, at=None, changes=None, columns=None, where=None)
        lanes = max(parallelism(spark), source.raw_bytes // TASK_BYTES)
        loaded.lanes = warmup.lanes = lanes
        samples, results = measure(loaded, warmup, names, folder, args.repeats)
        if "memory" in chosen:
            memory = measure_memory(loaded, folder / "staged", min(MEMORY_REPEATS, args.repeats))

    def against(name: str) -> float | None:
        return ratio(samples[name].median, samples[OURS].median) if {name, OURS} <= set(names) else None

    common.print_table(
        f"{rows:,} rows, {tools / 1e9:.2f} GB of tools in {loaded.raw_bytes.total() / 1e9:.2f} GB raw (median seconds)",
        ["contender", "seconds", "x ours", "MB", "tools MB", "files", "row groups"],
        [
            [
                name,
                show(samples[name].median),
                show(against(name), "x"),
                f"{result.bytes / 1e6:,.2f}",
                f"{result.columns['tools'] / 1e6:,.2f}",
                f"{result.files:,}",
                f"{result.row_groups:,}",
            ]
            for name, result in ((name, results[name]) for name in names)
        ],
    )
    ratios = column_ratios(results, "spark_zstd")
    clustered = column_ratios(results, "spark_zstd_clustered")
    spark_names = [name for name in ("spark_zstd", "spark_zstd_clustered") if name in results]
    if ratios:
        common.print_table(
            "Columns that come out worst against Spark's zstd, in bytes",
            ["column", OURS, *spark_names, "ours / spark_zstd"],
            [
                [
                    column,
                    *(f"{results[name].columns[column]:,}" for name in [OURS, *spark_names]),
                    show(against_spark, "x"),
                ]
                for column, against_spark in list(ratios.items())[:5]
            ],
        )
    if memory:
        common.print_table(
            "Memory of one lane, in a worker process of its own (medians)",
            ["rows", "idle MB", "peak MB", "above idle MB"],
            [
                [f"{each['rows']:,}", *(f"{each[key]:,.0f}" for key in ("idle_mb", "peak_mb", "above_idle_mb"))]
                for each in memory.values()
            ],
        )

    def against_zstd(size: Callable[[Written], int]) -> float | None:
        """Ours over the smaller of Spark's two."""
        peers = [size(results[name]) for name in spark_names]
        return ratio(size(results[OURS]), min(peers)) if OURS in results and peers else None

    def smaller(size: Callable[[Written], int]) -> float | None:
        return ratio(size(results[PLAIN]), size(results[OURS])) if {PLAIN, OURS} <= set(names) else None

    figures = {
        "file_ratio": smaller(lambda result: result.bytes),
        "tools_ratio": smaller(lambda result: result.columns["tools"]),
        "vs_spark_zstd_size": worst_weighty(results, ratios),
        "vs_spark_speed": against("spark_zstd_clustered"),
        "rss_10x_ratio": ratio(memory["ten times"]["peak_mb"], memory["all"]["peak_mb"]) if memory else None,
        "peak_rss_mb": memory["ten times"]["above_idle_mb"] if memory else None,
    }
    detail = {
        "rows": rows,
        "tail_bytes": args.tail_bytes,
        "raw_bytes": raw,
        "repeats": args.repeats,
        "lanes": lanes,
        "vs_spark_zstd_speed_unclustered": against("spark_zstd"),
        "vs_spark_snappy_speed_unclustered": against("spark_snappy"),
        "vs_spark_zstd_size_whole": against_zstd(lambda result: result.bytes),
        "vs_spark_zstd_size_without_tools": against_zstd(lambda result: result.bytes - result.columns["tools"]),
        "export_s": {name: samples[name].rounded for name in names},
        "bytes": {name: results[name].bytes for name in names},
        "files": {name: results[name].files for name in names},
        "row_groups": {name: results[name].row_groups for name in names},
        "tools_unpacked": {name: results[name].tools_unpacked for name in names},
        "column_bytes": {name: {c: results[name].columns[c] for c in SCHEMA.names} for name in names},
        "vs_spark_zstd_clustered_size": worst_weighty(results, clustered),
        "column_ratios": ratios,
        "column_ratios_clustered": clustered,
        "memory": memory,
        "versions": {name: version(name) for name in ("pyspark", "pyarrow", "duckdb")},
    }
    common.print_result("export", figures, detail)


if __name__ == "__main__":
    main()
