"""Storms: someone writes to a lake while the processes that send its changes, or receive them, are killed.

The processes are real: forks that run what `strandline run` and `strandline serve` run, or those commands themselves.
A seed repeats a storm's choices, not its timing; it is part of every failure."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

import strandline as sl
from forks import Armed, Forks, Serving, make_rounds
from strandline.consumers import ranges
from strandline.errors import StrandlineError
from strandline.pipeline import runner
from strandline.pipeline.report import TickReport
from support import Oracle, environment

KEYS = 600
PATIENCE_S = 120.0
SHOWN = 10


@dataclass(frozen=True)
class Running:
    """`strandline run` of the lake at `root`. Lanes are small, so that a few hundred rows take several; with
    `round_rows` so are the rounds of a backfill."""

    root: str
    sinks: dict[str, dict[str, Any]]
    state: str | None = None
    every_s: float = 0.05
    lane_rows: int = 100
    round_rows: int = 0

    def __call__(self) -> None:
        ranges.LANE_ROWS = self.lane_rows
        if self.round_rows:
            make_rounds(self.round_rows)
        lake = sl.Lake(self.root, state=self.state)
        for name, options in self.sinks.items():
            lake.sink(name, **options)
        runner.run(lake, self.every_s, on_report=_tell)


def _tell(heard: TickReport | StrandlineError) -> None:
    """Says what went wrong, for the test's log."""
    wrong = [heard] if isinstance(heard, StrandlineError) else [sink.error for sink in heard.sinks if sink.error]
    for error in wrong:
        print(f"{error.kind}: {error.message}", file=sys.stderr, flush=True)


# --- the processes ---------------------------------------------------------------------------------------------


class Part(Protocol):
    """A process that is killed and started again. `log` is what it says."""

    @property
    def log(self) -> Path: ...

    def start(self) -> None: ...

    def kill(self) -> None:
        """End it with SIGKILL, if it is started; one that has ended by itself is the test's failure."""
        ...


@dataclass
class Forked:
    forks: Forks
    work: Running | Serving
    pid: int = 0

    @property
    def log(self) -> Path:
        return self.forks.log

    def start(self) -> None:
        self.pid = self.forks.start(Armed(self.work))  # type: ignore[arg-type]

    def kill(self) -> None:
        if not self.pid:
            return
        has_ended = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        self.forks.kill(self.pid)
        self.pid = 0
        assert not has_ended, f"{self.work} ended by itself"


@dataclass
class Command:
    """A command of the CLI."""

    arguments: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "strandline", *self.arguments]
            self.process = subprocess.Popen(command, env=environment(), cwd=self.log.parent, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is None:
            return
        code = self.process.poll()
        self.process.kill()
        self.process.wait(10)
        self.process = None
        assert code is None, f"{self.arguments} ended by itself, with {code}"


# --- the writer ------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Upserts, updates and deletes in `items`, rows with ids of their own in `events`; `model` and `appended` are what
    the tables must hold."""

    def __init__(self, lake: sl.Lake, rng: random.Random, *, most_rows: int = 120) -> None:
        super().__init__(name="writer", daemon=True)
        self.model = Oracle(["id"])
        self.appended = 0
        self._items, self._events = lake.table("items"), lake.table("events")
        self._rng = random.Random(rng.getrandbits(32))
        self._most_rows = most_rows
        self._done = threading.Event()
        self._error: BaseException | None = None

    def write(self, rows: int) -> None:
        """One commit of each table."""
        if self._rng.random() < 0.25:
            keys = [{"id": id} for id in self._rng.sample(range(KEYS), min(rows, KEYS) // 3 + 1)]
            self._items.delete(keys)
            self.model.delete(keys)
        else:
            ids = self._rng.sample(range(KEYS), min(rows, KEYS))
            changed = [{"id": id, "name": f"{id}.{self._rng.random()}", "qty": rows} for id in ids]
            self._items.upsert(changed)
            self.model.upsert(changed)
        new = range(self.appended, self.appended + rows)
        self._events.append([{"id": id, "name": "event", "qty": id % 7} for id in new])
        self.appended += rows

    def run(self) -> None:
        try:
            while not self._done.wait(self._rng.uniform(0.0, 0.12)):
                self.write(self._rng.randint(1, self._most_rows))
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        self._done.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the writer hangs"
        if self._error is not None:
            raise self._error


# --- the storm -------------------------------------------------------------------------------------------------


def storm(
    lake: sl.Lake,
    parts: Sequence[Part],
    writer: Writer,
    rng: random.Random,
    kills: int,
    pause_s: float,
    calm: Callable[[], object] = lambda: None,
) -> int:
    """Kill parts `kills` times, about every `pause_s`, while the writer writes; then call `calm`, and wait until all is
    sent. Says how many of the kills fell while a batch was under way."""
    within = 0
    with contextlib.ExitStack() as stack:
        for part in parts:
            part.start()
            stack.callback(part.kill)
        writer.start()
        stack.callback(writer.stop)
        try:
            for _ in range(kills):
                time.sleep(min(rng.expovariate(1 / pause_s), 4 * pause_s))
                victim = rng.choice(list(parts))
                victim.kill()
                within += _has_begun(lake)
                time.sleep(rng.choice([0, 0, rng.uniform(0, pause_s)]))
                victim.start()
            writer.stop()
            calm()
            _wait_until_idle(lake)
        except BaseException:
            for log in {part.log for part in parts}:
                print(f"{log.name} ends with:\n{log.read_text()[-3000:]}")
            raise
    print(f"{within} of {kills} kills fell while a batch was under way")
    return within


def _has_begun(lake: sl.Lake) -> bool:
    return any(work.is_replay for sink in lake.plan().sinks for work in sink.works)


def _wait_until_idle(lake: sl.Lake) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        sinks = lake.plan().sinks
        if sinks and not any(sink.works or sink.error for sink in sinks):
            break
        told = [sink.to_dict() for sink in sinks]
        assert time.monotonic() < deadline_s, f"not idle after {PATIENCE_S:g} s: {told}"
        time.sleep(0.05)
    assert not lake.state.letters.counts(), "rows became dead letters"


def check_same(what: str, expected: Iterable[Any], found: Iterable[Any]) -> None:
    """Each of `expected` was found, and as often; what was not, and what was found too often, is said."""
    wanted, got = Counter(expected), Counter(found)
    lost, double = wanted - got, got - wanted
    said = f"{what}: {wanted.total()} expected, {got.total()} found, {lost.total()} lost, {double.total()} too many"
    assert not lost and not double, f"{said}; lost {_first(lost)}; too many {_first(double)}"


def _first(rows: Counter[Any]) -> list[Any]:
    return sorted(rows.elements(), key=repr)[:SHOWN]
