"""Processes that tick a lake, or serve one, and end or stop at a named place.

They are forks of one process that has loaded everything and started nothing, which is quicker than to start each."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KILLED, STOPPED, DONE = "killed", "stopped", "done"


@dataclass(frozen=True)
class Ticking:
    """A tick of some sinks of the lake at `root`: by name, the options of `Lake.sink`. With `round_rows` a new sink
    gets a larger table in rounds of so many rows."""

    root: str
    sinks: dict[str, dict[str, Any]]
    state: str | None = None
    lease_s: float = 60.0
    round_rows: int = 0

    def __call__(self) -> None:
        import strandline as sl
        from strandline.pipeline import runner

        if self.round_rows:
            make_rounds(self.round_rows)
        lake = sl.Lake(self.root, state=self.state)
        for name, options in self.sinks.items():
            lake.sink(name, **options)
        for report in runner.tick(lake, list(self.sinks), lease_s=self.lease_s).sinks:
            if report.error is not None:
                raise report.error


def make_rounds(rows: int) -> None:
    """From here on, new consumers of this process get larger tables in rounds of so many rows."""
    from strandline.consumers import ranges, rounds
    from strandline.engines.choice import DriverLimit

    ranges.SMALL = DriverLimit(rows, 1 << 40)
    rounds.FIRST_ROWS = rounds.LEAST_ROWS = rounds.MOST_ROWS = rows


@dataclass(frozen=True)
class Serving:
    """The receiver of the lake at `root`, on a port of this machine."""

    root: str
    port: int

    def __call__(self) -> None:
        import strandline as sl
        from strandline.server import run

        run.serve(sl.Lake(self.root), tokens=None, port=self.port, on_listening=lambda url: None)


@dataclass(frozen=True)
class Armed:
    """Some work, and where its process ends: at the pass number `ordinal` of a crash point; with `is_stopped` it only
    stops there, until someone lets it go on. `passes` is a file to which it says how often it passes each point."""

    work: Ticking | Serving
    point: str = ""
    ordinal: int = 1
    is_stopped: bool = False
    passes: str | None = None

    def run(self) -> None:
        seen: Counter[str] = Counter()
        lock = threading.Lock()

        def here(name: str) -> None:
            seen[name] += 1
            if self.passes is not None:
                Path(self.passes).write_text(json.dumps(seen))
            if name == self.point and seen[name] == self.ordinal:
                # One that stops while it renews its lease would keep the state's lock, and everyone, waiting.
                with lock:
                    os.kill(os.getpid(), signal.SIGSTOP if self.is_stopped else signal.SIGKILL)

        with at_crash_points(here), _renewing_under(lock):
            self.work()


@contextlib.contextmanager
def _renewing_under(lock: threading.Lock) -> Iterator[None]:
    from strandline.state.leases import Lease, Leases

    plain = Leases.renew

    def renew(self: Leases, lease: Lease, length_s: float) -> Lease:
        with lock:
            return plain(self, lease, length_s)

    Leases.renew = renew  # type: ignore[method-assign]
    try:
        yield
    finally:
        Leases.renew = plain  # type: ignore[method-assign]


class Interrupted(KeyboardInterrupt):
    """Ends what is under way at a crash point, as Ctrl-C or a kill would: nothing is cleaned up on its account."""


@contextlib.contextmanager
def at_crash_points(here: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, every crash point of this process calls `here` with its name."""
    from strandline import crash

    plain = crash.crash_point

    def put(old: object, new: object) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "crash_point", None) is old:
                module.crash_point = new  # type: ignore[attr-defined]

    put(plain, here)
    try:
        yield
    finally:
        put(here, plain)


@dataclass
class Forks:
    """The process that forks. `run` waits for a child to end or stop."""

    process: subprocess.Popen[str]
    log: Path
    children: set[int] = field(default_factory=set)

    def run(self, armed: Armed) -> str:
        """How the child ended; what it raised is the test's failure."""
        return self._outcome(self._ask("run", base64.b64encode(pickle.dumps(armed)).decode()))

    def start(self, armed: Armed) -> int:
        """A child that is not waited for."""
        told = self._ask("start", base64.b64encode(pickle.dumps(armed)).decode())
        self.children.add(told["pid"])
        return int(told["pid"])

    def stopped(self, armed: Armed) -> int:
        """The child that has stopped where it was told."""
        told = self._ask("run", base64.b64encode(pickle.dumps(armed)).decode())
        assert told["how"] == STOPPED, (told, self.log.read_text()[-3000:])
        self.children.add(told["pid"])
        return int(told["pid"])

    def resume(self, pid: int) -> tuple[str, str]:
        """Let a stopped child go on to its end: how that was, and what it said last."""
        before = self.log.stat().st_size
        os.kill(pid, signal.SIGCONT)
        told = self._ask("wait", str(pid))
        self.children.discard(pid)
        return told["how"], self.log.read_text()[before:]

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._ask("wait", str(pid))
        self.children.discard(pid)

    def _ask(self, verb: str, argument: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{verb} {argument}\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def _outcome(self, told: dict[str, Any]) -> str:
        assert told["how"] in (KILLED, DONE), (told, self.log.read_text()[-3000:])
        return str(told["how"])


@contextlib.contextmanager
def forking(log: Path) -> Iterator[Forks]:
    from support import environment

    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    forks = Forks(process, log)
    try:
        yield forks
    finally:
        for pid in list(forks.children):
            forks.kill(pid)
        process.communicate(timeout=10)


def wait_for_port(port: int, timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _child(armed: str) -> None:
    try:
        pickle.loads(base64.b64decode(armed)).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _waited(pid: int) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"pid": pid, "how": STOPPED}
    if os.WIFSIGNALED(status):
        return {"pid": pid, "how": KILLED}
    return {"pid": pid, "how": DONE if os.waitstatus_to_exitcode(status) == 0 else "failed"}


def main() -> None:
    """Everything that a child may need, loaded before it is born."""
    import deltalake
    import httpx
    import psycopg
    import pyarrow.dataset
    import pyarrow.parquet
    import pyiceberg.catalog.rest
    import pyiceberg.catalog.sql
    import pyiceberg.table

    import strandline.lake
    import strandline.server.run
    import strandline.sinks.delta
    import strandline.sinks.http
    import strandline.sinks.iceberg
    import strandline.sinks.parquet

    assert all((deltalake, httpx, psycopg, pyarrow, pyiceberg, strandline))
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "wait":
            told = _waited(int(argument))
        else:
            pid = os.fork()
            if not pid:
                _child(argument)
            told = _waited(pid) if verb == "run" else {"pid": pid, "how": "started"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    # Under the name by which a pickle looks for it.
    import forks

    forks.main()
