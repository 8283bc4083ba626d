"""Rows that are too many for the driver's memory: kept in files, in order, until Spark reads them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.engines.scan import ScanFile
from strandline.storage.open import Storage
from strandline.storage.parquet import writer
from strandline.tables.spark_files import spark_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class OverflowFiles:
    """Files that are deleted when the `with` block ends. A crash leaves them beside the log, unclaimed."""

    ORDER = "_sl_order"

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._files: list[tuple[str, int]] = []
        self._schema: pa.Schema | None = None

    def __enter__(self) -> OverflowFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.delete(path for path, _ in self._files)

    def add_all(self, held: list[pa.Table], rest: Iterable[pa.Table]) -> None:
        """Write the rows of `held`, which is emptied meanwhile, and then of `rest`."""
        pieces = itertools.chain((held.pop(0) for _ in range(len(held))), rest)
        batches = self._number_rows(pieces)
        first = next(batches)
        self._schema = first.schema
        for file in writer.write_files(
            self._storage, self._folder, _new_name, itertools.chain([first], batches), first.schema
        ):
            self._files.append((f"{self._folder}/{file.path}", file.size))

    def _number_rows(self, pieces: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        start = 0
        for piece in pieces:
            numbers = pa.array(range(start, start + piece.num_rows), pa.int64())
            start += piece.num_rows
            yield from piece.append_column(self.ORDER, numbers).to_batches()

    def frame(self, spark: SparkSession) -> DataFrame:
        assert self._schema is not None
        files = [ScanFile(self._storage.url(path), path, 0, 0, size) for path, size in self._files]
        return spark_scan(spark, self._storage, files, [self._schema], self._schema.names, number_as=None)


def _new_name() -> str:
    return f"spool-{uuid.uuid4().hex}.parquet"
