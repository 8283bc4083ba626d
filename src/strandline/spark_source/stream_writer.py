"""`df.writeStream`: each micro-batch as one commit, exactly once.

The commit of a batch also records its number under the id of the query, which the checkpoint keeps. A batch that Spark
runs again after a crash finds its number there and adds nothing. The record is one number a query and never expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from strandline.errors import Conflict, Internal
from strandline.spark_source.batch_writer import Write, Written, all_written
from strandline.spark_source.options import Place
from strandline.storage.snapshot import Draft, Snapshot


class BatchStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Spark makes one for each batch and another one for its commit."""

    def __init__(self, place: Place, generation: str, schema: StructType, options: Mapping[str, str]) -> None:
        self.work = Write.of(place, generation, schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.work.run_task(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        written = all_written(messages)
        if not written:
            return
        queries = {message.query for message in written}
        if len(queries) != 1 or None in queries:
            raise Internal(f"the tasks of a batch name the queries {queries}; expected one")
        query_txn = f"query/{queries.pop()}"
        table = self.work.open()
        if table.log.refresh().snapshot.txns.get(query_txn, -1) >= batchId:
            table.log.discard(file for message in written for file in message.files)
            return

        def amend(snapshot: Snapshot, draft: Draft) -> Draft:
            if snapshot.txns.get(query_txn, -1) >= batchId:
                raise Conflict(
                    f"batch {batchId} was committed by another run of this query a moment ago",
                    hint="One checkpoint serves one query at a time: end the other run.",
                    table=table.name,
                )
            return replace(draft, txns={**draft.txns, query_txn: batchId})

        self.work.commit(written, amend=amend)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self.work.discard(messages)
