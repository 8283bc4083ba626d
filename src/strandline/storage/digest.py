"""The digest of a data file: computed while the bytes are written, kept in the commit that claims the file.

Every job that copies rows (a fold, a purge, a restore, an export, a backup, a sink) checks it first: otherwise damaged
rows would get a good digest in their copy. The digest covers every byte, also the footer and the page headers, which
page checksums leave out. A file without a digest, from an older version, is read instead: its pages have checksums.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from strandline.errors import Corrupt, StrandlineError, Unavailable
from strandline.storage.open import Storage
from strandline.storage.parquet import reader
from strandline.storage.snapshot import DataFile

CHUNK_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 10
_QUICK_BYTES = 1 << 30
_AT_ONCE = 8


class DigestStream:
    """An output stream that computes the digest of its bytes.

    Give it to Arrow through `buffered`: Arrow writes a Parquet file of a few rows in some fifty pieces, and each call
    from Arrow into Python costs as much as the digest of ten kilobytes."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.crc = 0

    def buffered(self) -> pa.NativeFile:
        """The stream for Arrow; flush it before reading the digest."""
        return pa.BufferedOutputStream(pa.PythonFile(self, mode="w"), _BUFFER_BYTES)

    def write(self, data: bytes | memoryview) -> int:
        if not self._stream.closed:
            self.crc = zlib.crc32(data, self.crc)
            self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: the opener of the inner stream closes it or gives it up."""


def is_quick(storage: Storage, files: Iterable[DataFile]) -> bool:
    """Whether this process checks these files sooner than Spark's tasks would begin: the bytes of a local disk pass
    through a digest at about a gigabyte a second."""
    some = list(files)
    has_digests = all(file.crc is not None for file in some)
    return storage.is_local and has_digests and sum(file.size for file in some) <= _QUICK_BYTES


def find_fault(storage: Storage, path: str, file: DataFile, columns: Sequence[str] | None = None) -> str:
    """Why a file differs from its commit; empty when it does not. With `columns`, for a job that reads no others, only
    their pages are checked."""
    try:
        with storage.input(path) as stream:
            size = stream.size()
            if size != file.size:
                return f"it has {size} bytes, and its commit says {file.size}"
            if file.crc is None or columns is not None:
                return _find_unreadable(storage, path, file, columns)
            crc = 0
            while chunk := stream.read(CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
        return "" if crc == file.crc else mismatch_text(crc, file.crc)
    except FileNotFoundError:
        return "the file is missing"
    except StrandlineError:
        raise
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        if storage.is_local:
            return what
        raise Unavailable(f"{storage.url(path)} could not be read: {what}", path=path) from error


def mismatch_text(found: int, expected: int) -> str:
    return f"its bytes have the digest {found:08x}, and its commit says {expected:08x}"


def _find_unreadable(storage: Storage, path: str, file: DataFile, columns: Sequence[str] | None) -> str:
    """The same without a digest: read every page, which verifies its checksum, and count the rows."""
    try:
        with reader.open_file(storage, path) as opened:
            names = opened.schema_arrow.names
            inside = names if columns is None else [name for name in columns if name in names]
            rows = sum(batch.num_rows for batch in reader.batches(opened, inside))
    except (OSError, ValueError) as error:
        return str(error).splitlines()[0]
    return "" if rows == file.rows else f"it has {rows} rows, and its commit says {file.rows}"


def check(storage: Storage, files: Iterable[tuple[str, DataFile]], columns: Sequence[str] | None = None) -> None:
    """`Corrupt` when one of these files, named by their paths in the storage, is damaged."""
    some = list(files)
    if not some:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(some))) as pool:
        found = pool.map(lambda each: find_fault(storage, each[0], each[1], columns), some)
        for (path, _), what in zip(some, found, strict=True):
            if what:
                raise corrupt(storage, path, what)


def corrupt(storage: Storage, path: str, what: str) -> Corrupt:
    return Corrupt(
        f"{storage.url(path)} is damaged: {what}; it was not used",
        hint="Put the file back from a backup. See what is affected: strandline doctor --deep",
        path=path,
    )
