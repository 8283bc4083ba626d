"""Processes by name: only a process of this machine that has ended for certain is gone."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from subprocess import Popen

import pytest

from strandline.engines import process
from strandline.engines.process import is_gone, this_process
from support import start_python

NAME = """
import time
from strandline.engines.process import this_process
print(this_process(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def other() -> Iterator[tuple[Popen[str], str]]:
    """A process that runs, and its name."""
    started = start_python(NAME)
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.kill()
        started.communicate()


def test_a_process_that_runs_is_not_gone(other: tuple[Popen[str], str]) -> None:
    assert not is_gone(this_process())
    assert not is_gone(other[1])
    assert this_process().startswith(f"{socket.gethostname()}:{os.getpid()}")


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_killed_process_is_gone_also_before_its_parent_asks(
    other: tuple[Popen[str], str], is_waited_for: bool
) -> None:
    started, name = other
    started.kill()
    if is_waited_for:
        started.wait()
    until_s = time.monotonic() + 20
    while not is_gone(name) and time.monotonic() < until_s:
        time.sleep(0.005)
    assert is_gone(name)
    assert os.path.exists(f"/proc/{started.pid}") != is_waited_for


def test_what_is_not_known_for_certain_is_not_gone(other: tuple[Popen[str], str]) -> None:
    started, name = other
    host, _, pid = name.partition("@")[0].rpartition(":")
    started.kill()
    started.wait()
    for unknown in (
        f"{host}-2:{pid}",
        f"{host}:",
        f"{host}:x",
        f"{host}:0",
        f"{host}:{9 * 10**30}",
        f"{name}@12",
        pid,
        "",
    ):
        assert not is_gone(unknown), unknown


def test_the_first_process_of_the_machine_is_alive_whoever_runs_it() -> None:
    _, at, container = this_process().partition("@")
    assert not is_gone(f"{socket.gethostname()}:1{at}{container}")


def test_containers_that_share_the_name_of_their_host_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    here = this_process()
    monkeypatch.setattr(process.os, "readlink", lambda path: "pid:[4026532758]")
    inside = this_process()
    assert inside == f"{socket.gethostname()}:{os.getpid()}@4026532758"
    monkeypatch.undo()
    gone = inside.replace(f":{os.getpid()}@", ":4194304@")
    assert not is_gone(gone) and not is_gone(here)
