"""The SQLite file of a state: how it is opened, what its errors mean, and how it is read when it cannot be written.

SQLite writes files beside a database even to read it. Where this process may not write, or the disk is full, it reads a
private copy of the database and its write-ahead log instead. Neither may change during the copying; when either changes
later, a new copy is taken.
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
_NEEDED_BYTES = 128 << 10  # SQLite may write as much beside a file before it reads a row
_ATTEMPTS = 20
_WAIT_S = 0.05


def prepare(connection: Any, _: object) -> None:
    # `begin` begins transactions, not the driver. FULL: a mark that is acknowledged and then lost in a power failure
    # would send its rows twice. secure_delete: a purge erases keys here too.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")


def begin(connection: Connection) -> None:
    is_writing = connection.get_execution_options().get("is_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def write_refusal(path: str) -> Unavailable | None:
    """Why a state cannot be written at `path`; None when it can."""
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


def file_error(error: sqlite3.Error, path: str) -> StrandlineError | None:
    """The error if the file system caused it, else None."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return os_errors.unavailable(OSError(errno.ENOSPC, ""), path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR):
        return write_refusal(path)
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
        # Our statements are valid, so the table must have been altered.
        return Corrupt, RESTORE
    return Internal, None


class PrivateCopy:
    """A private copy of a SQLite file, as new as the file."""

    @staticmethod
    def if_needed(path: str) -> PrivateCopy | None:
        """A copy if the file exists and cannot be written now."""
        return PrivateCopy(path) if os.path.exists(path) and write_refusal(path) is not None else None

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = temp_folder.new_folder()
        self._lock = threading.Lock()
        self._copied_at: Signature | None = None
        self._number = 0

    def connect(self) -> sqlite3.Connection:
        with self._lock:
            if self._copied_at is None or self._copied_at != self._signature():
                self._take_copy()
            return sqlite3.connect(self._copy_path(), check_same_thread=False)

    def close(self) -> None:
        with self._lock:
            self._copied_at = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _copy_path(self) -> str:
        return os.path.join(self._folder, f"{self._number}.db")

    def _take_copy(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for _ in range(_ATTEMPTS):
            self._number += 1
            before = self._signature()
            for end in ("", "-wal"):
                if before[end] is not None:
                    with os_errors.translate_errors(self._path + end, "read"):
                        shutil.copyfile(self._path + end, self._copy_path() + end)
            if self._signature() == before:
                self._copied_at = before
                return
            time.sleep(_WAIT_S)
        raise Unavailable(f"{self._path} changes too often to be copied", hint="Try again.")

    def _signature(self) -> Signature:
        found: Signature = {}
        for end in ("", "-wal"):
            try:
                stat = os.stat(self._path + end)
                found[end] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            except FileNotFoundError:
                found[end] = None
        return found
