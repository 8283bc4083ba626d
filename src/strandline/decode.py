"""The one Parquet reader: a file's rows in batches of bounded size, its page checksums verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.storage import Storage

BATCH_BYTES = 32 << 20
_MOST_ROWS = 16_384
_PROBED_ROWS = 64


def open_file(storage: Storage, path: str) -> pq.ParquetFile:
    """`FileNotFoundError` when there is none; `ValueError` or `OSError`, also later on, when it is damaged."""
    return pq.ParquetFile(storage.input(path), page_checksum_verification=True)


def batches(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows, as many at a time as take about `BATCH_BYTES`.

    A footer does not tell how much its rows take: a dictionary holds a wide value once. So the first rows are read to
    see, and later groups go by the rows before them."""
    if not file.metadata.num_row_groups:
        return
    probe = next(file.iter_batches(_PROBED_ROWS, row_groups=[0], columns=columns), None)
    row_bytes = _row_bytes(probe)
    for group in range(file.metadata.num_row_groups):
        rows = max(1, min(_MOST_ROWS, BATCH_BYTES // row_bytes))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            row_bytes = max(row_bytes // 2, _row_bytes(batch))
            yield batch


def _row_bytes(batch: pa.RecordBatch | None) -> int:
    return max(1, batch.nbytes // batch.num_rows) if batch is not None and batch.num_rows else 1
