"""Send the new changes, again and again."""

from __future__ import annotations

import datetime as dt
import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from strandline.cli.answer import Answer, fault, moment, note, plain, show, stderr, stdout
from strandline.cli.interrupts import make_handler
from strandline.cli.options import parse_length
from strandline.cli.tick import describe_run
from strandline.cli.verb import Call
from strandline.errors import StrandlineError
from strandline.model import duration

if TYPE_CHECKING:
    import strandline as sl
    from strandline.pipeline.failures import News


def run(
    call: Call,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="The time from the start of one tick to the next.")
    ] = "10s",
) -> Answer:
    """Tick again and again, until Ctrl-C or SIGTERM.

    The first signal lets the running tick finish; a second one stops at once. Prints the ticks that did something;
    with --json one document a line."""
    every_s = parse_length(every, "--every")
    if not every_s:
        raise typer.BadParameter("--every must be longer than 0s")
    lake = call.lake()
    voice = _Voice(call)
    voice.say(f"A tick of {lake.storage.uri} every {duration.to_text(every_s)}; times are UTC. Ctrl-C ends it.")
    # Not in the main thread: that one hears the signals, also while a tick is busy in a library.
    with _stop_on_signal() as stop, ThreadPoolExecutor(1) as worker:
        worker.submit(lake.run, every=every_s, stop=stop, on_report=voice.tell).result()
    # Each tick was printed as it ended.
    raise typer.Exit


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second ends the process."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        show(stderr(), note("Stopping when the tick under way is done; once more to stop at once."))

    hear = make_handler(end)
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Voice:
    """Prints each tick that did something. Of idle ticks in a row it prints the first, and each that waits for other
    sinks than the one before. A failure that goes on is printed once, again when it changes, and when it is over."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waited_for: tuple[str, ...] | None = None
        # The parts of a tick load late: help lists this verb too.
        from strandline.pipeline.failures import Failures

        self._failures = Failures()

    def say(self, text: str | Text) -> None:
        if not self._call.is_json:
            show(stdout(), text)
            sys.stdout.flush()

    def tell(self, heard: sl.TickReport | StrandlineError) -> None:
        now = dt.datetime.now(dt.UTC)
        news = self._failures.note(heard)
        if isinstance(heard, StrandlineError):
            if news.repeated:
                return
        else:
            heard = _leave_out(heard, news)
            if news.repeated and not heard.consumers and not heard.broken and not news.recovered:
                return
        before, self._waited_for = self._waited_for, _find_waits(heard)
        if self._waited_for is not None and self._waited_for == before:
            return
        if self._call.is_json and self._waited_for != ():
            document = {"at": now.isoformat(timespec="milliseconds"), **_make_report(heard)}
            sys.stdout.write(json.dumps(plain(document), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        again = [Text(f"{name}: works again", "green") for name in news.recovered]
        parts = [*again, *self._describe(heard)] or [Text("Up to date")]
        self.say(Text.assemble(note(f"{moment(now)}  "), Text("; ").join(parts)))

    def _describe(self, heard: sl.TickReport | StrandlineError) -> Iterator[Text]:
        if isinstance(heard, StrandlineError):
            hint = f" {self._call.for_lake(heard.hint)}" if heard.hint else ""
            yield fault(f"{heard.kind}: ", f"{heard.message}.{hint}")
            return
        for each in heard.consumers:
            if each.is_busy:
                yield Text(f"{each.name}: left to another runner")
            elif done := describe_run(each):
                yield Text(f"{each.name}: {done}")
            if each.error is not None:
                yield fault(f"{each.name}: {each.error.kind}: ", each.error.message)
        for table in heard.broken:
            yield fault(f"{table.name}: {table.kind}: ", table.message)
        if heard.working:
            yield Text(f"still at work: {', '.join(heard.working)}")


def _leave_out(report: sl.TickReport, news: News) -> sl.TickReport:
    """The report without the failures that are known, unless their consumers did something else as well."""
    consumers = [each for each in report.consumers if each.name not in news.repeated or each.after is not None]
    broken = [table for table in report.broken if f"table {table.name}" not in news.repeated]
    return replace(report, consumers=tuple(consumers), broken=tuple(broken))


def _find_waits(heard: sl.TickReport | StrandlineError) -> tuple[str, ...] | None:
    """The consumers that an otherwise idle tick still waits for. None when the tick did something or failed."""
    if isinstance(heard, StrandlineError) or heard.consumers or heard.broken:
        return None
    return heard.working


def _make_report(heard: sl.TickReport | StrandlineError) -> dict[str, object]:
    return {"error": {**heard.to_dict(), **heard.fields}} if isinstance(heard, StrandlineError) else heard.to_dict()
