"""A folder on this machine's file system.

After a crash: a file is there whole or not at all, because it is written under a temporary name, synced, and then
linked (`put_new`) or renamed (`publish`) into place, and the folder is synced after that.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from strandline.storage.base import FileInfo, Stage, Staged, cleared_away, inside

_TEMPORARY = ".tmp-"


@dataclass(frozen=True, init=False)
class LocalStorage:
    uri: str

    def __init__(self, root: str) -> None:
        object.__setattr__(self, "uri", os.path.abspath(os.path.expanduser(root)))

    def is_file(self) -> bool:
        """Whether the root, or what it would lie in, is something other than a folder."""
        place = self.uri
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        return not os.path.isdir(place)

    @property
    def is_local(self) -> bool:
        return True

    @property
    def delta_options(self) -> Mapping[str, str]:
        return {}

    def url(self, path: str) -> str:
        return os.path.join(self.uri, inside(path))

    def read(self, path: str) -> bytes:
        with open(self.url(path), "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.exists(self.url(path))

    def put_new(self, path: str, data: bytes) -> bool:
        target = self.url(path)
        temporary = _temporary_beside(target)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        _sync_folder(os.path.dirname(target))
        return True

    @contextmanager
    def output(self, path: str) -> Iterator[pa.NativeFile]:
        with self.stage(path) as stage:
            yield stage.stream
        try:
            self.publish([stage.staged])
        except BaseException:
            self.delete([stage.staged.temporary])
            raise

    @contextmanager
    def stage(self, path: str) -> Iterator[Stage]:
        temporary = _temporary_beside(self.url(path))
        try:
            with pa.OSFile(temporary, "wb") as stream:
                stage = Stage(stream)
                yield stage
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        stage.staged = Staged(path, os.path.relpath(temporary, self.uri), size)

    def publish(self, staged: Iterable[Staged]) -> None:
        folders = set()
        for each in staged:
            target = self.url(each.path)
            try:
                os.rename(self.url(each.temporary), target)
            except FileNotFoundError:
                # Names of staged files are used once, so a file of that name and size is the one renamed before.
                if not os.path.isfile(target) or os.path.getsize(target) != each.size:
                    raise cleared_away(each.path) from None
            folders.add(os.path.dirname(target))
        for folder in folders:
            _sync_folder(folder)

    def input(self, path: str) -> pa.NativeFile:
        return pa.OSFile(self.url(path), "rb")

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return (info for info in self._walk(prefix) if not _is_temporary(info.path))

    def temporaries(self, prefix: str) -> Iterator[FileInfo]:
        return (info for info in self._walk(prefix) if _is_temporary(info.path))

    def _walk(self, prefix: str) -> Iterator[FileInfo]:
        for folder, _, names in os.walk(self.url(prefix)):
            for name in names:
                full = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    stat = os.stat(full)
                    yield FileInfo(os.path.relpath(full, self.uri), stat.st_size, stat.st_mtime)

    def now_s(self) -> float:
        return time.time()

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(self.url(path))

    def duckdb_filesystem(self) -> None:
        return None

    def check_put_new(self) -> None:
        """`link` refuses an existing name on every file system that has links; nothing to prove by racing."""


def _temporary_beside(target: str) -> str:
    folder, name = os.path.split(target)
    _make_folder(folder)
    # Some readers take `*.parquet` to mean hidden files as well, so the name ends otherwise.
    return os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex}-{name}~")


def _is_temporary(path: str) -> bool:
    return os.path.basename(path).startswith(_TEMPORARY)


def _make_folder(folder: str) -> None:
    """The folder, made with its parents where they are missing, each one synced."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    with suppress(FileExistsError):
        os.mkdir(folder)
    _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
