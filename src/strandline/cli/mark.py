"""See how far sinks are, start one again, retire one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, counted, facts, fault, preview
from strandline.cli.destination import BACKFILL, HEAD
from strandline.cli.options import DryRun, ShowAll, Yes
from strandline.cli.sink import SinkName
from strandline.cli.verb import Call
from strandline.errors import Invalid

if TYPE_CHECKING:
    from strandline.pipeline.commands import ResetReport
    from strandline.pipeline.lag import Lag
    from strandline.pipeline.status import ConsumerStatus
    from strandline.sinks.definition import Start


def show(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The sink; without a name, all of them.")] = None,
    is_all: ShowAll = False,
) -> Answer:
    """Show how far each sink is: marks, lag, batches under way, its last run."""
    lake = call.lake()
    found = sinks.find(call, lake, None if name is None else [name])

    def tell() -> Iterator[Part]:
        shown = [sink for sink in found if is_all or name is not None or not sink.is_retired or sink.error]
        for at, sink in enumerate(shown):
            if at:
                yield ""
            yield f"{sink.name}: {sink.table} → {sink.destination}"
            yield from facts(sinks.progress_of(sink))
            if sink.error:
                yield fault("failed: ", sink.error)
        if not found:
            yield sinks.no_sinks(call)
        yield from sinks.tell_hidden(len(found) - len(shown))

    return Answer({"lake": lake.storage.uri, "consumers": [sink.to_dict() for sink in found]}, tell())


def reset(
    call: Call,
    name: SinkName,
    to: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="Send only the changes after this seq.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Send only changes from now on.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Start a sink again: by default it sends the current table once more. Asks first.

    The sink begins a new generation: for its destination it is a new sender."""
    if head and to is not None:
        raise typer.BadParameter("give --to or --head, not both")
    start: Start = HEAD if head else BACKFILL if to is None else to
    lake = call.lake()
    (sink,) = sinks.find(call, lake, [name])
    planned = lake.reset_sink(name, start, dry_run=True)
    will = _describe_reset(planned, sink)
    if dry_run:
        return preview(will, asdict(planned))
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} starts again", table=planned.table)
    done = lake.reset_sink(name, start)
    begins = f"It begins with: {call.command(f'tick {name}')}"
    if sink.is_paused:
        begins = f"It stays paused; to let it begin: {call.command(f'sink resume {name}')}"
    return Answer(asdict(done), f"Sink {name} is in generation {done.life} now. {begins}")


def _describe_reset(planned: ResetReport, sink: ConsumerStatus) -> str:
    rows = f"about {counted(planned.rows, 'row')}"
    lost = "" if sink.lag.is_none or sink.is_retired else f" {_describe_loss(sink.lag)}."
    if planned.start == BACKFILL:
        what, lost = f"the table {planned.table} as it is, {rows}, will be sent to {planned.destination} again", ""
    elif planned.start == HEAD:
        what = f"it goes on at the head of {planned.table}"
    else:
        is_back = all(seq >= int(planned.start) for seq in planned.was.values()) and bool(planned.was)
        what = (
            f"the changes of {planned.table} after seq {planned.start}, {rows}, will be sent to {planned.destination}"
        )
        lost = "" if is_back or not lost else f" What was not sent up to seq {planned.start} never will be."
    works = " and works again" if sink.is_retired else ""
    return f"Sink {planned.name!r} begins a new generation{works}: {what}.{lost} What is there stays there."


def retire(call: Call, name: SinkName, yes: Yes = False, dry_run: DryRun = False) -> Answer:
    """Retire a sink: it sends nothing more, and the log is no longer kept for it. Asks first."""
    lake = call.lake()
    (sink,) = sinks.find(call, lake, [name])
    again = f"To start it again: {call.command(f'mark reset {name}')}"
    if sink.is_retired and not sink.error:
        raise Invalid(f"sink {name!r} is retired already", hint=again, consumer=name)
    planned = lake.retire_sink(name, dry_run=True)
    rest = "Everything was sent" if planned.lag.is_none else _describe_loss(planned.lag)
    will = f"Sink {name!r} ({planned.table} → {planned.destination}) retires. {rest}; the log is no longer kept for it."
    data = {**asdict(planned), "lag": planned.lag.to_dict()}
    if dry_run:
        return preview(will, data)
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} is retired", table=planned.table)
    lake.retire_sink(name)
    return Answer(data, f"Sink {name} is retired. {again}")


def _describe_loss(lag: Lag) -> str:
    return f"What was not sent, {counted(lag.commits, 'commit')} ({counted(lag.rows, 'row')}), never will be"


VERBS = {"show": show, "reset": reset, "retire": retire}
