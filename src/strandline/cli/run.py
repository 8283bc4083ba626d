"""Send what is new, again and again."""

from __future__ import annotations

import datetime as dt
import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.text import Text

from strandline.cli.answer import Answer, moment, plain, stderr, stdout
from strandline.cli.interrupts import obeying
from strandline.cli.options import length
from strandline.cli.tick import did
from strandline.cli.verb import Call, verb
from strandline.errors import StrandlineError
from strandline.model import duration
from strandline.pipeline import runner
from strandline.pipeline.runner import TickReport


def register(app: typer.Typer) -> None:
    verb(app, "run")(run)


def run(
    call: Call,
    every: Annotated[str, typer.Option(metavar="TIME", help="From the start of a tick to the next.")] = "10s",
) -> Answer:
    """Tick again and again, until Ctrl-C or SIGTERM.

    The first one lets the tick under way end, a second one does not wait for it. Tells of ticks that did something;
    with --json one document a line."""
    every_s = length(every, "--every")
    if not every_s:
        raise typer.BadParameter("--every must be longer than 0s")
    lake = call.lake()
    voice = _Voice(call)
    voice.say(f"A tick of {lake.storage.uri} every {duration.shown(every_s)}; times are UTC. Ctrl-C ends it.")
    # Not in the main thread: that one hears the signals, also while a tick is busy in a library.
    with _stopping() as stop, ThreadPoolExecutor(1) as worker:
        worker.submit(runner.run, lake, every_s, stop=stop, on_report=voice.tell).result()
    # All that it had to say is said.
    raise typer.Exit


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second ends the process."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        stderr().print(Text("Stopping when the tick under way is done; once more to stop at once.", "dim"))

    hear = obeying(end)
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Voice:
    """Tells of each tick that did something, and once when there is nothing more to do or only to wait for sinks."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waited_for: tuple[str, ...] | None = None

    def say(self, text: str | Text) -> None:
        if not self._call.is_json:
            stdout().print(text, soft_wrap=True)
            sys.stdout.flush()

    def tell(self, heard: TickReport | StrandlineError) -> None:
        now = dt.datetime.now(dt.UTC)
        before, self._waited_for = self._waited_for, _waited_for(heard)
        if self._waited_for is not None and self._waited_for == before:
            return
        if self._call.is_json and self._waited_for != ():
            document = {"at": now.isoformat(timespec="milliseconds"), **_data(heard)}
            sys.stdout.write(json.dumps(plain(document), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        parts = list(self._parts(heard)) or ["Up to date"]
        self.say(Text.assemble((f"{moment(now)}  ", "dim"), Text("; ").join(map(_text, parts))))

    def _parts(self, heard: TickReport | StrandlineError) -> Iterator[str | Text]:
        if isinstance(heard, StrandlineError):
            hint = f" {self._call.for_lake(heard.hint)}" if heard.hint else ""
            yield Text.assemble((f"{heard.kind}: ", "bold red"), f"{heard.message}.{hint}")
            return
        for each in heard.consumers:
            if each.is_busy:
                yield f"{each.name}: left to another runner"
            elif done := did(each):
                yield f"{each.name}: {done}"
            if each.error is not None:
                yield Text.assemble((f"{each.name}: {each.error.kind}: ", "bold red"), each.error.message)
        for table in heard.broken:
            yield Text.assemble((f"{table.name}: {table.kind}: ", "bold red"), table.message)
        if heard.working:
            yield f"still at work: {', '.join(heard.working)}"


def _waited_for(heard: TickReport | StrandlineError) -> tuple[str, ...] | None:
    """The consumers that are all that is left of a tick that did nothing else; None of one that did something or
    failed."""
    if isinstance(heard, StrandlineError) or heard.consumers or heard.broken:
        return None
    return heard.working


def _text(part: str | Text) -> Text:
    return part if isinstance(part, Text) else Text(part)


def _data(heard: TickReport | StrandlineError) -> dict[str, object]:
    if isinstance(heard, TickReport):
        return heard.to_dict()
    return {"error": {**heard.to_dict(), **heard.fields}}
