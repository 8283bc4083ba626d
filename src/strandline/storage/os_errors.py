"""What a file system says when it refuses or fails, in words of ours: the one place where an `OSError` becomes them.

`FileNotFoundError` is left alone: whoever asks for a file decides what it means that there is none. So is an error
without a number, which is not the system's: a library says so that a file makes no sense.
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
"""What an open file may say to a write."""


@contextmanager
def translate_errors(
    path: str, doing: str = "write", *, is_refusal: bool | None = None, only: frozenset[int] | None = None
) -> Iterator[None]:
    """Errors of the system inside the block become `Unavailable` with the path and the cause. `is_refusal` says whether
    what fails here is sure to have had no effect; by default the error tells. With `only`, other errors stay."""
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
            f"Let this user {doing} there, or work as one who may.",
        )
    elif number == errno.EROFS:
        message, hint = f"{path} lies on a file system that can only be read", "Reading works; to write, mount it so."
    elif number in _FULL:
        message, hint = f"no space left to {doing} {path}: {why}", _FREE
    elif number == errno.EFBIG:
        message, hint = f"{path} may not become so large: {why}", "Raise the limit on the size of files (ulimit -f)."
    else:
        message, hint = f"{path}: {why}", None
    return Unavailable(message, hint=hint, path=path, refusal=refusal)


def is_refusal(error: BaseException) -> bool:
    """Whether a store has said no: what was tried has had no effect, and to try it again at once is of no use."""
    return isinstance(error, Unavailable) and "refusal" in error.fields


def is_forbidden(error: Unavailable) -> bool:
    """Whether this process may not write at all: space may be freed, rights are given by someone else."""
    return error.fields.get("refusal") in ("EACCES", "EPERM", "EROFS")


def delete_if_refused(error: BaseException, storage: Storage, paths: Iterable[str]) -> None:
    """Delete files that a commit would have claimed, if the store refused the commit: none will claim them, and a full
    disk needs the space."""
    if is_refusal(error):
        with suppress(StrandlineError):
            storage.delete(paths)


def from_message(said: str, path: str, doing: str = "write") -> Unavailable | None:
    """The same of a library that passes the system's words on, without the number."""
    for number in (*_DEFINITE, errno.EMFILE, errno.ENFILE, errno.EIO):
        if os.strerror(number) in said:
            return unavailable(OSError(number, ""), path, doing)
    return None
