"""The one place where an `OSError` of a file system becomes an error of ours.

`FileNotFoundError` passes unchanged: the caller decides what a missing file means. So does an error without a number:
it comes from a library that cannot read a file's content.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from strandline.errors import StrandlineError, Unavailable
from strandline.storage.contract import Storage

_DENIED = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DEFINITE = {*_DENIED, *_FULL, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
_FREE = "Free some space there, then do it again."


WRITING = frozenset({*_FULL, errno.EROFS, errno.EFBIG, errno.EIO})
"""The errors of writing to an open file."""


@contextmanager
def translate_errors(
    path: str, doing: str = "write", *, is_refusal: bool | None = None, only: frozenset[int] | None = None
) -> Iterator[None]:
    """Errors of the system inside the block become `Unavailable` with the path and the cause. `is_refusal`: whether a
    failure here is sure to have had no effect; by default the error decides. With `only`, other errors pass."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno is None or (only is not None and error.errno not in only):
            raise
        raise unavailable(error, path, doing, is_refusal=is_refusal) from error


def unavailable(error: OSError, path: str, doing: str = "write", *, is_refusal: bool | None = None) -> Unavailable:
    number = error.errno or 0
    why = os.strerror(number)
    is_definite = number in _DEFINITE if is_refusal is None else is_refusal
    refusal = errno.errorcode.get(number) if is_definite else None
    if number in _DENIED:
        message, hint = (
            f"no permission to {doing} {path}: {why}",
            f"Let this user {doing} there, or run as a user who may.",
        )
    elif number == errno.EROFS:
        message, hint = f"{path} is on a read-only file system", "Reading works; to write, mount it writable."
    elif number in _FULL:
        message, hint = f"no space left to {doing} {path}: {why}", _FREE
    elif number == errno.EFBIG:
        message, hint = f"{path} would become too large: {why}", "Raise the limit on the size of files (ulimit -f)."
    else:
        message, hint = f"{path}: {why}", None
    return Unavailable(message, hint=hint, path=path, refusal=refusal)


def is_refusal(error: BaseException) -> bool:
    """Whether the store refused: the attempt had no effect, and an immediate retry is useless."""
    return isinstance(error, Unavailable) and "refusal" in error.fields


def is_forbidden(error: Unavailable) -> bool:
    """Whether this process has no right to write: it cannot wait for that as for free space."""
    return error.fields.get("refusal") in ("EACCES", "EPERM", "EROFS")


def delete_if_refused(error: BaseException, storage: Storage, paths: Iterable[str]) -> None:
    """Delete the files of a commit that the store refused: no commit will claim them, and a full disk needs the
    space."""
    if is_refusal(error):
        with suppress(StrandlineError):
            storage.delete(paths)


def from_message(said: str, path: str, doing: str = "write") -> Unavailable | None:
    """The error for a library's message that repeats the system's words without the number."""
    for number in (*_DEFINITE, errno.EMFILE, errno.ENFILE, errno.EIO):
        if os.strerror(number) in said:
            return unavailable(OSError(number, ""), path, doing)
    return None
