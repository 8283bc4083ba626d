"""Sinks as several verbs name and show them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from strandline.cli.answer import Part, counted, fault, moment, note, size
from strandline.cli.verb import Call
from strandline.errors import Conflict, NotFound, StrandlineError

if TYPE_CHECKING:
    import strandline as sl
    from strandline.pipeline.backfill import BackfillStatus
    from strandline.pipeline.lag import Lag
    from strandline.pipeline.status import ConsumerStatus
    from strandline.state.rates import Rate
    from strandline.state.receipts import SavedReceipt


def choose(call: Call, lake: sl.Lake, names: Sequence[str] | None) -> list[str]:
    """The named sinks, each once, or all sinks without names. `NotFound` when there is no sink of a name."""
    known = list(lake.consumer_states())
    for name in names or ():
        if name not in known:
            way = f"Sinks: {', '.join(known)}" if known else no_sinks(call)
            raise NotFound(f"there is no sink or other consumer {name!r}", hint=way, consumer=name)
    return list(dict.fromkeys(names)) if names else known


def find(call: Call, lake: sl.Lake, names: Sequence[str] | None = None) -> list[ConsumerStatus]:
    """The status of the named sinks, or of all. `Conflict` when the state does not belong to the lake."""
    check_state(lake)
    chosen = choose(call, lake, names)
    found = lake.status()
    if found.state_fault:
        message, _, hint = found.state_fault.partition("\n")
        raise Conflict(message, hint=hint or None)
    return [sink for sink in found.marked if sink.name in chosen]


def check_state(lake: sl.Lake) -> None:
    """The first check of a tick: `Conflict` unless lake and state belong together."""
    if lake.has_state:
        lake.state.epoch.check()


def no_sinks(call: Call) -> str:
    return f"There are no sinks. Add one: {call.command('sink add NAME TABLE --to DEST')}"


def tell_hidden(count: int) -> Iterator[Part]:
    """That retired sinks are left out, if there are some."""
    if count:
        yield note(f"{counted(count, 'retired sink is', 'retired sinks are')} not shown; --all shows all.")


def progress_of(sink: ConsumerStatus) -> list[tuple[str, str]]:
    """How far a sink is, as `facts` for people."""
    begun = f"{counted(sink.intents, 'batch', 'batches')}, which the next tick repeats" if sink.intents else "nothing"
    return [
        ("generation", f"{sink.life} ({sink.generation})" if sink.generation else "none yet: declared, never ran"),
        ("mark", marks_text(sink.marks)),
        ("lag", lag_text(sink.lag) + (", never sent" if sink.is_retired and not sink.lag.is_none else "")),
        *([("history", rows_text(sink.backfill))] if sink.backfill is not None else []),
        ("under way", begun),
        ("dead letters", f"{sink.letters:,}" if sink.letters else "none"),
        ("last", last_text(sink.last) or "nothing yet"),
        ("condition", state_text(sink)),
    ]


def lag_text(lag: Lag) -> str:
    if lag.is_none:
        return "none"
    since = "" if lag.seconds is None else f", {length(lag.seconds)}"
    return f"{counted(lag.commits, 'commit')}, {counted(lag.rows, 'row')}{since}"


def short_lag_text(lag: Lag) -> str:
    """The rows that are missing, and the age of the oldest of them."""
    if lag.is_none:
        return "none"
    return counted(lag.rows, "row") + ("" if lag.seconds is None else f", {length(lag.seconds)}")


def length(seconds: float) -> str:
    """A length of time that reads well: 42 s, 5 min, 3 h, 12 d."""
    for unit, size_s, upto_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < upto_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def marks_text(marks: Mapping[int, int]) -> str:
    """One number when all vnodes are at the same seq, else the vnodes that are at each."""
    if not marks:
        return "none: it has not started"
    if len(set(marks.values())) == 1:
        return f"seq {next(iter(marks.values())):,}"
    parts = []
    # Neighbours at one seq keep their distance to their place in the list.
    for _, group in groupby(enumerate(sorted(marks)), key=lambda pair: (pair[1] - pair[0], marks[pair[1]])):
        vnodes = [vnode for _, vnode in group]
        which = f"vnodes {vnodes[0]}-{vnodes[-1]}" if len(vnodes) > 1 else f"vnode {vnodes[0]}"
        parts.append(f"{which} at seq {marks[vnodes[0]]:,}")
    return ", ".join(parts)


def last_text(last: SavedReceipt | None) -> str:
    """What a sink did last, and when (UTC); empty if it never ran."""
    if last is None:
        return ""
    body, at = last.body, moment(dt.datetime.fromtimestamp(last.at_s, dt.UTC))
    if body.get("error") and not body.get("rows"):
        return f"failed, {at}"
    return f"{counted(body.get('rows', 0), 'row')}, {size(body.get('bytes', 0))}, {at}"


def state_text(sink: ConsumerStatus) -> str:
    """One or two words. The text of an error is shown on a line of its own."""
    from strandline.state.leases import place_of

    if sink.is_retired:
        return "retired" if sink.error is None else "waits for you"
    if sink.is_paused:
        return "paused" if sink.owner is None else f"paused, finishing ({place_of(sink.owner)})"
    history = "" if sink.backfill is None or not sink.backfill.is_open else history_text(sink.backfill)
    is_running = bool(history) and sink.backfill is not None and sink.backfill.condition == "running"
    if sink.owner is not None and not is_running:
        return f"working ({place_of(sink.owner)})"
    if sink.error is not None and not is_running:
        return "failed"
    return history or ("never ran" if sink.last is None else "ok")


def history_text(backfill: BackfillStatus) -> str:
    """How far the history of a sink is, in a few words; empty when it has none."""
    done = f"{backfill.percent:.1f} %"
    if backfill.condition == "running":
        return f"history {done}" + (f", {length(backfill.eta_s)} left" if backfill.eta_s else "")
    texts = {"waiting": f"history {done}, waits for a tick", "paused": f"history paused at {done}"}
    return texts.get(backfill.condition, "history delivered" if backfill.condition == "done" else "")


def rows_text(backfill: BackfillStatus) -> str:
    """The rows of a history."""
    left = "" if backfill.rows_left is None else f", about {backfill.rows_left:,} left"
    return f"{counted(backfill.rows, 'row')} sent{left}"


def rate_text(rate: Rate) -> str:
    """The limits of a rate; a pause is not part of it."""
    limits = [
        *([f"{rate.rows_per_s:,.10g} rows/s"] if rate.rows_per_s else []),
        *([f"{size(round(rate.bytes_per_s))}/s"] if rate.bytes_per_s else []),
    ]
    return f"at most {' and '.join(limits)}" if limits else "without a limit"


def coloured_state(sink: ConsumerStatus) -> Text:
    """`state_text` with the colour of what it asks for."""
    state = state_text(sink)
    styles = {"ok": "green", "failed": "bold red", "waits for you": "bold red", "retired": "dim", "never ran": "dim"}
    if state == "ok" and sink.letters:
        return Text(counted(sink.letters, "dead letter"), "yellow")
    return Text(state, styles.get(state, "cyan"))


def failure_parts(call: Call, name: str, error: StrandlineError) -> Iterator[Part]:
    """Why a consumer could not do its work, and what to do."""
    yield fault(f"{name}: {error.kind}: ", error.message)
    if error.hint:
        yield note(f"  {call.for_lake(error.hint)}")
