"""Names of processes that hold a lease, a pin or a lock, and whether such a process is gone.

A name is `host:pid`, in a container `host:pid@container`. A process counts as gone only on its own machine, and only
when no process has its pid. When a new process has taken the pid, the old one counts as alive; its lease, pin or lock
then expires by time.
"""

from __future__ import annotations

import os
import socket

# The namespace outside of containers. Inside of a container, the same pids name other processes.
_FIRST_NAMESPACE = "pid:[4026531836]"


def this_process() -> str:
    """The name of this process as a holder."""
    return f"{socket.gethostname()}:{os.getpid()}{_container_suffix()}"


def is_gone(holder: str) -> bool:
    """Whether the process of a holder's name ran on this machine and has ended."""
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
    """`@` and the id of this container, since containers may share a host name; empty outside of containers."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return "" if namespace == _FIRST_NAMESPACE else f"@{namespace.strip('pid:[]')}"


def _has_ended(pid: int) -> bool:
    """Whether a process is a zombie: it has ended, and keeps its pid until its parent reads the result."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            # The second field is a name in parentheses, which may hold any character.
            fields = stream.read().rpartition(")")[2].split()
        state, threads = fields[0], int(fields[17])
    except (OSError, IndexError, ValueError):
        return False
    return state in "ZX" and threads <= 1
