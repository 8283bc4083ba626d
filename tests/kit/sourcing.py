"""The data source as Spark drives it, without Spark: its objects travel between processes as pickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import strandline as sl
from strandline.model.types import storage_schema
from strandline.spark_source import source as sources
from strandline.spark_source.rows import change_schema, pick_columns


def make_source(table: sl.Table, **options: str) -> sources.StrandlineSource:
    named = CaseInsensitiveDict(lake=table.log.storage.uri, table=table.name, **options)
    return cloudpickle.loads(cloudpickle.dumps(sources.StrandlineSource(named)))


def spark_struct(table: sl.Table, *, changes: bool = False, columns: str | None = None) -> StructType:
    schema = change_schema(table.definition) if changes else table.definition.schema
    return from_arrow_schema(storage_schema(pick_columns(schema, columns)))


def read_all(reader: Any, partitions: Sequence[Any]) -> pa.Table:
    """The rows of all partitions, each read by a reader of its own."""
    batches = [
        batch
        for each in pickle.loads(pickle.dumps(list(partitions)))
        for batch in pickle.loads(pickle.dumps(reader)).read(each)
    ]
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.Table.from_batches(batches, to_arrow_schema(reader.output.schema, timezone="UTC"))


def write_rows(writer: Any, tasks: Sequence[pa.Table], batch: int | None = None, *, rows: int = 1000) -> None:
    """Run a task for each table, then the commit."""
    messages = [run_task(writer, each, rows=rows) for each in tasks]
    commit = pickle.loads(pickle.dumps(writer)).commit
    commit(messages) if batch is None else commit(messages, batch)


def run_task(writer: Any, table: pa.Table, *, rows: int = 1000) -> Any:
    message = pickle.loads(pickle.dumps(writer)).write(iter(table.to_batches(max_chunksize=rows)))
    return pickle.loads(pickle.dumps(message))


class Stream:
    """A query over the change feed with its checkpoint. `restart` may come at any time, as after a crash."""

    def __init__(self, table: sl.Table, **options: str) -> None:
        self.table = table
        self.options = options
        self.offsets: list[dict[str, Any]] = []
        self.done: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        source = make_source(self.table, **self.options)
        self.reader = source.streamReader(spark_struct(self.table, changes=True))
        self.limit = self.reader.getDefaultReadLimit()

    def plan(self) -> bool:
        """Save the offset of the next batch; False when there is none. One that is saved and not done stays."""
        if len(self.offsets) > len(self.done):
            return True
        start = self.offsets[-1] if self.offsets else self.reader.initialOffset()
        end = json.loads(json.dumps(self.reader.latestOffset(start, self.limit)))
        if self.offsets and end == start:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> pa.Table:
        """The rows of the planned batch."""
        number = len(self.offsets) - 1
        start = self.offsets[number - 1] if number else self.reader.initialOffset()
        rows = read_all(self.reader, self.reader.partitions(start, self.offsets[number]))
        self.done = self.offsets[:]
        self.reader.commit(self.offsets[number])
        return rows
