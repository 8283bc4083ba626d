"""Decide for each file whether to load all of it, its new part, or nothing. Nothing is written.

A file with the size and time of its last load is not read. A file with the same content is not loaded again. If a file
begins with the loaded content, only the rest is loaded. Any other file is loaded from its start. Values that stand in
the names of folders are rows' values too: below other folders, equal content is another file.

In a table without a key, a row that is loaded twice is there twice. So a file that has changed, and not only grown, is
refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from strandline.errors import Conflict, Invalid
from strandline.jobs.ingest.blocks import Reading, digest_of, resume
from strandline.jobs.ingest.last_line import settle
from strandline.jobs.ingest.loaded_files import Loaded, LoadedFiles
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_options import LastLine

Action = Literal["load", "continue", "skip"]
AGAIN = "asked for again"


@dataclass(frozen=True)
class Step:
    """What to do with one file.

    `prior` is the load that a `continue` follows, and `hasher` has its bytes, unless the step has come to a Spark task.
    `seen` is remembered for a skipped file, so that it is not read again."""

    source: Source
    action: Action
    why: str
    prior: Loaded | None = None
    hasher: Any = field(default=None, compare=False, repr=False)
    seen: Loaded | None = None

    @property
    def bytes(self) -> int:
        if self.action == "skip":
            return 0
        return self.source.size - (self.prior.size if self.prior else 0)

    def reading(self) -> Reading:
        """A pass over the part of a text file that is to be loaded."""
        if self.prior is None:
            return Reading.whole(self.source)
        if self.hasher is None:
            reading = resume(self.source, self.prior.size, self.prior.digest, self.prior.lines)
            if reading is None:
                raise Conflict(f"{self.source.uri} was written while it was read; nothing was loaded")
            return reading
        return Reading(self.source, self.prior.size, self.prior.lines, self.hasher.copy())


@dataclass(frozen=True)
class IngestPlan:
    """The steps, in the order of the files, and the version of the table's log that they are based on."""

    steps: tuple[Step, ...]
    version: int

    @cached_property
    def bytes(self) -> int:
        return sum(step.bytes for step in self.steps)

    @property
    def loads(self) -> int:
        return sum(step.action != "skip" for step in self.steps)


def plan(
    sources: Sequence[Source], memory: LoadedFiles, *, is_keyed: bool, again: bool = False, last_line: LastLine = "auto"
) -> IngestPlan:
    """`again` loads every file from its start, whatever is remembered."""
    if again:
        wanted = [settle(source, last_line) for source in sources]
        return IngestPlan(tuple(Step(source, "load", AGAIN) for source in wanted), memory.version)
    planner = _Planner(sources, memory, is_keyed, last_line)
    return IngestPlan(tuple(planner.step(source) for source in sources), memory.version)


