"""The contract of every storage.

Paths are relative to the storage's root, with forward slashes, and never lead out of it (`check_inside`), even when
someone has changed the files that name them. Two calls carry the whole consistency of a lake: `put_new` creates a file
or says that it exists, never both and never half; `output` makes a file visible whole or not at all. After either
returns, the bytes survive a crash of the machine. `stage` and `publish` are `output` in two steps, for a file that one
process writes and another one publishes.

After a crash: a staged file that was not published is listed by `temporaries` until it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from strandline.errors import Conflict, Corrupt


@dataclass(frozen=True)
class FileInfo:
    path: str
    size: int
    modified_s: float


@dataclass(frozen=True)
class StagedFile:
    """A file that is written whole and survives a crash, but is not visible yet.

    It can be pickled and turned into JSON. `delete([temporary])` gives it up. `parts` are an object store's tags of
    the uploaded parts."""

    path: str
    temporary: str
    size: int
    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "parts": list(self.parts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StagedFile:
        return cls(data["path"], data["temporary"], data["size"], tuple(data["parts"]))


@dataclass
class StagedWrite:
    """A file that is being written; `staged` is set when the block has ended well."""

    stream: pa.NativeFile
    staged: StagedFile = field(init=False)


def cleared_away(path: str) -> Conflict:
    """The error of a writer whose unfinished file was deleted as a leftover."""
    return Conflict(
        f"{path} was cleared away as unfinished before it was published",
        hint="Write again. A vacuum's --grace should be longer than your longest write.",
        path=path,
    )


def check_inside(path: str) -> str:
    """The path, unless it leads out of the storage."""
    if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
        raise Corrupt(
            f"the path {path!r} leads out of its storage, so it was not opened",
            hint="A file of the lake was changed from outside. Restore the lake from a backup.",
            path=path,
        )
    return path


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
        """A stream whose file appears when the block ends well; it never appears when the block raises."""
        ...

    def stage(self, path: str) -> AbstractContextManager[StagedWrite]:
        """Write a file that stays invisible until it is published; when the block raises, nothing is left."""
        ...

    def publish(self, staged: Iterable[StagedFile]) -> None:
        """Make staged files visible, each one whole; any process on any machine may do it.

        Publishing a file again is no error. `Conflict` when it was given up meanwhile; then, as after any error, some
        of the other files may be visible already."""
        ...

    def input(self, path: str) -> pa.NativeFile:
        """The file for random access; `FileNotFoundError` when there is none."""
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        """Every file below the folder `prefix` whose path sorts after `after`, in no promised order, without temporary
        files."""
        ...

    def temporaries(self, prefix: str) -> Iterator[FileInfo]:
        """Files below `prefix` that are being written, are staged, or were left behind by a crash."""
        ...

    def now_s(self) -> float:
        """The time by the clock that also dates the files, in seconds since 1970. It also works with the right to read
        alone."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files, including those that `temporaries` lists; a missing file is no error."""
        ...

    def url(self, path: str) -> str:
        """The address by which other libraries open the file."""
        ...

    def duckdb_filesystem(self) -> Any | None:
        """An fsspec file system for DuckDB, or None when it reaches the files itself."""
        ...

    def check_put_new(self) -> None:
        """Prove that two creators of one file cannot both win; `Invalid` when the store lets them. The first `put_new`
        of a process does this, so a place that is only read needs no right to write."""
        ...
