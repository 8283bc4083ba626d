"""Processes that may not write: permission bits that count although a test runs as root, small and read-only disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support import environment

CANNOT = 77
"""The exit code of a process that cannot have what it needs here."""

# Root obeys permission bits in a process that has given up the rights to overrule them, also after exec.
BOUND = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
for right in (1, 2):
    libc.prctl(24, right, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""

# A file system of its own for one process: of so many kilobytes, or one that can only be read.
MOUNTED = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
place, size, *rest = sys.argv[1:]
def mount(*words):
    if libc.mount(*[None if word is None else word if isinstance(word, int) else word.encode() for word in words]):
        print(os.strerror(ctypes.get_errno()), file=sys.stderr)
        sys.exit({CANNOT})
if libc.unshare(0x20000):
    print("no mounts of its own", file=sys.stderr)
    sys.exit({CANNOT})
mount("none", "/", None, 0x44000, None)
if size == "read-only":
    mount(place, place, None, 0x1000, None)
    mount("none", place, None, 0x1021, None)
else:
    mount("tmpfs", place, "tmpfs", 0, f"size={{size}}k")
os.execv(sys.executable, [sys.executable, "-c", *rest])
"""

# No file may become larger than so many bytes. This works everywhere.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""


def told(way: str, *words: str, timeout_s: float = 240, **more: str) -> Any:
    """What a process says as JSON on its last line."""
    ended = subprocess.run(
        [sys.executable, "-c", way, *words],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if ended.returncode == CANNOT:
        pytest.skip(f"this machine does not let a test mount: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def set_writable(folder: Path, is_writable: bool, only: Sequence[str] = ()) -> None:
    """Let a folder and all below it, or only what lies in those parts, be writable or not."""
    for part in [folder / each for each in only] or [folder]:
        for place in [part, *part.rglob("*")]:
            mode = place.stat().st_mode
            os.chmod(place, mode | 0o200 if is_writable else mode & ~0o222)
