"""A private temporary folder for data that does not fit into memory. Only its owner can read it.

A process has one folder and removes it at its end. The name cannot be guessed, and a file `lock` in the folder stays
locked while the process lives.

After a crash: the folder stays, with a free lock. The next process of the same user that needs a folder removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from functools import cache

from strandline.errors import Unavailable

_PREFIX = "strandline-spill-"
_LOCK = "lock"
_NEW_S = 3600.0  # a younger folder without a lock may be new
_making = threading.Lock()


def new_folder() -> str:
    """The path of a folder yet to be made, inside a folder that only this user can enter."""
    with _making:
        # A forked child gets its own folder: the parent removes its own at its end.
        return os.path.join(_private_folder(os.getpid()), uuid.uuid4().hex)


@cache
def _private_folder(owner: int) -> str:
    _remove_dead()
    while True:
        try:
            folder = tempfile.mkdtemp(prefix=_PREFIX)
        except OSError as error:
            raise Unavailable(
                f"no folder can be made for data that does not fit into memory: {error}",
                hint="Name one that this user may write: TMPDIR=/folder",
            ) from error
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed the folder as a dead one's before it was locked.
            is_ours = os.fstat(descriptor).st_nlink > 0
        except BlockingIOError:
            is_ours = False
        if is_ours:
            # The descriptor stays open, and the lock held, until the process ends.
            atexit.register(_remove, folder, owner)
            return folder
        os.close(descriptor)


def _remove(folder: str, owner: int) -> None:
    # A forked child inherits this call from its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_dead() -> None:
    """Remove the folders of this user's processes that have died."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(folder: str) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if time.time() - found.st_mtime > _NEW_S:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock goes first: a process that just made the folder finds its lock gone and makes another folder.
        os.unlink(os.path.join(folder, _LOCK))
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
