"""Parquet files as the writer makes them, and their footers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.storage.local import LocalStorage
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile


def write(
    storage: LocalStorage,
    table: pa.Table,
    budget: writer.Budget = writer.DEFAULT,
    batch_rows: int | list[int] | None = None,
    cluster_by: Sequence[str] = (),
) -> list[DataFile]:
    """Write a table into files of names of their own, in batches of so many rows; or, for a list, cut after each."""
    names = (f"{number}.parquet" for number in itertools.count())
    if isinstance(batch_rows, list):
        ends = [0, *batch_rows, table.num_rows]
        batches = [b for start, end in itertools.pairwise(ends) for b in table.slice(start, end - start).to_batches()]
    else:
        batches = table.to_batches(max_chunksize=batch_rows)
    return list(
        writer.write_files(
            storage, "out", lambda: next(names), batches, table.schema, cluster_by=cluster_by, budget=budget
        )
    )


def metadata_of(storage: LocalStorage, file: DataFile) -> pq.FileMetaData:
    return pq.ParquetFile(storage.url(f"out/{file.path}")).metadata


def chunks(storage: LocalStorage, files: Sequence[DataFile]) -> dict[str, list[Any]]:
    """The column chunks of files, by path."""
    found: dict[str, list[Any]] = {}
    for file in files:
        metadata = metadata_of(storage, file)
        for group in range(metadata.num_row_groups):
            for at in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(at)
                found.setdefault(chunk.path_in_schema, []).append(chunk)
    return found
