"""The report of a consumer while it works: its time, its errors, and the progress of a tick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.consumers.contract import ConsumerReport
from strandline.consumers.plan import ConsumerPlan
from strandline.errors import Internal, StrandlineError
from strandline.progress import Progress

Step = Callable[[int, str], None]
"""Called with the number of rows done, and the consumer's name."""


def ignore_step(rows: int, name: str) -> None:
    """For callers without progress."""


def sum_steps(progress: Progress, whole: int) -> Step:
    """A step that sums up the rows of any number of threads; progress never goes back."""
    lock, done = threading.Lock(), 0
    progress(0, whole, "")

    def step(rows: int, name: str) -> None:
        nonlocal done
        with lock:
            done += rows
            progress(done, max(done, whole), name)

    return step


def report_of(plan: ConsumerPlan) -> ConsumerReport:
    return ConsumerReport(
        name=plan.name,
        table=plan.table,
        kind=plan.kind,
        destination=plan.destination,
        is_new=plan.is_new,
        why=plan.why,
        lost=plan.lost,
    )


@contextmanager
def measure_time(report: ConsumerReport) -> Iterator[None]:
    started_s = time.monotonic()
    try:
        yield
    finally:
        report.seconds = round(time.monotonic() - started_s, 3)


@contextmanager
def collect_errors(title: str, errors: list[StrandlineError]) -> Iterator[None]:
    """Put the errors of one consumer into its report, so that they stop no other."""
    try:
        yield
    except StrandlineError as error:
        errors.append(error)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # A library written in Rust may panic, which is no Exception.
        errors.append(Internal(f"{title} failed: {type(error).__name__}: {error}"))
