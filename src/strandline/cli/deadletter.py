"""Look at what destinations refused for good, send it again, or forget it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted, moment, show_rows
from strandline.cli.options import Yes
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.errors import StrandlineError
from strandline.lake import Lake
from strandline.model.change import SEQ
from strandline.pipeline import redelivery
from strandline.pipeline.redelivery import ReplayReport
from strandline.state.letters import DeadLetter, DeadLetters

_REASON_CHARS = 80
_ID_CHARS = 8
_SHOWN = 20

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Dead letters, by as much of their ids as tells them apart; with --all sinks."),
]
All = Annotated[bool, typer.Option("--all", help="All of them, or those of the sinks that are named instead of ids.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="deadletter", help="See rows that a destination refused, send them again or drop them.")
    verb(group, "list")(list_)
    verb(group, "show")(show)
    verb(group, "replay")(replay)
    verb(group, "drop")(drop)
    app.add_typer(group, no_args_is_help=True)


def list_(
    call: Call,
    sink: Annotated[str | None, typer.Argument(metavar="SINK", help="The sink; all of them without a name.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="List the last N of them.")] = 100,
) -> Answer:
    """List the dead letters, the newest first."""
    lake = call.lake()
    letters = _letters(call, lake, sink)
    found = [] if letters is None else letters.all(sink, limit)
    whole = 0 if letters is None else _count(letters)

    def render(out: Console) -> None:
        if not found:
            out.print("There are no dead letters." if sink is None else f"Sink {sink} has no dead letters.")
            return
        ids = _short([letter.id for letter in found])
        rows = [
            (
                ids[letter.id],
                letter.consumer,
                letter.table,
                f"{letter.rows:,}",
                "" if letter.status is None else str(letter.status),
                f"{letter.attempts:,}",
                moment(_created(letter)),
                _cut(letter.reason),
            )
            for letter in found
        ]
        columns = ("ID", "SINK", "TABLE", "ROWS", "STATUS", "REPLAYS", "SINCE (UTC)", "WHY")
        show_rows(out, columns, rows, numbers=("ROWS", "STATUS", "REPLAYS"))
        if len(found) == limit and whole > limit:
            out.print(Text(f"The last {limit:,}; more: --limit {whole}", "dim"))
        out.print(
            f"See one: {call.command('deadletter show ID')}; send it again: {call.command('deadletter replay ID')}"
        )

    return Answer({"lake": lake.storage.uri, "deadletters": [_data(letter) for letter in found]}, render)


def show(call: Call, id: Annotated[str, typer.Argument(metavar="ID", help="The beginning of its id.")]) -> Answer:
    """Show a dead letter: why it was refused, its keys, and the rows as they are now."""
    lake = call.lake()
    letter = lake.state.letters.get(id)
    keys = letter.key_table
    rows, fault = _now(lake, letter)
    data = {**_data(letter), "keys": keys.to_pylist(), "now": None if rows is None else rows.to_pylist()}

    def render(out: Console) -> None:
        status = "" if letter.status is None else f"{letter.status} "
        for word, fact in (
            ("id", letter.id),
            ("sink", f"{letter.consumer} ({letter.table})"),
            ("since", f"{moment(_created(letter))} UTC, seq {letter.at[1]:,}, vnode {letter.at[0]}"),
            ("replays", f"{letter.attempts:,} refused as well" if letter.attempts else "none"),
            ("why", f"{status}{letter.reason}"),
            ("rows", f"{letter.rows:,}"),
        ):
            out.print(f"{word:16}{fact}", soft_wrap=True)
        out.print()
        _show_rows(out, "Keys", keys)
        if rows is None:
            out.print(f"It cannot be sent again: {fault}", soft_wrap=True)
            return
        out.print()
        if rows.num_rows:
            _show_rows(out, "Rows as they are now", rows)
        if gone := letter.rows - rows.num_rows:
            then = "" if SEQ in keys.column_names else ": a replay sends deletes"
            out.print(f"{counted(gone, 'row is', 'rows are')} not there any more, or not to be sent{then}.")

    return Answer(data, render)


def replay(call: Call, words: Words = None, is_all: All = False) -> Answer:
    """Send dead letters again: for each key what it is now. What arrives is a dead letter no more.

    When a sink's destination does not answer, its other letters are not tried. Ends with 1 when some stay."""
    lake = call.lake()
    chosen = _chosen(call, lake, words, is_all)
    with progress_bar("Sending again") as progress:
        done = redelivery.replay(lake, [letter.id for letter in chosen], progress=progress) if chosen else []
    failed = [each for each in done if each.error is not None]

    def render(out: Console) -> None:
        ids = _short([letter.id for letter in chosen])
        for each in done:
            if each.error is None:
                out.print(f"{ids[each.id]}: sent, {counted(each.rows, 'row')}.")
        _show_failed(out, call, failed, ids)
        if not done:
            out.print("There are no dead letters.")
        elif failed:
            out.print(f"{len(done) - len(failed):,} of {len(done):,} arrived; the rest stays.")

    return Answer({"replayed": [each.to_dict() for each in done]}, render, 1 if failed else 0)


