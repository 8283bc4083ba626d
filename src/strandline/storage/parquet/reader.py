"""The one Parquet reader: a file's rows in batches of bounded size, its page checksums verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.storage.open import Storage

BATCH_BYTES = 32 << 20
MOST_ROWS = 16_384
_READ_ROWS = 512


def open_file(storage: Storage, path: str, *, is_coded: bool = False) -> pq.ParquetFile:
    """Open a file; with `is_coded`, texts stay in its dictionaries. `FileNotFoundError` when it is missing; a damaged
    file raises `ValueError` or `OSError`, now or later."""
    if not is_coded:
        return pq.ParquetFile(storage.input(path), page_checksum_verification=True)
    metadata = pq.read_metadata(storage.input(path))
    return pq.ParquetFile(
        storage.input(path),
        metadata=metadata,
        read_dictionary=_coded_columns(metadata),
        # Otherwise a JSON column is not read into a dictionary.
        arrow_extensions_enabled=False,
        page_checksum_verification=True,
    )


def _coded_columns(metadata: pq.FileMetaData) -> list[str]:
    """The text columns with a dictionary in every row group."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return [
        metadata.schema.column(at).path
        for at in range(metadata.num_columns)
        if metadata.schema.column(at).physical_type == "BYTE_ARRAY"
        and "." not in metadata.schema.column(at).path
        and all(group.column(at).has_dictionary_page for group in groups)
    ]


def batches(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about `BATCH_BYTES`, or of `_READ_ROWS` rows where these take more.

    A footer does not tell the size of rows in memory: a dictionary holds a wide value once. So a few rows are read at a
    time, and joined."""
    read: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in file.iter_batches(_READ_ROWS, columns=columns):
        read.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= MOST_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(read)
            read, rows, size = [], 0, 0
    if read:
        yield pa.concat_batches(read)


def coded_batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file opened with `is_coded`: texts stay in dictionaries, the other columns limit the batch."""
    coded = set(_coded_columns(file.metadata))
    for at in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(at)
        chunks = (group.column(index) for index in range(group.num_columns))
        size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema not in coded)
        rows = max(1, min(MOST_ROWS, BATCH_BYTES * group.num_rows // max(1, size)))
        yield from file.iter_batches(rows, row_groups=[at], columns=columns)
