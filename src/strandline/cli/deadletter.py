"""See rows that a destination refused, send them again or drop them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import strandline as sl
from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, counted, cut, facts, moment, note, wrap
from strandline.cli.options import Yes
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call
from strandline.errors import StrandlineError

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.pipeline.redelivery import ReplayReport
    from strandline.state.letter_groups import LetterGroup
    from strandline.state.letters import DeadLetter

_ID_CHARS = 8
_SHOWN = 20

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead letters, or the beginnings of ids; with --all names of sinks."),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters, or all of the named sinks.")]


def list_(
    call: Call,
    sink: Annotated[str | None, typer.Argument(metavar="SINK", help="The sink; without a name, all of them.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="List each letter by itself, with its id.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="With --all: the last N of them.")] = 100,
) -> Answer:
    """List the dead letters: those with the same cause together, or with --all each one, the newest first."""
    from strandline.state.letter_groups import group_letters

    lake = call.lake()
    whole = _find_letters(call, lake, sink)
    found, groups = whole[:limit], group_letters(whole)
    data = {
        "lake": lake.storage.uri,
        "groups": [group.to_dict() for group in groups],
        "deadletters": [letter.to_dict() for letter in found],
    }
    if not found:
        return Answer(data, "There are no dead letters." if sink is None else f"Sink {sink} has no dead letters.")
    if not is_all:
        return Answer(data, _tell_groups(call, groups))

    def tell() -> Iterator[Part]:
        ids = _shorten([letter.id for letter in found])
        columns = ("ID", "SINK", "TABLE", "ROWS", "STATUS", "REPLAYS", "SINCE (UTC)", "WHY")
        rows = [
            (ids[each.id], each.consumer, each.table, each.rows, _status(each), each.attempts, each.created_at, why)
            for each, why in ((letter, _cut(letter.reason)) for letter in found)
        ]
        yield Rows(columns, rows, numbers=("STATUS",))
        if len(found) < len(whole):
            yield note(f"The last {limit:,}; more: --limit {len(whole)}")
        yield f"See one: {call.command('deadletter show ID')}; send it again: {call.command('deadletter replay ID')}"

    return Answer(data, tell())


def _tell_groups(call: Call, groups: Sequence[LetterGroup]) -> Iterator[Part]:
    for group in groups:
        rows = f"{counted(group.rows, 'row')} of {group.table}"
        yield Text.assemble((f"{group.consumer}: ", "bold"), f"{rows} in {counted(group.letters, 'dead letter')}")
        yield Text(wrap(f"{group.status or ''} {group.reason}".strip(), "  "), "yellow")
        keys = ", ".join(cut(" ".join(map(str, key.values())), 30) for key in group.keys)
        yield f"  keys {keys}{', …' if group.rows > len(group.keys) else ''}"
        last = "" if group.first_at == group.last_at else f" to {moment(group.last_at)}"
        yield note(f"  {moment(group.first_at)}{last} UTC")
    names = " ".join(dict.fromkeys(group.consumer for group in groups))
    yield f"Each with its id:  {call.command('deadletter list --all')}"
    yield f"Send them again:   {call.command(f'deadletter replay --all {names}')}"
    yield f"Give them up:      {call.command(f'deadletter drop --all {names}')}"


def show(
    call: Call, id: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning of its id.")]
) -> Answer:
    """Show a dead letter: why it was refused, its keys, and the rows as they are now."""
    lake = call.lake()
    letter = lake.state.letters.get(id)
    keys = letter.key_table
    try:
        rows, why = lake.rows_of(letter), f"the table {letter.table} was dropped"
    except StrandlineError as error:
        rows, why = None, error.message
    data = {**letter.to_dict(), "keys": keys.to_pylist(), "now": None if rows is None else rows.to_pylist()}

    def tell() -> Iterator[Part]:
        yield from facts(
            (
                ("id", letter.id),
                ("sink", f"{letter.consumer} ({letter.table})"),
                ("since", f"{moment(letter.created_at)} UTC, seq {letter.at[1]:,}, vnode {letter.at[0]}"),
                ("replays", f"{letter.attempts:,} refused as well" if letter.attempts else "none"),
                ("why", f"{_status(letter)} {letter.reason}".lstrip()),
                ("rows", f"{letter.rows:,}"),
            )
        )
        yield ""
        yield from _tell_rows("Keys", keys)
        if rows is None:
            yield f"It cannot be sent again: {why}"
            return
        yield ""
        if rows.num_rows:
            yield from _tell_rows("Rows as they are now", rows)
        if gone := letter.rows - rows.num_rows:
            then = ": a replay sends deletes" if letter.is_by_key else ""
            yield f"{counted(gone, 'row is', 'rows are')} not there any more, or not to be sent{then}."

    return Answer(data, tell())


def replay(call: Call, words: Words = None, is_all: All = False) -> Answer:
    """Send dead letters again: the current row of each key. Letters that arrive are removed.

    When a destination does not answer, the other letters of its sink are not tried. Ends with 1 when some stay."""
    lake = call.lake()
    chosen = _choose(call, lake, words, is_all)
    with progress_bar("Sending again") as progress:
        done = lake.replay(chosen, progress=progress)
    failed = [each for each in done if each.error is not None]

    def tell() -> Iterator[Part]:
        ids = _shorten([letter.id for letter in chosen])
        for each in done:
            if each.error is None:
                yield f"{ids[each.id]}: sent, {counted(each.rows, 'row')}."
        yield from _tell_failed(call, failed, ids)
        if not done:
            yield "There are no dead letters."
        elif failed:
            yield f"{len(done) - len(failed):,} of {len(done):,} arrived; the rest stays."

    return Answer({"replayed": [each.to_dict() for each in done]}, tell(), is_well=not failed)


def _tell_failed(call: Call, failed: Sequence[ReplayReport], ids: Mapping[str, str]) -> Iterator[Part]:
    """Each reason once, with the letters that stay because of it."""
    groups: dict[tuple[str, str, str], list[ReplayReport]] = {}
    for each in failed:
        assert each.error is not None
        groups.setdefault((each.consumer, each.error.kind, each.error.message), []).append(each)
    for (consumer, _, _), (first, *rest) in groups.items():
        assert first.error is not None
        yield from sinks.failure_parts(call, ids[first.id], first.error)
        if rest:
            # A letter that was tried has an error of its own.
            is_tried = any(each.error is not first.error for each in rest)
            more = counted(len(rest), "more letter", "more letters")
            yield f"  {more} of {consumer}: {'the same' if is_tried else 'not tried'}."


def drop(call: Call, words: Words = None, is_all: All = False, yes: Yes = False) -> Answer:
    """Forget dead letters: their rows are not sent, unless they change again. Asks first."""
    lake = call.lake()
    chosen = _choose(call, lake, words, is_all)
    what = f"{counted(len(chosen), 'dead letter')} ({counted(sum(letter.rows for letter in chosen), 'row')})"
    if chosen and not yes:
        by_sink = ", ".join(sorted({letter.consumer for letter in chosen}))
        question = f"Forget {what} of {by_sink}? Their rows are not sent, unless they change again."
        call.confirm(question, "dead letters are dropped", table=chosen[0].table)
    count = lake.state.letters.drop([letter.id for letter in chosen]) if chosen else 0
    data = {"dropped": [letter.id for letter in chosen], "count": count}
    return Answer(data, f"Dropped {what}." if count else "There are no dead letters.")


def _find_letters(call: Call, lake: sl.Lake, sink: str | None) -> list[DeadLetter]:
    """The dead letters of a sink, or of all. A name that no sink has is an error."""
    if sink is not None:
        sinks.choose(call, lake, [sink])
    return lake.state.letters.all(sink, limit=None) if lake.has_state else []


def _choose(call: Call, lake: sl.Lake, words: Sequence[str] | None, is_all: bool) -> list[DeadLetter]:
    """The letters that the arguments name, each once."""
    if not words and not is_all:
        raise typer.BadParameter("name dead letters by their ids, or give --all")
    if is_all:
        chosen = dict.fromkeys(words) if words else [None]
        return [letter for sink in chosen for letter in _find_letters(call, lake, sink)]
    return list({(letter := lake.state.letters.get(word)).id: letter for word in words or ()}.values())


def _shorten(ids: Sequence[str]) -> dict[str, str]:
    """The shortest beginnings of ids that tell them apart."""
    chars = _ID_CHARS
    while len({id[:chars] for id in ids}) < len(set(ids)):
        chars += 1
    return {id: id[:chars] for id in ids}


def _tell_rows(title: str, rows: pa.Table) -> Iterator[Part]:
    shown = [[_cut(str(value)) for value in row.values()] for row in rows.slice(0, _SHOWN).to_pylist()]
    more = f", the first {_SHOWN} of {rows.num_rows:,}" if rows.num_rows > _SHOWN else ""
    yield Text(f"{title}{more}", "bold")
    yield Rows(rows.column_names, shown)


def _status(letter: DeadLetter) -> str:
    return "" if letter.status is None else str(letter.status)


def _cut(text: str) -> str:
    return cut(" ".join(text.split()), 80)


VERBS = {"list": list_, "show": show, "replay": replay, "drop": drop}
