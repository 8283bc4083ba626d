"""Add, show, pause and remove sinks, which send a table to another place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from strandline.cli import sinks
from strandline.cli.answer import Answer, Part, Rows, counted, facts, fault, preview, warning
from strandline.cli.completion import complete_sinks
from strandline.cli.destination import BACKFILL, make_sink, parse_start
from strandline.cli.options import DryRun, ShowAll, Where, Yes, parse_amount, parse_names, parse_pairs, parse_size
from strandline.cli.verb import Call
from strandline.errors import Invalid, StrandlineError

if TYPE_CHECKING:
    import strandline as sl
    from strandline.pipeline.addition import AddedSink, SinkChange
    from strandline.pipeline.pausing import RemoveReport
    from strandline.sinks.definition import SinkDef, Start
    from strandline.state.rates import Rate

Kind = Literal["http", "parquet", "delta", "iceberg"]
_MODES = {"mirror": "mirror: the rows of the table", "changes": "changes: every change, with _op and _seq"}
SinkName = Annotated[str, typer.Argument(metavar="NAME", help="The sink.", autocompletion=complete_sinks)]


def add(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new sink.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table that it sends.")],
    to: Annotated[
        str,
        typer.Option(metavar="DEST", help="https://…, a folder, s3://bucket/prefix, or an Iceberg table's name."),
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(help="What DEST is. The default: http for the address of a server, else parquet."),
    ] = None,
    mode: Annotated[
        Literal["mirror", "changes"] | None,
        typer.Option(
            help="delta, iceberg: keep DEST equal to the table, or append every change. Default: mirror if possible."
        ),
    ] = None,
    where: Where = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns, and the key.")] = None,
    mask: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=HOW", help="Hide a column: hash, null or redact. Repeatable.")
    ] = None,
    salt: Annotated[str | None, typer.Option(metavar="env:NAME", help="Where to read the salt of the hashes.")] = None,
    deletes: Annotated[bool, typer.Option("--deletes/--no-deletes", help="Whether deletes are sent.")] = True,
    start: Annotated[
        str,
        typer.Option(
            metavar="WHERE", help="backfill: the table first; head: only later changes; a seq: the changes after it."
        ),
    ] = BACKFILL,
    token: Annotated[str | None, typer.Option(metavar="env:NAME", help="http: where to read its token.")] = None,
    receiver: Annotated[
        Literal["strandline", "any"] | None,
        typer.Option(help="http: the kind of server; any supports Idempotency-Key. Default: strandline."),
    ] = None,
    catalog: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="iceberg: a setting of its catalog. Repeatable.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="ROWS", help="Rows a second that it sends at most. Later: strandline backfill rate."),
    ] = None,
    rate_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes a second that it sends at most, such as 10MB.")
    ] = None,
    yes: Yes = False,
) -> Answer:
    """Add a sink, or change one. Every tick of the lake then serves it.

    Asks before it changes one. Options that are not given take their defaults, not their earlier values. With another
    destination, table or mode the sink begins a new generation: it starts again."""
    begin, masks = parse_start(start), parse_pairs(mask or (), "--mask", "email=hash")
    rows_per_s, bytes_per_s = parse_amount(rate, "--rate"), parse_size(rate_bytes, "--rate-bytes")
    lake = call.lake()
    if name in lake.declared:
        raise Invalid(f"sink {name!r} is declared in {call.app}", hint="Change it there.", consumer=name)
    made = lake.sink(
        name,
        table,
        to=make_sink(to, kind=kind, mode=mode, token=token, receiver=receiver, catalog=catalog),
        where=where,
        columns=None if columns is None else parse_names(columns, "--columns"),
        mask=masks,
        salt=salt,
        deletes=deletes,
        start=begin,
    )
    planned = lake.plan_sink(made)
    if planned.is_change and not yes:
        _confirm_change(call, planned)
    limit: Rate | None = None
    if rate is not None or rate_bytes is not None:
        # Before the sink is there: another process may tick at once.
        limit = lake.backfill(name).rate(rows_per_s, bytes_per_s).rate
    done = lake.add_sink(made)
    return Answer(done, _tell(call, done, begin, limit))


def _tell(call: Call, done: AddedSink, start: Start, limit: Rate | None) -> Iterator[Part]:
    """What changed, and what the sink sends first."""
    plan, before, after = done.plan, done.change.before, done.change.after
    name, is_stopped = plan.name, plan.known.rate.is_stopped
    if after.is_new:
        size = "" if is_stopped else f", about {counted(plan.rows, 'row')},"
        whole = f"the table as it is{size} is sent first"
        first = whole if start == BACKFILL else f"it starts at {_describe_start(start)}"
        what = "Added the sink {}" if before is None else f"Sink {{}} starts again as a new generation ({after.why})"
        yield f"{what.format(name)}: {plan.table} → {plan.destination}; {first}."
    else:
        how = _describe_changes(done.change) if after.why else ""
        same = "is unchanged" if limit is None else "is unchanged but for its rate"
        yield f"Sink {name} continues from its mark, with {how}." if how else f"Sink {name} {same}."
    if limit is not None and not is_stopped:
        yield f"It sends {sinks.rate_text(limit)}."
    if is_stopped:
        yield f"Its history is paused; to let it go on: {call.command(f'backfill resume {name}')}"
    for other in done.change.shared_with:
        both = "the rows of both will be there, and a mirror fails when it finds rows that are not its own"
        yield warning(f"Sink {other} goes to {plan.destination} as well: {both}. To send elsewhere: --to")
    if done.has_rows:
        yield f"Send it: {call.command(f'tick {name}')}"


def _describe_changes(change: SinkChange) -> str:
    """What differs between a sink on record and the same sink as it is declared now."""
    assert change.before is not None
    was, now = dict(_list_facts(change.before.definition)), dict(_list_facts(change.after.consumer.definition))
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    return "; ".join(f"{key}: {was.get(key, 'none')} → {now.get(key, 'none')}" for key in keys) or change.after.why


def _confirm_change(call: Call, change: SinkChange) -> None:
    """Ask before an active sink is changed."""
    before, after = change.before, change.after
    assert before is not None
    why = f"It continues from its mark, with {_describe_changes(change)}."
    if after.is_new:
        why = f"{after.why[:1].upper()}{after.why[1:]}: it starts again, and sends nothing more to where it was."
    question = f"There is a sink {before.name}: {before.table} → {before.destination}. {why} Go on?"
    call.confirm(question, f"sink {before.name!r} is changed", table=after.consumer.table)


def _describe_start(start: str | int) -> str:
    return f"what comes after seq {start}" if isinstance(start, int) else "what comes next"


def list_(call: Call, is_all: ShowAll = False) -> Answer:
    """List the sinks."""
    lake = call.lake()
    found = [sink for sink in sinks.find(call, lake) if sink.kind in get_args(Kind)]
    shown = [sink for sink in found if is_all or not sink.is_retired or sink.error]
    rows = [(sink.name, sink.kind, sink.table, sink.destination, sinks.coloured_state(sink)) for sink in shown]
    data = {"lake": lake.storage.uri, "sinks": [sink.to_dict() for sink in found]}

    def tell() -> Iterator[Part]:
        if rows:
            yield Rows(
                ("SINK", "KIND", "TABLE", "DESTINATION", "CONDITION"), rows, cut=("DESTINATION", "TABLE", "SINK")
            )
        elif not found:
            yield sinks.no_sinks(call)
        yield from sinks.tell_hidden(len(found) - len(shown))

    return Answer(data, tell())


def show(call: Call, name: SinkName) -> Answer:
    """Show a sink: what it sends where, how far it is, and its generations."""
    lake = call.lake()
    (found,) = sinks.find(call, lake, [name])
    lives = lake.state.registry.history(name) if lake.has_state else []
    declared = lake.declared.get(name)
    now = next((life for life in lives if life.generation == found.generation), None)
    definition = _describe_declared(lake, declared) if declared is not None else now.definition if now else {}
    data = {**found.to_dict(), "definition": definition, "lives": [life.to_dict() for life in lives]}

    def tell() -> Iterator[Part]:
        yield f"{name}: {found.table} → {found.destination}"
        yield from facts([*_list_facts(definition), *sinks.progress_of(found)])
        if lives:
            yield ""
            state = "retired" if found.is_retired else "now"
            words = ("life", "created_at", "table", "destination")
            rows = [(*map(life.to_dict().get, words), state if life is now else "") for life in lives]
            yield Rows(("GENERATION", "SINCE (UTC)", "TABLE", "DESTINATION", ""), rows)
        if found.error:
            yield fault("failed: ", found.error)

    return Answer(data, tell())


def pause(call: Call, name: SinkName) -> Answer:
    """Pause a sink: no tick serves it until it is resumed. The log is kept for it, so the lake grows meanwhile."""
    lake = call.lake()
    sinks.choose(call, lake, [name])
    done = lake.pause_sink(name)

    def tell() -> Iterator[Part]:
        yield f"Sink {name} is paused{'' if done.is_changed else ' already'}."
        if done.is_working:
            yield "A runner works on it now: it finishes the batch under way."
        if done.holds_log:
            yield "The log is kept for it: a vacuum deletes no change that it has not sent."
        else:
            yield "It has not run yet, so the log is not kept for it."
        yield f"To let it go on: {call.command(f'sink resume {name}')}"

    return Answer(asdict(done), tell())


def resume(call: Call, name: SinkName) -> Answer:
    """Let a paused sink continue from its mark."""
    lake = call.lake()
    sinks.choose(call, lake, [name])
    done = lake.resume_sink(name)
    said = f"Sink {name} goes on with the next tick: {call.command(f'tick {name}')}"
    return Answer(asdict(done), said if done.is_changed else f"Sink {name} was not paused.")


def remove(call: Call, name: SinkName, yes: Yes = False, dry_run: DryRun = False) -> Answer:
    """Remove a sink, and forget its marks and dead letters. Asks first.

    Rows that it has sent stay there. To keep its marks and dead letters, retire it: strandline mark retire."""
    lake = call.lake()
    sinks.choose(call, lake, [name])
    planned = lake.remove_sink(name, dry_run=True)
    will = _describe_removal(planned)
    if dry_run:
        return preview(will, planned)
    if not yes:
        call.confirm(f"{will} Go on?", f"sink {name!r} is removed", table=planned.table)
    done = lake.remove_sink(name)
    return Answer(done, f"Sink {name} is removed. What it sent to {done.destination} stays there.")


def _describe_removal(planned: RemoveReport) -> str:
    lag, gone = planned.lag, ["its marks"]
    rest = "Everything was sent"
    if not lag.is_none:
        rest = f"What was not sent, {counted(lag.commits, 'commit')} ({counted(lag.rows, 'row')}), never will be"
    gone += [f"{counted(planned.intents, 'unfinished batch', 'unfinished batches')}"] if planned.intents else []
    gone += [counted(planned.letters, "dead letter")] if planned.letters else []
    forgets = f"{', '.join(gone)} are forgotten, and the log is no longer kept for it"
    again = "A program that declares it would start it from the beginning."
    return f"Sink {planned.name!r} ({planned.table} → {planned.destination}) ends. {rest}; {forgets}. {again}"


def _describe_declared(lake: sl.Lake, declared: SinkDef) -> Mapping[str, Any]:
    """The definition of a declared sink, with the mode that it has or will have."""
    try:
        return lake.plan_sink(declared).after.consumer.definition
    except StrandlineError:
        return declared.to_dict()


def _list_facts(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A sink's definition, without secrets, for people; nothing for other consumers."""
    if "to" not in definition:
        return []
    to = {key: value for key, value in definition["to"].items() if key not in ("kind", "uri", "url", "mode") and value}
    # A definition from before there were mirrors has no mode.
    mode = definition["to"].get("mode") or "changes"
    start = definition["start"]
    return [
        ("kind", definition["to"]["kind"]),
        *([("mode", _MODES[mode])] if definition["to"]["kind"] in ("delta", "iceberg") else []),
        *(
            (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for key, value in to.items()
        ),
        ("where", definition["where"] or "all rows"),
        ("columns", ", ".join(definition["columns"]) if definition["columns"] else "all"),
        ("mask", ", ".join(f"{key}={how}" for key, how in definition["mask"].items()) or "none"),
        *([("salt", definition["salt"])] if definition["salt"] else []),
        ("deletes", "sent" if definition["deletes"] else "not sent"),
        ("start", "with the table as it is" if start == BACKFILL else f"with {_describe_start(start)}"),
    ]


VERBS = {"add": add, "list": list_, "show": show, "pause": pause, "resume": resume, "remove": remove}
