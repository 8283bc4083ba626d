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

from strandline.errors import Unavailable
from strandline.storage import os_errors
from strandline.storage.contract import FileInfo, StagedFile, StagedWrite, check_inside, cleared_away

_TEMPORARY = ".tmp-"
_ATTEMPTS = 10


@dataclass(frozen=True, init=False)
class LocalStorage:
    uri: str

    def __init__(self, root: str) -> None:
        object.__setattr__(self, "uri", os.path.abspath(os.path.expanduser(root)))

    def is_file(self) -> bool:
        """Whether the root, or its nearest existing parent, is not a folder."""
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
        return os.path.join(self.uri, check_inside(path))

    def read(self, path: str) -> bytes:
        with os_errors.translate_errors(self.url(path), "read"), open(self.url(path), "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        with os_errors.translate_errors(self.url(path), "read"):
            try:
                os.stat(self.url(path))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def put_new(self, path: str, data: bytes) -> bool:
        target = self.url(path)
        for _ in range(_ATTEMPTS):
            temporary = _new_temporary(target)
            try:
                with os_errors.translate_errors(target, is_refusal=True), open(temporary, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                with os_errors.translate_errors(target):
                    try:
                        os.link(temporary, target)
                    except FileExistsError:
                        return False
            except FileNotFoundError:
                # This process was paused so long that a vacuum deleted the file as a leftover: nothing has happened.
                continue
            finally:
                _remove_file(temporary)
            # From here on, the file may be there whatever fails.
            with os_errors.translate_errors(target, is_refusal=False):
                _sync_folder(os.path.dirname(target))
            return True
        raise cleared_away(path)

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
    def stage(self, path: str) -> Iterator[StagedWrite]:
        target = self.url(path)
        temporary = _new_temporary(target)
        try:
            with os_errors.translate_errors(target):
                stream = pa.OSFile(temporary, "wb")
            # Errors of reading other files in the block are not this file's.
            with os_errors.translate_errors(target, only=os_errors.WRITING), stream:
                stage = StagedWrite(stream)
                yield stage
            with os_errors.translate_errors(target):
                size = _sync_file(temporary, path)
        except BaseException:
            _remove_file(temporary)
            raise
        stage.staged = StagedFile(path, os.path.relpath(temporary, self.uri), size)

    def publish(self, staged: Iterable[StagedFile]) -> None:
        folders = set()
        for each in staged:
            target = self.url(each.path)
            try:
                with os_errors.translate_errors(target):
                    os.rename(self.url(each.temporary), target)
            except FileNotFoundError:
                # Names of staged files are unique, so a file of that name and size was published before.
                if not os.path.isfile(target) or os.path.getsize(target) != each.size:
                    raise cleared_away(each.path) from None
            folders.add(os.path.dirname(target))
        for folder in folders:
            with os_errors.translate_errors(folder):
                _sync_folder(folder)

    def input(self, path: str) -> pa.NativeFile:
        with os_errors.translate_errors(self.url(path), "read"):
            return pa.OSFile(self.url(path), "rb")

    def list(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        return (info for info in self._walk_files(prefix, after) if not _is_temporary(info.path))

    def temporaries(self, prefix: str) -> Iterator[FileInfo]:
        return (info for info in self._walk_files(prefix) if _is_temporary(info.path))

    def _walk_files(self, prefix: str, after: str = "") -> Iterator[FileInfo]:
        for folder, _, names in os.walk(self.url(prefix), onerror=_refuse_listing):
            below = folder.removeprefix(self.uri).strip("/")
            for name in names:
                path = f"{below}/{name}" if below else name
                if path <= after:
                    continue
                full = os.path.join(folder, name)
                try:
                    with os_errors.translate_errors(full, "read"):
                        stat = os.stat(full)
                except FileNotFoundError:
                    continue
                yield FileInfo(path, stat.st_size, stat.st_mtime)

    def now_s(self) -> float:
        return time.time()

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), os_errors.translate_errors(self.url(path), "delete"):
                os.unlink(self.url(path))

    def duckdb_filesystem(self) -> None:
        return None

    def check_put_new(self) -> None:
        """`link` refuses an existing name on every file system that has links: no race is needed to prove it."""


def _new_temporary(target: str) -> str:
    folder, name = os.path.split(target)
    with os_errors.translate_errors(target, is_refusal=True):
        _make_folder(folder)
    # For some readers `*.parquet` includes hidden files, so the name has another ending.
    return os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex}-{name}~")


def _is_temporary(path: str) -> bool:
    return os.path.basename(path).startswith(_TEMPORARY)


def _make_folder(folder: str) -> None:
    """Make the folder and its missing parents, each one synced."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    try:
        with suppress(FileExistsError):
            os.mkdir(folder)
    except FileNotFoundError as error:
        # The parent exists, so this file system allows no new folders.
        raise Unavailable(
            f"the folder {folder} cannot be made: {parent} takes no new folders",
            hint="Choose another place.",
            path=folder,
            refusal="ENOENT",
        ) from error
    _sync_folder(parent)


def _sync_file(temporary: str, path: str) -> int:
    """Sync a written file, so that it survives a crash, and return its size."""
    try:
        descriptor = os.open(temporary, os.O_RDONLY)
    except FileNotFoundError:
        raise cleared_away(path) from None
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _remove_file(temporary: str) -> None:
    """Remove a temporary file; if that fails it becomes a leftover, and the first error counts."""
    with suppress(OSError):
        os.unlink(temporary)


def _refuse_listing(error: OSError) -> None:
    """A missing folder is empty. A folder that cannot be listed is an error: its files must not count as gone."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise os_errors.unavailable(error, error.filename, "list") from error


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
