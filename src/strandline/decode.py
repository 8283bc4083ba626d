"""The one Parquet reader: a file's rows in batches of bounded size, its page checksums verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.storage import Storage

BATCH_BYTES = 32 << 20
_MOST_ROWS = 16_384
_PROBED_ROWS = 64


def open_file(storage: Storage, path: str, *, is_coded: bool = False) -> pq.ParquetFile:
    """`FileNotFoundError` when there is none; `ValueError` or `OSError`, also later on, when it is damaged."""
    if not is_coded:
        return pq.ParquetFile(storage.input(path), page_checksum_verification=True)
    metadata = pq.read_metadata(storage.input(path))
    return pq.ParquetFile(
        storage.input(path),
        metadata=metadata,
        read_dictionary=_coded_columns(metadata),
        # A JSON column is not read into a dictionary otherwise.
        arrow_extensions_enabled=False,
        page_checksum_verification=True,
    )


def _coded_columns(metadata: pq.FileMetaData) -> list[str]:
    """The texts that have a dictionary in every group."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return [
        metadata.schema.column(at).path
        for at in range(metadata.num_columns)
        if metadata.schema.column(at).physical_type == "BYTE_ARRAY"
        and "." not in metadata.schema.column(at).path
        and all(group.column(at).has_dictionary_page for group in groups)
    ]


def batches(
    file: pq.ParquetFile, columns: Sequence[str] | None = None, *, is_coded: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows, as many at a time as take about `BATCH_BYTES`.

    With `is_coded`, a file that was opened so, a batch brings the dictionaries of its whole group, so it is large.
    A footer does not tell how much its rows take: a dictionary holds a wide value once. So the first rows are read to
    see, and later groups go by the rows before them."""
    if not file.metadata.num_row_groups:
        return
    if is_coded:
        yield from file.iter_batches(_MOST_ROWS, columns=columns)
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
