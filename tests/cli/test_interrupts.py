"""Ctrl-C at every moment of a process: one line, never a stack trace."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import strandline as sl
from strandline.cli.interrupts import Interruptible, make_handler
from support import python, start_python

LINE = "Stopped: on your request. Finished work stays; the next run continues from there.\n"

# Interrupts itself when a module begins to load.
AT_IMPORT = """
import os, signal, sys
from strandline.cli import main
class Watch:
    where = sys.argv.pop(1)
    def find_spec(self, name, path=None, target=None):
        if name == self.where:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
sys.meta_path.insert(0, Watch())
main()
"""


@pytest.mark.parametrize("module", ["typer", "rich.console", "strandline.cli.verb", "strandline.lake", "sqlalchemy"])
def test_an_interrupt_while_a_module_loads_prints_one_line(tmp_path: Path, module: str) -> None:
    sl.Lake(tmp_path).catalog.ensure_lake()
    done = python(AT_IMPORT, module, "--lake", str(tmp_path), "status")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


@pytest.mark.parametrize("delay_s", [0.15, 0.4])
def test_a_process_that_is_interrupted_early_prints_one_line(tmp_path: Path, delay_s: float) -> None:
    sl.Lake(tmp_path).catalog.ensure_lake()
    # A child that reports when Python itself is ready: what happens before belongs to no package.
    code = "import sys; from strandline.cli import main; print(flush=True); main()"
    with start_python(code, "--lake", str(tmp_path), "run") as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert (len(err.splitlines()), "Traceback" in err) == (1, False)


def test_an_interrupt_in_a_finalizer_ends_the_process_with_one_line() -> None:
    code = """
import os, signal
from strandline.cli.interrupts import Interruptible, end_on_interrupt
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
end_on_interrupt()
with Interruptible():
    Thing()
print("not reached")
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", LINE)


def test_a_program_that_has_its_own_handler_keeps_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruptible():
        assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_that_follow_at_once_belong_to_the_first() -> None:
    heard: list[int] = []
    hear = make_handler(lambda: heard.append(1))
    for _ in range(3):
        hear(signal.SIGINT, None)
    assert heard == [1]
