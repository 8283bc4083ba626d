"""Record batches as a file of JSON lines."""

import json
from collections.abc import Iterable
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def write_jsonl(batches: Iterable[pa.RecordBatch], path: str | PathLike[str]) -> int:
    """Write one object per row, nulls included, and return the number of rows.

    Times are ISO 8601 in UTC (`Z`), dates ISO 8601; JSON columns are values. An existing file is
    replaced. After a crash the file has the lines so far; the last may be incomplete."""
    rows = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            names = batch.schema.names
            columns = [_to_json_values(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":"))
                file.write(f"{line}\n")
            rows += batch.num_rows
    return rows


def _to_json_values(column: pa.Array) -> list[Any]:
    if isinstance(column, pa.ExtensionArray):
        return [None if text is None else json.loads(text) for text in column.storage.to_pylist()]
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
    return list((column.cast(pa.string()) if pa.types.is_date(column.type) else column).to_pylist())