def _show_failed(out: Console, call: Call, failed: Sequence[ReplayReport], ids: Mapping[str, str]) -> None:
    """Each reason once, with the letters that stay because of it."""
    groups: dict[tuple[str, str, str], list[ReplayReport]] = {}
    for each in failed:
        assert each.error is not None
        groups.setdefault((each.consumer, each.error.kind, each.error.message), []).append(each)
    for (consumer, _, _), (first, *rest) in groups.items():
        assert first.error is not None
        sinks.show_failure(out, call, ids[first.id], first.error)
        if rest:
            # Who was tried has an error of its own.
            is_tried = any(each.error is not first.error for each in rest)
            more = counted(len(rest), "more letter", "more letters")
            out.print(f"  {more} of {consumer}: {'the same' if is_tried else 'not tried'}.", soft_wrap=True)


def drop(call: Call, words: Words = None, is_all: All = False, yes: Yes = False) -> Answer:
    """Forget dead letters: their rows are not sent, unless they change again. Asks first."""
    lake = call.lake()
    chosen = _chosen(call, lake, words, is_all)
    rows = sum(letter.rows for letter in chosen)
    what = f"{counted(len(chosen), 'dead letter')} ({counted(rows, 'row')})"
    if chosen and not yes:
        by_sink = ", ".join(sorted({letter.consumer for letter in chosen}))
        question = f"Forget {what} of {by_sink}? Their rows are not sent, unless they change again."
        call.confirm(question, "dead letters are dropped", table=chosen[0].table)
    count = lake.state.letters.drop([letter.id for letter in chosen]) if chosen else 0

    def render(out: Console) -> None:
        out.print(f"Dropped {what}." if count else "There are no dead letters.")

    return Answer({"dropped": [letter.id for letter in chosen], "count": count}, render)


def _now(lake: Lake, letter: DeadLetter) -> tuple[pa.Table | None, str]:
    """The rows of a letter as they are now, or why there are none to send."""
    try:
        rows = redelivery.rows_of(lake, letter)
        return rows, "" if rows is not None else f"the table {letter.table} was dropped"
    except StrandlineError as error:
        return None, error.message


def _letters(call: Call, lake: Lake, sink: str | None) -> DeadLetters | None:
    """The lake's dead letters; None when it never had a state. A name that no sink has is an error."""
    if sink is not None:
        sinks.named(call, lake, [sink])
    return lake.state.letters if lake.has_state else None


def _chosen(call: Call, lake: Lake, words: Sequence[str] | None, is_all: bool) -> list[DeadLetter]:
    """The letters that a call means, each once."""
    if not words and not is_all:
        raise typer.BadParameter("name dead letters by their ids, or give --all")
    if not is_all:
        return list({(letter := lake.state.letters.get(word)).id: letter for word in words or ()}.values())
    found: list[DeadLetter] = []
    for sink in dict.fromkeys(words) if words else [None]:
        letters = _letters(call, lake, sink)
        found += [] if letters is None else letters.all(sink, _count(letters))
    return found


def _count(letters: DeadLetters) -> int:
    return sum(letters.counts().values())


def _short(ids: Sequence[str]) -> dict[str, str]:
    """Each id by as much of its beginning as tells it from the others."""
    chars = _ID_CHARS
    while len({id[:chars] for id in ids}) < len(set(ids)):
        chars += 1
    return {id: id[:chars] for id in ids}


def _show_rows(out: Console, title: str, rows: pa.Table) -> None:
    shown = [[_cut(str(value)) for value in row.values()] for row in rows.slice(0, _SHOWN).to_pylist()]
    more = f", the first {_SHOWN} of {rows.num_rows:,}" if rows.num_rows > _SHOWN else ""
    out.print(Text(f"{title}{more}", "bold"))
    show_rows(out, rows.column_names, shown)


def _data(letter: DeadLetter) -> dict[str, Any]:
    facts = {name: value for name, value in vars(letter).items() if name not in ("keys", "created_s")}
    return {**facts, "created_at": _created(letter)}


def _created(letter: DeadLetter) -> dt.datetime:
    return dt.datetime.fromtimestamp(letter.created_s, dt.UTC)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARS else line[: _REASON_CHARS - 1] + "…"
