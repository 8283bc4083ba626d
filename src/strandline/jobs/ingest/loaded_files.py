"""The files that were loaded into a table: transactions in the log, written by the commits that loaded the rows.

Each load of a file is one transaction that never expires. Its name has the place and inode of the file, its size, its
time of change, its number of lines, whether the last line had no newline, and a digest of its content. When a file has
grown and its new part is loaded, the new transaction replaces the old one.
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
        """The load of a transaction; None when its name is not of this form."""
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
        """Whether the file seems unchanged, without reading it."""
        is_same = self.place == source.place or (bool(source.inode) and self.inode == source.inode)
        return is_same and self.size == source.size and self.mtime_ns == source.mtime_ns


class LoadedFiles:
    """The loads into one table, as of one version of its log."""

    def __init__(self, txns: Mapping[str, int], version: int) -> None:
        self.version = version
        self._at: dict[str, Loaded] = {}
        self._by_size: dict[int, list[Loaded]] = {}
        for loaded in sorted(_parse_loads(txns), key=lambda loaded: loaded.seq):
            self.add(loaded)

    def add(self, loaded: Loaded) -> None:
        self._at[loaded.place] = loaded
        if loaded.inode:
            self._at[loaded.inode] = loaded
        self._by_size.setdefault(loaded.size, []).append(loaded)

    def latest(self, source: Source) -> list[Loaded]:
        """The last loads of this file, by its place and by its inode: none, one or two."""
        found = (self._at.get(source.place), self._at.get(source.inode) if source.inode else None)
        return list(dict.fromkeys(loaded for loaded in found if loaded is not None))

    def of_size(self, size: int) -> list[Loaded]:
        return self._by_size.get(size, [])


def loads_after(txns: Mapping[str, int], version: int) -> list[Loaded]:
    """The loads that commits after a version of the log remember."""
    return list(_parse_loads({app: seq for app, seq in txns.items() if seq > version}))


def _parse_loads(txns: Mapping[str, int]) -> Iterable[Loaded]:
    for app, seq in txns.items():
        if app.startswith(PREFIX):
            loaded = Loaded.parse(app, seq)
            if loaded is not None:
                yield loaded
