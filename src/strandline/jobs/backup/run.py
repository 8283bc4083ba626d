"""A running copy: its two sides, its workers, and its counts.

It writes nothing. After a crash its counts are lost, and the next copy starts from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from strandline.jobs.backup.refusal import cleaned, diverged
from strandline.progress import Progress
from strandline.storage.open import Storage

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class CopyRun:
    """Shared by all workers. `whole_bytes` is known when everything is planned."""

    def __init__(self, source: Storage, target: Storage, pool: ThreadPoolExecutor, progress: Progress) -> None:
        self.source = source
        self.target = target
        self.whole_bytes = self.files_copied = self.bytes_copied = 0
        self._pool = pool
        self._progress = progress
        self._done_bytes = 0
        self._lock = threading.Lock()

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """The results of `work` for each item, in parallel. The first failure cancels the items that have not begun."""
        return list(self._pool.map(work, items))

    def advance(self, count: int, what: str) -> None:
        with self._lock:
            self._done_bytes += count
            # A checkpoint may have grown since it was listed.
            self._progress(min(self._done_bytes, self.whole_bytes), self.whole_bytes, what)

    def count_copied(self, size: int) -> None:
        with self._lock:
            self.files_copied += 1
            self.bytes_copied += size

    def read(self, path: str) -> bytes:
        """A file of the source that was there a moment ago."""
        try:
            return self.source.read(path)
        except FileNotFoundError as error:
            raise cleaned(self.source, path) from error

    def read_same(self, path: str) -> bytes:
        """A commit file that must be the same on both sides."""
        try:
            data = self.source.read(path)
        except FileNotFoundError as error:
            raise diverged(self.target, path) from error
        self.check_same(path, data)
        return data

    def check_same(self, path: str, data: bytes) -> None:
        if self.target.read(path) != data:
            raise diverged(self.target, path)
