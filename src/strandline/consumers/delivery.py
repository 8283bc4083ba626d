"""Run a feed's rows through the lanes of a sink: on the driver when they are few, in Spark tasks when they are many.

Either way the same lane functions get the same rows. In Spark the lane is the last operator, and its results are
collected once. A lane without rows runs too, since its destination must learn that there were none.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.consumers.tally import count_rows
from strandline.engines.spark import collect, parallelism, parts_frame, run_lane, running_job, session, tasks_for
from strandline.engines.workers import DUCKDB
from strandline.errors import Corrupt, Internal, StrandlineError, Unavailable
from strandline.model.change import VNODE
from strandline.model.names import backticked
from strandline.model.types import conform_batches
from strandline.sinks.contract import Batch, Lane, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.consumers.feed import Feed, TablePart

Results = dict[str, list[Result]]
"""The results of the lanes, by the batch's id."""

_PACKED = "batch string, result binary"
_PACKED_SCHEMA = pa.schema([("batch", pa.string()), ("result", pa.binary())])


@dataclass(frozen=True)
class LaneRun:
    """A batch and the lane that takes its rows."""

    batch: Batch
    lane: Lane

    def run(self, rows: Iterator[pa.RecordBatch], *, is_part: bool = False) -> Iterator[Result]:
        """The results of the lane; an exception becomes a result too. For a part of the rows that has none
        (`is_part`) the lane does not run."""
        tally: dict[int, tuple[int, int, int]] = {}
        try:
            if is_part:
                first = list(islice(rows, 1))
                if not first:
                    return
                rows = chain(first, rows)
            yield from self.lane(count_rows(rows, tally) if self.batch.is_backfill else rows)
            if tally:
                yield Result(tally=tally)
        except StrandlineError as error:
            yield Result(error=error)
        except OSError as error:
            yield Result(error=Unavailable(f"a lane could not read or write: {error}"))
        except Exception as error:
            yield Result(error=Internal(f"a lane failed: {type(error).__name__}: {error}"))


def deliver(
    feed: Feed | None,
    runs: Sequence[LaneRun],
    *,
    is_ordered: bool,
    is_on_spark: bool,
    is_by_key: bool = False,
    to: str = "a sink",
) -> tuple[Results, int]:
    """Run the lanes over the feed's rows, or over none; returns their results and the number of Spark jobs. With
    `is_by_key`, a Spark task of a table without cluster columns gets a range of keys. `to` is the sink's name."""
    results: Results = defaultdict(list)
    jobs = 0
    if feed is not None:
        with feed.hold_files():
            if is_on_spark:
                jobs = _deliver_on_spark(feed, runs, results, is_ordered, is_by_key, to)
            else:
                _deliver_on_driver(feed, runs, results)
    for run in runs:
        if run.batch.id not in results:
            results[run.batch.id] = list(run.run(iter(())))
    return results, jobs


def _deliver_on_driver(feed: Feed, runs: Sequence[LaneRun], results: Results) -> None:
    with feed.batches() as rows:
        if len(runs) == 1:
            results[runs[0].batch.id] += runs[0].run(rows)
            return
        table = pa.Table.from_batches(rows, feed.schema)

    def take_own(run: LaneRun) -> list[Result]:
        mine = pc.is_in(table.column(VNODE), pa.array(run.batch.vnodes, pa.int32()))
        return list(run.run(iter(table.filter(mine).to_batches())))

    with ThreadPoolExecutor(len(runs)) as pool:
        for run, done in zip(runs, pool.map(take_own, runs), strict=True):
            results[run.batch.id] += done


def _deliver_on_spark(
    feed: Feed, runs: Sequence[LaneRun], results: Results, is_ordered: bool, is_by_key: bool, to: str
) -> int:
    table = feed.table
    spark = session(table.spark)
    row_bytes = feed.extent.raw_bytes // max(1, feed.extent.rows)
    by_vnode = {vnode: run for run in runs for vnode in run.batch.vnodes}
    packages: tuple[str, ...] = ()
    parts = _find_parts(feed, runs, spark, is_ordered) if feed.is_table and not is_by_key else []
    task: _Task | _ReadTask = _Task(by_vnode, feed.schema)
    if parts:
        feed.check_files(spark)
        frame = parts_frame(spark, [pickle.dumps(part) for part in feed.parts(parts, is_sorted=is_ordered)])
        task, packages = _ReadTask(by_vnode), (DUCKDB,)
    else:
        frame = _lay_rows(feed, runs, spark, is_ordered, is_by_key)
    with running_job(spark, row_bytes, name=f"send {table.name} to {to}") as job:
        try:
            stores = [store for run in runs if (store := getattr(run.lane, "storage", None)) is not None]
            done = collect(run_lane(frame, task, _PACKED, stores=[table.log.storage, *stores], packages=packages))
        except StrandlineError:
            raise
        except Exception as error:
            _raise_damage(feed, error)
            lines = str(error).strip().splitlines()
            raise Unavailable(
                f"the Spark job of a sink failed: {lines[0] if lines else type(error).__name__}"
            ) from error
    for row in done:
        result: Result = pickle.loads(row["result"])
        if isinstance(result.error, Corrupt):
            _raise_damage(feed, result.error)
        results[row["batch"]].append(result)
    return job.count


