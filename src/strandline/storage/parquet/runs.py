"""Runs of rows with equal cluster columns: their first rows and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Runs = Sequence[tuple[int, tuple[Any, ...]]]


def runs_of(batch: pa.RecordBatch, cluster_by: Sequence[str]) -> Runs:
    """The first row and the cluster key of each run."""
    if not cluster_by:
        return []
    columns = [dense_values(batch.column(name)) for name in cluster_by]
    starts = run_starts(columns)
    keys = zip(*(hashable(column.take(pa.array(starts, pa.int64()))) for column in columns), strict=True)
    return list(zip(starts, keys, strict=True))


def run_starts(columns: Sequence[pa.Array]) -> list[int]:
    """The rows that differ from the row before them in one of the columns."""
    differs = np.zeros(len(columns[0]), bool)
    differs[:1] = True
    for column in columns:
        codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy()
        differs[1:] |= codes[1:] != codes[:-1]
    return np.flatnonzero(differs).tolist()


def hashable(values: pa.Array) -> list[Any]:
    """Python values that are equal when the values are. Times become numbers: Python does not know all years."""
    if pt.is_temporal(values.type):
        values = values.view(pa.int32() if pt.is_date32(values.type) else pa.int64())
    return [value if value == value else "NaN" for value in values.to_pylist()]


def stored_values(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def dense_values(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pt.is_dictionary(values.type) else stored_values(values)
