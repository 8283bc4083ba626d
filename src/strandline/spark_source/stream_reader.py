"""`spark.readStream`: the changes of a table, from a seq, from the head, or after the rows that it has.

An offset names its whole range, `(after, seq]`, or the vnodes `[first, end)` of the table at `seq`. So a batch that
Spark repeats has the same rows, also the first one, whose beginning Spark does not save. It also names the table's
generation: the seqs of one that was dropped say nothing of the next one.

A running stream keeps a pin on the log. After a crash the pin expires; a stream that comes later than that may find
the log trimmed, and says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from strandline.errors import Invalid, NotFound, NotRetained, StrandlineError
from strandline.model import duration
from strandline.spark_source.options import Place, whole_number
from strandline.spark_source.rows import Output, change_schema, read_changes, read_slice
from strandline.spark_source.slices import SlicePartition, cut, table_sizes, vnode_sizes
from strandline.tables.pins import new_pin
from strandline.tables.store import TableStore

Offset = dict[str, Any]
_BACKFILL = "backfill"
_HEAD = "head"
_GENERATION = "generation"
_PIN = "1d"
# A pin moves at most this often: it may lie behind the stream.
_PIN_MOVES_S = 60.0
_log = logging.getLogger("strandline.spark")


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans in one process on the driver for as long as the query runs, reads in tasks."""

    def __init__(self, place: Place, generation: str, schema: StructType, options: Mapping[str, str]) -> None:
        self.place = place
        self.generation = generation
        self.output = Output(schema)
        self.start = _check_start(options.get("start"), place.table)
        self.max_rows = whole_number(options, "maxRowsPerTrigger")
        self.max_bytes = whole_number(options, "maxBytesPerTrigger")
        self.pin_s = duration.seconds(options.get("pin") or _PIN, "pin")
        self._target: int | None = None
        self._free_of_data: tuple[int, int] = (0, 0)
        self._pin_name: str | None = None
        self._pinned_s = 0.0

    def initialOffset(self) -> Offset:
        if self.start == _BACKFILL:
            return {"start": _BACKFILL}
        table = self._open()
        if self.start == _HEAD:
            return self._offset(seq=table.head)
        self._check_range(table, int(self.start))
        return self._offset(seq=int(self.start))

    def _offset(self, **place: int) -> Offset:
        return {_GENERATION: self.generation, **place}

    def _check_generation(self, offset: Offset) -> None:
        """`NotFound` for an offset of a table that had the same name."""
        if offset.get(_GENERATION, self.generation) != self.generation:
            raise NotFound(
                f"table {self.place.table!r} was dropped and created again since the stream read it",
                hint="Start a new stream, with another checkpoint and start='backfill' for the rows of the table, or"
                " start='0' for all of its changes.",
                table=self.place.table,
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.max_rows is not None:
            return ReadMaxRows(self.max_rows)
        return ReadAllAvailable() if self.max_bytes is None else ReadMaxBytes(self.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open().head

    def reportLatestOffset(self) -> Offset:
        return {"seq": self._open().head}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; `start` itself when there is nothing new. A batch ends with a whole commit."""
        self._check_generation(start)
        table = self._open()
        self.output.check(change_schema(table.definition), table.name)
        most = self._limits(limit)
        if "start" in start:
            seq = table.head if self._target is None else self._target
            found = self._take_vnodes(table, seq, 0, most)
        elif int(start.get("end", 0)) < int(start.get("vnodes", 0)):
            found = self._take_vnodes(table, start["seq"], start["end"], most)
        else:
            found = self._take_commits(table, start, most)
        self._hold(table, found["seq"] if "end" in found or "after" not in found else found["after"])
        return found

    def _limits(self, limit: ReadLimit) -> tuple[float, float]:
        """The most rows and bytes of a batch. Spark passes one limit, and none to ask for everything."""
        if isinstance(limit, ReadAllAvailable):
            return float("inf"), float("inf")
        return float(self.max_rows or "inf"), float(self.max_bytes or "inf")

    def _take_vnodes(self, table: TableStore, seq: int, first: int, most: tuple[float, float]) -> Offset:
        """The next vnodes of the table at `seq`, at least one."""
        rows, sizes = table_sizes(table.merge(seq))
        end, taken = first, (0, 0)
        while end < len(rows):
            taken = (taken[0] + rows[end], taken[1] + sizes[end])
            if end > first and (taken[0] > most[0] or taken[1] > most[1]):
                break
            end += 1
        return self._offset(seq=seq, first=first, end=end, vnodes=len(rows))

    def _take_commits(self, table: TableStore, start: Offset, most: tuple[float, float]) -> Offset:
        """The next commits, at least one."""
        log = table.log.refresh()
        upto = log.head if self._target is None else min(log.head, self._target)
        after = start["seq"]
        if self._free_of_data[0] == after:
            # Commits without rows may have been trimmed since they were seen.
            after = max(after, self._free_of_data[1])
        self._check_range(table, after)
        if upto <= after:
            return start
        seq, rows, size = after, 0, 0
        for number, file in log.files(after, upto):
            rows, size = rows + file.rows, size + file.raw_bytes
            if number > seq > after and (rows > most[0] or size > most[1]):
                break
            seq = number
        if seq == after:
            self._free_of_data = (start["seq"], upto)
            return start
        return self._offset(seq=seq, after=after)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._check_generation(end)
        table = self._open()
        if "end" in end:
            _, sizes = table_sizes(table.merge(end["seq"]))
            return [SlicePartition(part, end["seq"]) for part in cut(sizes, end["first"], end["end"])]
        if "after" not in end:
            return []
        self._check_range(table, end["after"])
        log = table.log.refresh()
        _, sizes = vnode_sizes([], [file for _, file in log.files(end["after"], end["seq"])], log.definition.vnodes)
        return [SlicePartition(part, end["seq"], end["after"]) for part in cut(sizes)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        table = self._open()
        if partition.after is None:
            merge = table.merge(partition.seq)
            return read_slice(table, merge, partition.part, self.output, None, op_seq=True)
        log = table.log.refresh()
        return read_changes(table, log, partition.after, partition.seq, partition.part, self.output)

    def commit(self, end: Offset) -> None:
        """The batch is done. The pin moves with the next one."""

    def stop(self) -> None:
        """The pin stays until it expires: the query may be started again."""

    def _open(self) -> TableStore:
        return self.place.open(self.generation)

    def _check_range(self, table: TableStore, after: int) -> None:
        """`NotRetained` when changes after a seq are gone, `Invalid` when the table has never had that seq."""
        log = table.log.refresh()
        trimmed_to = log.trimmed_to
        if after > log.head:
            raise Invalid(
                f"table {table.name!r} has seqs 0 to {log.head}, and the stream is at {after}",
                hint="Was the lake restored from a backup? Then start a new stream, with another checkpoint.",
                table=table.name,
                seq=after,
            )
        if after < trimmed_to:
            raise NotRetained(
                f"the changes of table {table.name!r} after seq {after} are gone: its log is kept from {trimmed_to} on",
                hint="Start a new stream, with another checkpoint and start='backfill' for the rows of the table, or"
                f" start='{trimmed_to}' for the changes that are left. To keep the log longer: table.configure(keep=…)"
                " or the option pin.",
                table=table.name,
                seq=after,
                oldest=trimmed_to,
            )

    def _hold(self, table: TableStore, seq: int) -> None:
        """Keep the changes after `seq` until the pin expires."""
        now_s = time.monotonic()
        if not self.pin_s or (self._pin_name and now_s - self._pinned_s < min(_PIN_MOVES_S, self.pin_s / 3)):
            return
        pin = new_pin("readStream", name=self._pin_name, length_s=self.pin_s, seq=seq)
        try:
            table.pins.put(pin)
            self._pin_name, self._pinned_s = pin.name, now_s
        except (OSError, StrandlineError) as error:
            _log.warning("the stream of table %s keeps no pin: %s", table.name, error)
            self.pin_s = 0.0


def _check_start(start: str | None, table: str) -> str:
    if start is None or not (start in (_BACKFILL, _HEAD) or start.isdecimal()):
        what = "needs the option start" if start is None else f"has the option start={start!r}"
        raise Invalid(
            f"the stream of table {table!r} {what}",
            hint="Expected one of: 'backfill', the rows of the table and then its changes; 'head', only later changes;"
            " a seq, the changes after it.",
            table=table,
        )
    return start