def _find_parts(feed: Feed, runs: Sequence[LaneRun], spark: SparkSession, is_ordered: bool) -> list[Sequence[int]]:
    """The vnodes of each task that reads the rows of a table by itself; none where Spark reads them better: it splits
    few large vnodes, and it sorts by cluster columns across all of them."""
    if is_ordered:
        return [run.batch.vnodes for run in runs]
    tasks = max(parallelism(spark), tasks_for(spark, feed.extent.raw_bytes))
    vnodes = sum(len(run.batch.vnodes) for run in runs)
    if not feed.is_laid or vnodes < min(tasks, parallelism(spark)):
        return []
    found: list[Sequence[int]] = []
    for run in runs:
        mine = run.batch.vnodes
        count = min(len(mine), -(-tasks * len(mine) // vnodes))
        found += [mine[at * len(mine) // count : (at + 1) * len(mine) // count] for at in range(count)]
    return found


def _lay_rows(feed: Feed, runs: Sequence[LaneRun], spark: SparkSession, is_ordered: bool, is_by_key: bool) -> DataFrame:
    """The rows as Spark reads them, laid out as the lanes take them."""
    from pyspark.sql import functions as F

    frame = feed.frame(spark)
    if is_ordered:
        lane_of = {vnode: at for at, run in enumerate(runs) for vnode in run.batch.vnodes}
        places = F.array(*[F.lit(lane_of.get(vnode, 0)) for vnode in range(feed.definition.vnodes)])
        frame = frame.repartitionById(len(runs), F.element_at(places, F.col(VNODE) + 1))
    elif is_by_key and feed.definition.key and not feed.outgoing.cluster_by:
        key = list(map(backticked, feed.definition.key))
        frame = frame.repartitionByRange(tasks_for(spark, feed.extent.raw_bytes), *key)
    elif feed.is_laid:
        # The rows of a file are in the order of their keys already: neither a shuffle nor a sort would help.
        frame = frame.coalesce(max(parallelism(spark), tasks_for(spark, feed.extent.raw_bytes)))
    else:
        by = list(map(backticked, feed.outgoing.cluster_by)) or [VNODE]
        frame = frame.repartition(tasks_for(spark, feed.extent.raw_bytes), *by)
    if is_ordered or is_by_key or not feed.is_laid:
        frame = frame.sortWithinPartitions(*map(backticked, feed.order))
    return frame


def _raise_damage(feed: Feed, error: Exception) -> None:
    # Loaded late: Spark tasks import this module, and may lack the library that reads the files.
    from strandline.consumers.damage import damaged_files

    storage = feed.table.log.storage
    for path, fault in damaged_files(storage, feed.files, error):
        raise Corrupt(
            f"{storage.url(path)} cannot be read: {fault}",
            hint="See what is affected: strandline doctor --deep",
            path=path,
        ) from error


@dataclass(frozen=True)
class _Task:
    """The function of a Spark task: runs the lane of its rows, which all belong to one batch."""

    runs: Mapping[int, LaneRun]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = (batch for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is None:
            return
        run = self.runs[first.column(VNODE)[0].as_py()]
        for result in run.run(conform_batches(chain([first], some), self.schema)):
            row: dict[str, Any] = {"batch": run.batch.id, "result": pickle.dumps(result)}
            yield pa.RecordBatch.from_pylist([row], schema=_PACKED_SCHEMA)


@dataclass(frozen=True)
class _ReadTask:
    """The function of a Spark task that reads parts of a table by itself (`part`): runs the lane of their rows."""

    runs: Mapping[int, LaneRun]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for packed in (packed for batch in batches for packed in batch.column("part").to_pylist()):
            part: TablePart = pickle.loads(packed)
            run = self.runs[min(part.merge.only or ())]
            for result in run.run(_read_part(part), is_part=True):
                row: dict[str, Any] = {"batch": run.batch.id, "result": pickle.dumps(result)}
                yield pa.RecordBatch.from_pylist([row], schema=_PACKED_SCHEMA)


def _read_part(part: TablePart) -> Iterator[pa.RecordBatch]:
    """The rows of a part. `Corrupt` when its files cannot be read; the driver finds out which."""
    try:
        yield from (batch for batch in part.batches() if batch.num_rows)
    except (Corrupt, Unavailable):
        raise
    except Exception as error:
        raise Corrupt(f"a part of the table cannot be read: {error}") from error