class _Planner:
    def __init__(self, sources: Sequence[Source], memory: LoadedFiles, is_keyed: bool, last_line: LastLine) -> None:
        self._inodes = {source.inode: source.uri for source in sources if source.inode}
        self._memory = memory
        self._is_keyed = is_keyed
        self._last_line = last_line
        self._digests: dict[tuple[str, int], str] = {}
        self._loads = _Loads()

    def step(self, source: Source) -> Step:
        step = self._skip_known(source)
        if step is None:
            source = settle(source, self._last_line)
            step = self._skip_known(source) if source.unfinished_bytes else None
        step = step or self._skip_repeated(source) or self._continue_grown(source)
        if step is None:
            before = [loaded for loaded in self._memory.latest(source) if loaded.place == source.place]
            for loaded in before:
                self._refuse_doubles(source, loaded)
            step = Step(source, "load", "rewritten" if before else "new")
        if step.action != "skip":
            self._loads.add(source, self._content_of(source))
        return step

    def _skip_known(self, source: Source) -> Step | None:
        latest = [loaded for loaded in self._memory.latest(source) if _may_be_file(loaded, source)]
        for loaded in latest:
            if loaded.looks_like(source):
                return Step(source, "skip", f"loaded at seq {loaded.seq}")
        candidates = [loaded for loaded in latest if loaded.size == source.size]
        candidates += [
            loaded
            for loaded in self._memory.of_size(source.size)
            if loaded.place != source.place
            and _may_be_file(loaded, source)
            and self._may_be_moved(loaded.mtime_ns, source)
        ]
        for loaded in candidates:
            if loaded.digest == self._digest(source):
                seen = Loaded.of(source, lines=loaded.lines, is_open=loaded.is_open, digest=loaded.digest)
                return Step(source, "skip", f"same content as loaded at seq {loaded.seq}", seen=seen)
        return None

    def _continue_grown(self, source: Source) -> Step | None:
        if not source.is_text or source.is_wide:
            return None
        latest = [loaded for loaded in self._memory.latest(source) if _may_be_file(loaded, source)]
        for loaded in sorted(latest, key=lambda loaded: -loaded.size):
            reading = resume(source, loaded.size, loaded.digest, loaded.lines) if loaded.size < source.size else None
            if reading is not None and (not loaded.is_open or _ends_line(reading)):
                return Step(source, "continue", f"grown since seq {loaded.seq}", loaded, reading.hasher)
        return None

    def _refuse_doubles(self, source: Source, loaded: Loaded) -> None:
        """In a table without a key, refuse a file that has changed: it may have the loaded rows again."""
        is_moved = self._inodes.get(loaded.inode, source.uri) != source.uri
        if self._is_keyed or is_moved:
            return
        raise Invalid(
            f"{source.uri} was loaded at seq {loaded.seq} and has changed; which of its rows are new is not known",
            hint="The table has no key, so rows could be there twice. Put new rows into a new file, or load all of"
            " this one again: --again",
            file=source.uri,
        )

    def _skip_repeated(self, source: Source) -> Step | None:
        """Skip a file that this plan loads under another name."""
        other = self._loads.find(source, self._content_of(source), self._digest)
        return None if other is None else Step(source, "skip", f"same content as {other.uri}")

    def _content_of(self, source: Source) -> Hashable:
        """Files that differ in this are different files, whatever their content."""
        moment = source.mtime_ns if self._is_keyed else None
        return source.size, tuple(sorted(source.partitions.items())), moment

    def _may_be_moved(self, mtime_ns: int, source: Source) -> bool:
        """Whether equal content at another place is the same file. In a table with a key, a later file may bring old
        rows back on purpose, so the time of change must be equal too."""
        return not self._is_keyed or mtime_ns == source.mtime_ns

    def _digest(self, source: Source) -> str:
        at = (source.uri, source.size)
        if at not in self._digests:
            self._digests[at] = digest_of(source)
        return self._digests[at]


class _Loads:
    """The files that a plan loads, by their inode and content. A file is read only when another one may be equal."""

    def __init__(self) -> None:
        self._linked: dict[Hashable, Source] = {}
        self._unread: dict[Hashable, list[Source]] = {}
        self._read: dict[tuple[Hashable, str], Source] = {}

    def add(self, source: Source, kind: Hashable) -> None:
        if source.inode:
            self._linked.setdefault(_link_of(source), source)
        self._unread.setdefault(kind, []).append(source)

    def find(self, source: Source, kind: Hashable, digest: Callable[[Source], str]) -> Source | None:
        """An equal file; files that are no equal `kind` are none, unless they are links to one."""
        linked = self._linked.get(_link_of(source)) if source.inode else None
        if linked is not None or kind not in self._unread:
            return linked
        for other in self._unread[kind]:
            self._read.setdefault((kind, digest(other)), other)
        self._unread[kind] = []
        return self._read.get((kind, digest(source)))


def _link_of(source: Source) -> Hashable:
    return source.inode, source.size, tuple(sorted(source.partitions.items()))


def _may_be_file(loaded: Loaded, source: Source) -> bool:
    """Whether an earlier load may be of this file. A load does not remember the values of folders: with such values,
    only the file at the same place is the same."""
    return not source.partitions or loaded.place == source.place


def _ends_line(reading: Reading) -> bool:
    """Whether a reading begins with the newline of the line before it."""
    return Reading(reading.source, reading.start, reading.lines, reading.hasher.copy()).starts_with_newline()
