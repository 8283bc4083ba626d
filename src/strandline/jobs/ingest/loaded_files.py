"""What has been loaded into a table: transactions in the log, written by the very commits that loaded the rows.

Each load of a file is one transaction that never expires. Its name says where the file was (place, inode), how it
looked (size, time of change), how many lines it had, whether the last of them was open, and a digest of its
content. A load that continues an earlier one of a grown file replaces its transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strandline.jobs.ingest.source import Source

PREFIX = "ingest/"


@dataclass(frozen=True)
class Loaded:
    """One load of a file, up to `size` bytes."""

    place: str
    inode: str
    size: int
    mtime_ns: int
    lines: int
    is_open: bool
    digest: str
    seq: int = 0

    @staticmethod
    def of(source: Source, *, lines: int = 0, is_open: bool = False, digest: str) -> Loaded:
        return Loaded(source.place, source.inode, source.size, source.mtime_ns, lines, is_open, digest)

    @property
    def app(self) -> str:
        """The transaction's name."""
        lines = f"{self.lines}{'+' if self.is_open else ''}"
        return f"{PREFIX}{self.place}/{self.inode}/{self.size}/{self.mtime_ns}/{lines}/{self.digest}"

    @staticmethod
    def parse(app: str, seq: int) -> Loaded | None:
        """The load that a transaction stands for; None for one of another shape."""
        parts = app.split("/")
        if len(parts) != 7 or not app.startswith(PREFIX):
            return None
        _, place, inode, size, mtime_ns, lines, digest = parts
        try:
            return Loaded(
                place, inode, int(size), int(mtime_ns), int(lines.rstrip("+")), lines.endswith("+"), digest, seq
            )
        except ValueError:
            return None

    def looks_like(self, source: Source) -> bool:
        """Whether the file has not been written since, as far as can be seen without reading it."""
        is_same = self.place == source.place or (bool(source.inode) and self.inode == source.inode)
        return is_same and self.size == source.size and self.mtime_ns == source.mtime_ns


class LoadedFiles:
    """The loads into one table, as of one version of its log."""

    def __init__(self, txns: Mapping[str, int], version: int) -> None:
        self.version = version
        self._at: dict[str, Loaded] = {}
        self._by_size: dict[int, list[Loaded]] = {}
        for loaded in sorted(_parsed(txns), key=lambda loaded: loaded.seq):
            self.add(loaded)

    def add(self, loaded: Loaded) -> None:
        self._at[loaded.place] = loaded
        if loaded.inode:
            self._at[loaded.inode] = loaded
        self._by_size.setdefault(loaded.size, []).append(loaded)

    def latest(self, source: Source) -> list[Loaded]:
        """The last loads of this file, by where it is and by its inode: one, two or none."""
        found = (self._at.get(source.place), self._at.get(source.inode) if source.inode else None)
        return list(dict.fromkeys(loaded for loaded in found if loaded is not None))

    def of_size(self, size: int) -> list[Loaded]:
        return self._by_size.get(size, [])


def newer(txns: Mapping[str, int], version: int) -> list[Loaded]:
    """The loads that are remembered since a version of the log."""
    return list(_parsed({app: seq for app, seq in txns.items() if seq > version}))


def _parsed(txns: Mapping[str, int]) -> Iterable[Loaded]:
    for app, seq in txns.items():
        if app.startswith(PREFIX):
            loaded = Loaded.parse(app, seq)
            if loaded is not None:
                yield loaded
