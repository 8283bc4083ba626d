"""Write a table, or a range of its changes, as Parquet files that any engine reads.

Rows are sorted by the table's cluster columns, so that repeated values lie together. Few rows are written by a lane on
the driver, many by lanes in Spark tasks. Files are staged first; the driver publishes them when all are complete.

After a crash: the destination shows no file, unless the crash came while files were published. The next export there
deletes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.engines.choice import BULK
from strandline.engines.lanes import RECEIPT, ExportLane, staged_of
from strandline.engines.spark import Lane, collect, look_at_workers, run_lane, running_job, session, tasks_for
from strandline.engines.workers import packages_for
from strandline.errors import Invalid
from strandline.jobs.export.blocks import BlockLane, GatherLane
from strandline.jobs.export.destination import Destination
from strandline.jobs.export.source import ExportSource, Scan
from strandline.model.names import backticked
from strandline.progress import Progress
from strandline.storage.open import StagedFile, is_inside
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile
from strandline.tables.spark_files import listing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# From this many bytes a row on, blocks cost less than rows.
WIDE_ROW_BYTES = 4 << 10


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote: the table at `seq`, or its changes in `(after, seq]`. For a dry run `rows` and `raw_bytes`
    are upper bounds, and nothing is written."""

    table: str
    uri: str
    after: int | None
    seq: int
    engine: str
    rows: int
    files: int
    bytes: int
    raw_bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export(source: ExportSource, destination: Destination, *, dry_run: bool, progress: Progress) -> ExportReport:
    """See `Table.export`."""
    started_s = time.monotonic()
    place, lake = destination.storage.uri, source.table.log.storage
    if is_inside(place, lake):
        raise Invalid(f"{place} lies inside the lake {lake.uri}", hint="Choose a destination outside it.", path=place)
    is_small = _is_small(source)
    engine = "driver" if is_small else "spark"
    report = partial(ExportReport, source.table.name, destination.storage.uri, source.after, source.seq, engine)
    if dry_run:
        destination.check()
        return report(source.rows, 0, 0, source.raw_bytes, 0.0)
    with source.hold_pin(), destination.claim() as claim:
        lane = ExportLane(destination.storage, claim.id, source.schema, source.cluster_by)
        progress(0, source.rows if is_small else 0, source.table.name)
        files, staged = (_write_on_driver if is_small else _write_on_spark)(source, lane, progress)
        if not files:
            empty, stage = writer.stage_empty(destination.storage, lane.new_name(), source.schema)
            files, staged = [empty], [stage]
        claim.publish(files, staged, source.describe())
    return report(
        sum(file.rows for file in files),
        len(files),
        sum(file.size for file in files),
        sum(file.raw_bytes for file in files),
        round(time.monotonic() - started_s, 3),
    )


def _is_small(source: ExportSource) -> bool:
    if not BULK.holds(rows=source.rows, raw_bytes=source.raw_bytes):
        source.measure_rows()
    return BULK.takes(rows=source.rows, raw_bytes=source.raw_bytes)


def _write_on_driver(
    source: ExportSource, lane: ExportLane, progress: Progress
) -> tuple[list[DataFile], list[StagedFile]]:
    source.check(None)
    with source.batches() as batches:
        exact = _report_progress(batches, source.rows, source.table.name, progress)
        done = list(lane.stage(exact))
    return [file for file, _ in done], [staged for _, staged in done]


def _report_progress(
    batches: Iterator[pa.RecordBatch], whole: int, name: str, progress: Progress
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += batch.num_rows
        progress(done, max(done, whole), name)


def _write_on_spark(
    source: ExportSource, lane: ExportLane, progress: Progress
) -> tuple[list[DataFile], list[StagedFile]]:
    """Each lane gets whole cluster keys. Spark sorts its rows and spills to disk; the lane holds one row group. Wide
    rows are moved in blocks (`GatherLane`)."""
    table = source.table
    spark = session(table.spark)
    row_bytes = source.raw_bytes // max(1, source.rows)
    lanes = tasks_for(spark, source.raw_bytes)
    look_at_workers(spark, packages_for([table.log.storage, lane.storage]))
    watch = lambda done, whole: progress(done, whole, table.name)  # noqa: E731
    with running_job(spark, row_bytes, watch, name=f"export {table.name}"):
        is_wide = bool(source.order) and row_bytes >= WIDE_ROW_BYTES
        scan = source.scan() if is_wide else None
        if scan is None or not scan.is_checked:
            source.check(spark)
        if not source.order:
            return _collect_files(source, source.frame(spark), lane)
        frame = _gather_blocks(spark, source, scan, lanes) if is_wide else source.frame(spark)
        order = source.lane_by if is_wide else source.order
        laid = frame.repartition(lanes, *_quote_names(source.lane_by)).sortWithinPartitions(*_quote_names(order))
        last = BlockLane(lane, source.lane_by, source.order, source.needed) if is_wide else lane
        return _collect_files(source, laid, last)


def _collect_files(source: ExportSource, frame: DataFrame, lane: Lane) -> tuple[list[DataFile], list[StagedFile]]:
    try:
        receipts = collect(run_lane(frame, lane, RECEIPT))
    except Exception as error:
        # Spark raises errors of many kinds.
        source.find_damage(error)
        raise
    files, staged, failure = staged_of(receipts)
    if failure is not None:
        raise failure
    return files, staged


def _gather_blocks(spark: SparkSession, source: ExportSource, scan: Scan | None, lanes: int) -> DataFrame:
    if scan is None:
        lane = GatherLane(source.needed, source.lane_by, None)
        return run_lane(source.frame(spark), lane, lane.output)
    lane = GatherLane(source.needed, source.lane_by, scan.lane)
    return run_lane(listing(spark, scan.files, lanes), lane, lane.output)


def _quote_names(names: Sequence[str]) -> list[str]:
    return list(map(backticked, names))
