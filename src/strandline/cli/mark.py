"""Look at the marks of sinks, start a sink again, retire it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted
from strandline.cli.options import DryRun, Yes
from strandline.cli.sink import SinkName
from strandline.cli.verb import Call, verb
from strandline.errors import Invalid
from strandline.pipeline import commands
from strandline.pipeline.lag import Lag
from strandline.pipeline.status import ConsumerStatus
from strandline.sinks.definition import BACKFILL, HEAD, Start


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="mark", help="See how far sinks are, start one again, retire one.")
    verb(group, "show")(show)
    verb(group, "reset")(reset)
    verb(group, "retire")(retire)
    app.add_typer(group, no_args_is_help=True)


def show(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The sink; all of them without a name.")] = None,
) -> Answer:
    """Show how far each sink is: marks, lag, what it has begun, what it did last."""
    lake = call.lake()
    found = sinks.all_of(call, lake, None if name is None else [name])

    def render(out: Console) -> None:
        for at, sink in enumerate(found):
            if at:
                out.print()
            out.print(f"{sink.name}: {sink.table} → {sink.destination}", soft_wrap=True)
            for word, fact in sinks.facts(sink):
                out.print(f"{word:16}{fact}", soft_wrap=True)
            if sink.error:
                out.print(Text.assemble(("failed: ", "bold red"), sink.error), soft_wrap=True)
        if not found:
            out.print(f"There are no sinks. Add one: {sinks.adding(call)}")

    return Answer({"lake": lake.storage.uri, "sinks": [sink.to_dict() for sink in found]}, render)


def reset(
    call: Call,
    name: SinkName,
    to: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="Send only the changes after this seq.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Send only what comes from now on.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Start a sink again: by default the table as it is will be sent once more. Asks first.

    It becomes a new life: its destination takes what comes as if from another sender."""
    if head and to is not None:
        raise typer.BadParameter("give --to or --head, not both")
    start: Start = HEAD if head else BACKFILL if to is None else to
    lake = call.lake()
    (sink,) = sinks.all_of(call, lake, [name])
    planned = commands.reset(lake, name, start, dry_run=True)
    will = _will(planned, sink)
    if dry_run:
        return _only_said(will, asdict(planned))
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} starts again", table=planned.table)
    done = commands.reset(lake, name, start)

    def render(out: Console) -> None:
        out.print(f"Sink {name} is in life {done.life} now. It begins with: {call.command(f'tick {name}')}")

    return Answer(asdict(done), render)


def _will(planned: commands.ResetReport, sink: ConsumerStatus) -> str:
    """What starting again causes."""
    rows = f"about {counted(planned.rows, 'row')}"
    lost = "" if sink.lag.is_none or sink.is_retired else f" {_unsent(sink.lag)}."
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
    return f"Sink {planned.name!r} becomes a new life{works}: {what}.{lost} What is there stays there."


def retire(call: Call, name: SinkName, yes: Yes = False, dry_run: DryRun = False) -> Answer:
    """Let a sink send nothing more, and keep the log for it no more. Asks first."""
    lake = call.lake()
    (sink,) = sinks.all_of(call, lake, [name])
    if sink.is_retired and not sink.error:
        raise Invalid(f"sink {name!r} is retired already", hint=_revive(call, name), consumer=name)
    planned = commands.retire(lake, name, dry_run=True)
    rest = "Everything was sent" if planned.lag.is_none else _unsent(planned.lag)
    will = f"Sink {name!r} ({planned.table} → {planned.destination}) retires. {rest}; the log is no longer kept for it."
    data = {**asdict(planned), "lag": planned.lag.to_dict()}
    if dry_run:
        return _only_said(will, data)
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} is retired", table=planned.table)
    commands.retire(lake, name)

    def render(out: Console) -> None:
        out.print(f"Sink {name} is retired. {_revive(call, name)}", soft_wrap=True)

    return Answer(data, render)


def _unsent(lag: Lag) -> str:
    return f"What was not sent, {counted(lag.commits, 'commit')} ({counted(lag.rows, 'row')}), never will be"


def _only_said(will: str, data: Mapping[str, Any]) -> Answer:
    """The answer of a dry run."""
    return Answer({**data, "is_dry_run": True}, lambda out: out.print(f"{will}\nNothing was written.", soft_wrap=True))


def _revive(call: Call, name: str) -> str:
    return f"To start it again: {call.command(f'mark reset {name}')}"
