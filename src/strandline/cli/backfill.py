"""Watch, slow down, pause and restart the history that a sink delivers in rounds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, counted, facts, fault, plain, preview, show, stdout
from strandline.cli.completion import complete_sinks
from strandline.cli.options import DryRun, Yes, parse_amount, parse_size
from strandline.cli.sink import SinkName
from strandline.cli.verb import Call

if TYPE_CHECKING:
    import strandline as sl
    from strandline.pipeline.backfill import Backfill, BackfillStatus

_LOOK_S = 1.0


def status(
    call: Call,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The sink; without a name, all.", autocompletion=complete_sinks),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until the history is delivered or paused.")] = False,
) -> Answer:
    """Show how far a history is: rows, rounds, pace, and how long the rest takes."""
    lake = call.lake()
    sinks.check_state(lake)
    names = sinks.choose(call, lake, None if name is None else [name])
    if watch:
        _watch(call, lake, names)
    found = _load(lake, names)
    data = {"lake": lake.storage.uri, "backfills": [each.to_dict() for each in found]}
    return Answer(data, _tell(call, found, is_alone=name is not None))


def _load(lake: sl.Lake, names: Sequence[str]) -> list[BackfillStatus]:
    return [lake.backfill(name).status() for name in names]


def _tell(call: Call, found: Sequence[BackfillStatus], *, is_alone: bool) -> Iterator[Part]:
    if is_alone:
        (each,) = found
        yield f"{each.consumer}: {sinks.history_text(each) or 'no history to deliver in rounds'}"
        if each.condition != "none":
            yield from facts(_list_facts(each))
        elif each.rate.is_limited:
            yield f"It sends {sinks.rate_text(each.rate)}."
        yield from _tell_next(call, each)
        return
    shown = [each for each in found if each.condition != "none"]
    if shown:
        columns = ("CONSUMER", "TABLE", "HISTORY", "DONE", "ROWS", "LEFT", "ROUNDS", "PACE", "TIME LEFT")
        numbers = ("DONE", "PACE", "TIME LEFT", "LEFT")
        yield Rows(columns, [_make_row(each) for each in shown], numbers=numbers, cut=("TABLE", "CONSUMER"))
        for each in shown:
            yield from _tell_next(call, each)
    else:
        yield "No sink delivers its history in rounds." if found else sinks.no_sinks(call)


def _tell_next(call: Call, each: BackfillStatus) -> Iterator[Part]:
    name = each.consumer
    if each.safe_s == 0:
        yield fault(f"{name}: ", "the changes after its mark are gone; it has to start again:")
        yield f"    {call.command(f'backfill restart {name}')}"
    elif each.condition == "paused" and each.rate.is_stopped:
        yield f"To let the history of {name} go on: {call.command(f'backfill resume {name}')}"
    elif each.condition == "paused":
        yield f"To let {name} go on: {call.command(f'sink resume {name}')}"
    elif each.condition == "waiting":
        yield f"The history of {name} goes on with: {call.command(f'tick {name}')}"


def _make_row(each: BackfillStatus) -> tuple[object, ...]:
    left = "" if each.rows_left is None else f"{each.rows_left:,}"
    pace = f"{each.pace:,.0f} rows/s" if each.pace else ""
    done = f"{each.percent:.1f} %"
    time_left = sinks.length(each.eta_s) if each.eta_s else ""
    return each.consumer, each.table, each.condition, done, each.rows, left, each.rounds, pace, time_left


def _list_facts(each: BackfillStatus) -> Iterator[tuple[str, str]]:
    yield "table", each.table
    yield "history", sinks.rows_text(each)
    # Vnodes go on together; only where some fell behind are there any that are done before the others.
    done = f"; {each.vnodes_done:,} of {counted(each.vnodes, 'vnode')} done" if each.vnodes_done < each.vnodes else ""
    yield "rounds", f"{each.rounds:,}{done if each.vnodes_done else ''}"
    rest = f", {sinks.length(each.eta_s)} for the rest" if each.eta_s else ""
    yield "pace", f"{each.pace:,.0f} rows/s{rest}" if each.pace else "not known yet"
    yield "rate", sinks.rate_text(each.rate)
    yield "lag", sinks.lag_text(each.lag)
    yield "mark", f"{each.seq:,}"
    if each.owner is not None:
        yield "worked on by", each.owner


def _watch(call: Call, lake: sl.Lake, names: Sequence[str]) -> None:
    """Show the histories until all are delivered or paused: as bars in a terminal, else a line for each change. With
    --json each line is a document; nothing follows."""
    if call.is_json or not sys.stdout.isatty():
        _print_changes(call, lake, names)
    else:
        _draw_bars(lake, names)
    if call.is_json:
        raise typer.Exit


def _print_changes(call: Call, lake: sl.Lake, names: Sequence[str]) -> None:
    before: dict[str, tuple[object, ...]] = {}
    for found in _follow(lake, names):
        for each in found:
            now = (each.condition, each.percent, each.rows)
            if each.condition == "none" or before.get(each.consumer) == now:
                continue
            before[each.consumer] = now
            if call.is_json:
                sys.stdout.write(json.dumps(plain(each.to_dict()), ensure_ascii=False) + "\n")
            else:
                show(stdout(), f"{each.consumer}: {sinks.history_text(each)}, {counted(each.rows, 'row')} sent")
            sys.stdout.flush()


def _draw_bars(lake: sl.Lake, names: Sequence[str]) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=stdout(), transient=True) as bar:
        tasks = {}
        for found in _follow(lake, names):
            for each in found:
                if each.condition == "none":
                    continue
                if each.consumer not in tasks:
                    tasks[each.consumer] = bar.add_task(each.consumer, total=100.0, what="")
                what = f"{counted(each.rows, 'row')}, {sinks.history_text(each)}"
                bar.update(tasks[each.consumer], completed=each.percent, what=what)


def _follow(lake: sl.Lake, names: Sequence[str]) -> Iterator[list[BackfillStatus]]:
    """The histories again and again, the last time when all are delivered or paused."""
    while True:
        found = _load(lake, names)
        yield found
        if not any(each.is_open and each.condition != "paused" for each in found):
            return
        time.sleep(_LOOK_S)


def pause(call: Call, name: SinkName) -> Answer:
    """Pause the history of a sink. Changes of the rows that it has sent are still sent."""
    return _answer_change(call, name, lambda history: history.pause())


def resume(call: Call, name: SinkName) -> Answer:
    """Let a paused history go on, at the rate that was set before."""
    return _answer_change(call, name, lambda history: history.resume())


def rate(
    call: Call,
    name: SinkName,
    rows: Annotated[
        str | None, typer.Argument(metavar="ROWS", help="Rows a second; 0 pauses the history, none is no limit.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Bytes a second, such as 10MB; else no limit.")
    ] = None,
) -> Answer:
    """Set how fast a sink sends, its history and its changes. It holds from the next batch on, also for a tick that
    runs now, and replaces the earlier rate."""
    if rows is None and size is None:
        raise typer.BadParameter("give ROWS, --bytes or both; to send without a limit: ROWS is none")
    rows_per_s, bytes_per_s = parse_amount(rows, "ROWS"), parse_size(size, "--bytes")
    return _answer_change(call, name, lambda history: history.rate(rows_per_s, bytes_per_s))


def _open(call: Call, name: str) -> sl.Lake:
    lake = call.lake()
    sinks.choose(call, lake, [name])
    return lake


def _answer_change(call: Call, name: str, act: Callable[[Backfill], BackfillStatus]) -> Answer:
    lake = _open(call, name)
    before = lake.state.rates.get(name)
    now = act(lake.backfill(name))
    already = " already" if now.rate == before else ""

    def tell() -> Iterator[Part]:
        if now.rate.is_stopped:
            yield f"The history of {name} is paused{already}{f' at {now.percent:.1f} %' if now.is_open else ''}."
            yield "Changes of the rows that it has sent are still sent."
        elif already:
            yield f"{name} sends {sinks.rate_text(now.rate)} already."
        else:
            yield f"{name} sends {sinks.rate_text(now.rate)}, from the next batch on."
        yield from _tell_next(call, now)

    return Answer(now, tell())


def restart(call: Call, name: SinkName, yes: Yes = False, dry_run: DryRun = False) -> Answer:
    """Deliver the whole table again, as a new generation. Asks first."""
    lake = _open(call, name)
    history = lake.backfill(name)
    planned = history.restart(dry_run=True)
    will = (
        f"Sink {name!r} begins a new generation: the table {planned.table} as it is, about"
        f" {counted(planned.rows, 'row')}, will be sent to {planned.destination} again. What is there stays there."
    )
    if dry_run:
        return preview(will, asdict(planned))
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} starts again", table=planned.table)
    done = history.restart()

    def tell() -> Iterator[Part]:
        yield f"Sink {name} is in generation {done.life} now. It begins with: {call.command(f'tick {name}')}"
        if history.status().rate.is_stopped:
            yield f"Its history stays paused; to let it go on: {call.command(f'backfill resume {name}')}"

    return Answer(asdict(done), tell())


VERBS = {"status": status, "pause": pause, "resume": resume, "rate": rate, "restart": restart}
