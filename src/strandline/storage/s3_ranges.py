"""How DuckDB reads an S3 bucket: a file object with a position for each thread.

DuckDB's threads share one file object and call `seek`, then `read`. With one position for all, a thread would read
where another one has just sought.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.fsspec import BufferedFile, FsspecStore


class RangedFile(BufferedFile):  # type: ignore[misc]
    """Reads the wanted range, without a buffer."""

    def __init__(self, fs: FsspecStore, path: str, mode: Any = "rb", **options: Any) -> None:
        try:
            super().__init__(fs, path, mode, **options)
        except BaseException:
            self.closed = True  # nothing is open; otherwise the collector would print a trace
            raise
        bucket, self._key = fs._split_path(path)
        self._bucket = fs._construct_store(bucket)
        self._place = threading.local()
        self._outages = fs.outages

    def tell(self) -> int:
        return int(getattr(self._place, "at", 0))

    def seek(self, loc: int, whence: int = 0) -> int:
        base = (0, self.tell(), int(self.size))[whence]
        self._place.at = base + loc
        return base + loc

    def read(self, length: int = -1) -> bytes:
        start = self.tell()
        end = int(self.size) if length < 0 else min(int(self.size), start + length)
        if end <= start:
            return b""
        self._place.at = end
        with self._outages.record_errors():
            return bytes(obstore.get_range(self._bucket, self._key, start=start, end=end))


class Outages:
    """The last failure of the store and its time: DuckDB passes on neither the kind nor the cause of an error from
    here."""

    def __init__(self) -> None:
        self._last: tuple[float, BaseError] | None = None

    @contextmanager
    def record_errors(self) -> Iterator[None]:
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise
        except BaseError as error:
            self._last = (time.monotonic(), error)
            raise

    def since(self, moment_s: float) -> BaseError | None:
        """The store's last failure since a moment of the monotonic clock."""
        last = self._last
        return last[1] if last is not None and last[0] >= moment_s else None


class RangedStore(FsspecStore):  # type: ignore[misc]
    @cached_property
    def outages(self) -> Outages:
        return Outages()

    def _open(self, path: str, mode: Any = "rb", **options: Any) -> Any:
        with self.outages.record_errors():
            return RangedFile(self, path, mode) if mode == "rb" else super()._open(path, mode, **options)
