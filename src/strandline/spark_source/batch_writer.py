"""`df.write`: the rows of a DataFrame as one commit. Tasks write files, and the driver's commit claims them all.

Files count only through that commit, so a task that fails, runs twice or is late changes nothing. A commit holds one
change a key at most: a task checks its own rows, and the commit checks the keys of all files together.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from strandline.crash import crash_point
from strandline.engines.lanes import files_of
from strandline.engines.log_lane import LogLane
from strandline.errors import Conflict, Internal, StrandlineError
from strandline.model.change import Commit
from strandline.spark_source.incoming import Incoming
from strandline.spark_source.options import Place
from strandline.spark_source.written import check_files
from strandline.storage.snapshot import DataFile
from strandline.tables.log import Amend
from strandline.tables.pins import QUIET_S, new_pin
from strandline.tables.store import TableStore

_QUERY = "sql.streaming.queryId"
_PIN_S = 3600.0


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What one task has written, or why it could not. `query` is the id of its stream."""

    files: tuple[DataFile, ...]
    failure: StrandlineError | None
    query: str | None


@dataclass(frozen=True)
class Write:
    """One write to a table, as every task and the commit see it."""

    place: Place
    generation: str
    incoming: Incoming
    began_s: float
    id: str = field(default_factory=lambda: f"write-{uuid.uuid4().hex}")

    @staticmethod
    def of(place: Place, generation: str, schema: StructType, options: Mapping[str, str]) -> Write:
        """The write of a DataFrame with these columns; `Invalid` when the table cannot take them."""
        table = place.open(generation)
        incoming = Incoming.of(table.definition, table.name, schema, options)
        return Write(place, generation, incoming, table.log.storage.now_s())

    def open(self) -> TableStore:
        return self.place.open(self.generation)

    def run_task(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task. Failures of ours are returned: Spark would run the task again."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        try:
            table = self.open()
            incoming = self.incoming
            lane = LogLane(
                table.log.storage, table.log.folder, incoming.definition, incoming.op, incoming.order_by is not None
            )
            with self._protect_files(table):
                rows = incoming.changes(batches, 0 if context is None else context.partitionId())
                files, failure = files_of(row for receipt in lane(rows) for row in receipt.to_pylist())
            crash_point("spark_write.task_done")
            return Written(tuple(files), failure, query)
        except StrandlineError as error:
            return Written((), error, query)

    @contextmanager
    def _protect_files(self, table: TableStore) -> Iterator[None]:
        """Keep the files of this and earlier tasks from a vacuum while this one runs, and until the next one does."""
        with table.pins.held(new_pin("write", writes_since_s=self.began_s)):
            yield
        if table.log.storage.now_s() - self.began_s > QUIET_S:
            table.pins.put(new_pin("write", name=self.id, length_s=_PIN_S, writes_since_s=self.began_s))

    def commit(self, messages: Sequence[Any], *, tokens: Sequence[str] = (), amend: Amend | None = None) -> Commit:
        """Claim the files of all tasks at one seq, or delete them and raise."""
        table = self.open()
        files = [file for message in messages for file in message.files]
        try:
            for failure in (message.failure for message in messages if message.failure is not None):
                raise failure
            if not files:
                return table.log.empty_commit(tokens)
            if table.log.find_token(tokens) is None:
                self._check_exist(table, files)
                check_files(table, self.incoming, files)
        except StrandlineError:
            table.log.discard(files)
            raise
        crash_point("spark_write.checked")
        commit = table.log.commit(files, operation=self.incoming.operation, tokens=tokens, amend=amend)
        self.release(table)
        return commit

    def _check_exist(self, table: TableStore, files: Sequence[DataFile]) -> None:
        storage = table.log.storage
        if storage.now_s() - self.began_s < QUIET_S:
            return
        for file in files:
            if not storage.exists(f"{table.log.folder}/{file.path}"):
                raise Conflict(
                    f"a vacuum of table {table.name!r} has deleted a file of this write before its commit",
                    hint="Nothing was written: run it again.",
                    table=table.name,
                )

    def discard(self, messages: Sequence[Any]) -> None:
        """Delete what the tasks have written, after some of them failed. When all of them ended, a commit was tried,
        and only vacuum may tell whether its files count."""
        table = self.open()
        if any(message is None for message in messages):
            table.log.discard(file for message in messages if message is not None for file in message.files)
        self.release(table)

    def release(self, table: TableStore) -> None:
        if table.log.storage.now_s() - self.began_s > QUIET_S:
            table.pins.release(self.id)


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """`mode("append")`: an upsert, or in a table without a key an append."""

    def __init__(self, place: Place, generation: str, schema: StructType, options: Mapping[str, str]) -> None:
        self.work = Write.of(place, generation, schema, options)
        self.tokens = [options["token"]] if options.get("token") else []

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.work.run_task(iterator)

    def commit(self, messages: list[Any]) -> None:
        self.work.commit(all_written(messages), tokens=self.tokens)

    def abort(self, messages: list[Any]) -> None:
        self.work.discard(messages)


def all_written(messages: Sequence[Any]) -> list[Written]:
    """What the tasks of a write have written; `Internal` unless all of them have ended."""
    if any(message is None for message in messages):
        raise Internal("Spark commits a write although some of its tasks have not ended")
    return list(messages)
