"""Processes by name: who holds a lease, a pin or a lock, and whether that process is gone.

A name is `host:pid`, in a container `host:pid@container`. Only a process of this machine can be called gone, and only
when nothing runs under its number any more. When a new process has got the number, the old one counts as alive; what
it held then ends by its own time.
"""

from __future__ import annotations

import os
import socket

# Outside of any container. Inside of one, the same numbers name other processes.
_FIRST_NAMESPACE = "pid:[4026531836]"


def this_process() -> str:
    """How this process names itself as a holder."""
    return f"{socket.gethostname()}:{os.getpid()}{_container_suffix()}"


def is_gone(holder: str) -> bool:
    """Whether a holder that `this_process` named ran on this machine and has ended."""
    place, at, container = holder.partition("@")
    host, _, number = place.rpartition(":")
    if (host, at + container) != (socket.gethostname(), _container_suffix()) or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _has_ended(int(number))


def _container_suffix() -> str:
    """Empty outside of containers; else which one this is, since containers may share the name of their host."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return "" if namespace == _FIRST_NAMESPACE else f"@{namespace.strip('pid:[]')}"


def _has_ended(pid: int) -> bool:
    """Whether a process has ended and its number is taken only until its parent asks for the result."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            # The second field is a name that may hold anything, in parentheses.
            fields = stream.read().rpartition(")")[2].split()
        state, threads = fields[0], int(fields[17])
    except (OSError, IndexError, ValueError):
        return False
    return state in "ZX" and threads <= 1
