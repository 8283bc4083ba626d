"""What every storage can do.

Paths are relative to the storage's root, with forward slashes. Two calls carry the whole consistency of a lake:
`put_new` creates a file or says that it exists, never both and never half; `output` makes a file visible whole or
not at all. After either returns, the bytes survive a crash of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class FileInfo:
    path: str
    size: int
    modified_s: float


class Storage(Protocol):
    """Picklable, so that Spark tasks open the same files as the driver."""

    @property
    def uri(self) -> str:
        """The root's own address."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether Spark's own readers reach the files (PySpark ships no S3 client)."""
        ...

    @property
    def delta_options(self) -> Mapping[str, str]:
        """Settings with which the `deltalake` library opens `url(…)`."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file; `FileNotFoundError` when there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def put_new(self, path: str, data: bytes) -> bool:
        """Create a file that must not exist; False when it does, with nothing changed."""
        ...

    def output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """A stream whose file appears when the block ends well, and never when it raises."""
        ...

    def input(self, path: str) -> pa.NativeFile:
        """The file for random access; `FileNotFoundError` when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """Every file below the folder `prefix`, in no promised order; temporary files are left out."""
        ...

    def temporaries(self, prefix: str) -> Iterator[FileInfo]:
        """Unfinished files below `prefix` that a crash left behind."""
        ...

    def now_s(self) -> float:
        """The time by the clock that also dates the files, in seconds since 1970."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files; one that is gone already is no error."""
        ...

    def url(self, path: str) -> str:
        """The address by which other libraries open the file."""
        ...

    def duckdb_filesystem(self) -> Any | None:
        """An fsspec file system for DuckDB, or None when it reaches the files itself."""
        ...

    def check_put_new(self) -> None:
        """Prove that two creators of one file cannot both win; `Invalid` when the store lets them."""
        ...
