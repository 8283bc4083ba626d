"""The SQLite file of a state: how it is opened, what its errors mean, and how one is read that cannot be written.

SQLite writes beside a file also to read it. Where this process may not write, or the disk is full, a private copy is
read instead: of the file and of what was committed since its last checkpoint, both unchanged while they were copied. It
is taken anew when either has changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
from typing import Any

from sqlalchemy import Connection

from strandline.engines import temp_folder
from strandline.errors import Corrupt, Internal, StrandlineError, Unavailable
from strandline.storage import os_errors

RESTORE = "Restore it from a backup."
Signature = dict[str, tuple[int, int, int] | None]
_NEEDED_BYTES = 128 << 10  # what SQLite may write beside a file before it reads a row
_ATTEMPTS = 20
_WAIT_S = 0.05


def prepare(connection: Any, _: object) -> None:
    # The driver begins no transactions by itself: `begin` does. FULL: a mark that was acknowledged and then lost in a
    # power failure would send its rows twice. What is deleted is overwritten: a purge forgets keys here too.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")


def begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def refusal(path: str) -> Unavailable | None:
    """Why a state cannot be written at `path`; None when nothing is in the way."""
    folder = os.path.dirname(path)
    for place in (path, folder):
        if os.path.exists(place) and not os.access(place, os.W_OK):
            is_fixed = os.statvfs(place).f_flag & os.ST_RDONLY
            return os_errors.unavailable(OSError(errno.EROFS if is_fixed else errno.EACCES, ""), place)
    if os.path.exists(folder):
        disk = os.statvfs(folder)
        if (disk.f_bavail if os.geteuid() else disk.f_bfree) * disk.f_frsize < _NEEDED_BYTES:
            return os_errors.unavailable(OSError(errno.ENOSPC, ""), path)
    return None


def ours(error: sqlite3.Error, path: str) -> StrandlineError | None:
    """What the file system is to blame for; None for every other error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return os_errors.unavailable(OSError(errno.ENOSPC, ""), path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
        return refusal(path)
    return None


def kind_of(error: sqlite3.Error) -> tuple[type[StrandlineError], str | None]:
    """The kind of any other error, and a hint."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return Corrupt, RESTORE
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable, "Another process is writing; try again."
    if code == sqlite3.SQLITE_CANTOPEN:
        return Unavailable, "Does its folder exist, and may this user write there?"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Unavailable, "Let this user write the file and its folder."
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT):
        return Unavailable, None
    if code == sqlite3.SQLITE_ERROR and isinstance(error, sqlite3.OperationalError):
        # Statements are fixed: one that makes no sense met a table that is not as it was made.
        return Corrupt, RESTORE
    return Internal, None


class Copy:
    """A private copy of a SQLite file, as new as the file."""

    @staticmethod
    def needed(path: str) -> Copy | None:
        """A copy of the file, if it is there and cannot be written now."""
        return Copy(path) if os.path.exists(path) and refusal(path) is not None else None

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = temp_folder.new_folder()
        self._lock = threading.Lock()
        self._taken: Signature | None = None
        self._number = 0

    def connect(self) -> sqlite3.Connection:
        with self._lock:
            if self._taken is None or self._taken != self._signature():
                self._take()
            return sqlite3.connect(self._copied(), check_same_thread=False)

    def close(self) -> None:
        with self._lock:
            self._taken = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _copied(self) -> str:
        return os.path.join(self._folder, f"{self._number}.db")

    def _take(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for _ in range(_ATTEMPTS):
            self._number += 1
            before = self._signature()
            for end in ("", "-wal"):
                if before[end] is not None:
                    with os_errors.translate_errors(self._path + end, "read"):
                        shutil.copyfile(self._path + end, self._copied() + end)
            if self._signature() == before:
                self._taken = before
                return
            time.sleep(_WAIT_S)
        raise Unavailable(f"{self._path} changes so often that it could not be copied", hint="Try again.")

    def _signature(self) -> Signature:
        found: Signature = {}
        for end in ("", "-wal"):
            try:
                stat = os.stat(self._path + end)
                found[end] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            except FileNotFoundError:
                found[end] = None
        return found
