"""The files of a SQLite database, readable by their owner alone."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_MODE = 0o600
_BESIDE = ("", "-wal", "-shm", "-journal")


def make_private(path: str) -> None:
    """Make the database a file that only its owner can read, from its creation on. SQLite gives the files beside it the
    same mode. An existing file becomes private too, except that a group with write access keeps its access. Errors are
    left to SQLite, which will report them."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE))
        return
    for each in _BESIDE:
        with suppress(OSError):
            found = os.stat(path + each)
            kept = 0o770 if found.st_mode & stat.S_IWGRP else 0o700
            mode = stat.S_IMODE(found.st_mode)
            if found.st_uid == os.geteuid() and mode & ~kept:
                os.chmod(path + each, mode & kept)
