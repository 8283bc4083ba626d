"""Add sinks and look at them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli import sinks
from strandline.cli.answer import Answer, counted, moment, show_rows
from strandline.cli.destination import destination, pairs, start_of
from strandline.cli.options import Yes, names
from strandline.cli.verb import Call, verb
from strandline.consumers.plan import ConsumerPlan
from strandline.consumers.registration import facts_of
from strandline.consumers.sink import SinkConsumer
from strandline.consumers.work import NOTHING
from strandline.errors import Invalid
from strandline.lake import Lake
from strandline.pipeline import commands
from strandline.pipeline.plan import marked_plans
from strandline.pipeline.resolve import active_sinks
from strandline.sinks.definition import BACKFILL, KINDS, SinkDef, Start
from strandline.state.consumers import ConsumerRecord, Registered, checked_name, preview
from strandline.state.intents import Intent

SinkName = Annotated[str, typer.Argument(metavar="NAME", help="The sink.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="sink", help="Add sinks, which send a table's changes, and look at them.")
    verb(group, "add")(add)
    verb(group, "list")(list_)
    verb(group, "show")(show)
    app.add_typer(group, no_args_is_help=True)


def add(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new sink.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table whose changes it sends.")],
    to: Annotated[
        str,
        typer.Option(metavar="DEST", help="https://…, a folder, s3://bucket/prefix, or an Iceberg table's name."),
    ],
    kind: Annotated[
        Literal["http", "parquet", "delta", "iceberg"] | None,
        typer.Option(help="What DEST is; else http for an address of a server, parquet for all others."),
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that fulfil this condition.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns, and the key.")] = None,
    mask: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=HOW", help="Hide a column: hash, null or redact. Repeatable.")
    ] = None,
    salt: Annotated[str | None, typer.Option(metavar="env:NAME", help="Where the salt of hashes is kept.")] = None,
    deletes: Annotated[bool, typer.Option("--deletes/--no-deletes", help="Whether deletes are sent.")] = True,
    start: Annotated[
        str, typer.Option(metavar="WHERE", help="backfill: the table first; head: only what comes; or after a seq.")
    ] = BACKFILL,
    token: Annotated[str | None, typer.Option(metavar="env:NAME", help="http: where its token is kept.")] = None,
    receiver: Annotated[
        Literal["strandline", "any"] | None, typer.Option(help="http: what is at the other end; else strandline.")
    ] = None,
    catalog: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="iceberg: a setting of its catalog. Repeatable.")
    ] = None,
    yes: Yes = False,
) -> Answer:
    """Add a sink, which every tick of the lake then serves, or change one.

    To change one asks first. What is given is all that counts; another destination or table is a new life, which starts
    again."""
    _check_name(name)
    begin, masks = start_of(start), pairs(mask or (), "--mask", "email=hash")
    lake = call.lake()
    if name in lake.declared:
        raise Invalid(f"sink {name!r} is declared in {call.app}", hint="Change it there.", consumer=name)
    made = lake.sink(
        name,
        table,
        to=destination(to, kind=kind, token=token, receiver=receiver, catalog=catalog),
        where=where,
        columns=None if columns is None else names(columns),
        mask=masks,
        salt=salt,
        deletes=deletes,
        start=begin,
    )
    if isinstance(begin, int) and begin > (head := lake.table(table).head):
        raise Invalid(
            f"sink {name!r} is to start after seq {begin}, but table {table!r} is at {head}",
            hint="Start it at head, or at a seq that the table has.",
            consumer=name,
            seq=begin,
        )
    found = lake.known(name)
    if found.consumer is not None and not found.consumer.is_retired and not yes:
        _ask(call, lake, made, found.consumer, found.intents)
    done = commands.add(lake, made)
    [plan] = marked_plans(lake, [name])
    shared = _others(lake, made)
    data = {**_data(done.consumer), "is_new": done.is_new, "why": done.why, "rows": plan.rows, "shared_with": shared}

    def render(out: Console) -> None:
        out.print(_said(done, found.consumer, plan, begin), soft_wrap=True)
        for other in shared:
            note = f"Sink {other} goes to {made.to.destination} as well: the rows of both will be there."
            out.print(Text(note, "yellow"), soft_wrap=True)
        if plan.works and not all(work.source == NOTHING for work in plan.works):
            out.print(f"Send it: {call.command(f'tick {name}')}", soft_wrap=True)

    return Answer(data, render)


def _check_name(name: str) -> None:
    try:
        checked_name(name)
    except Invalid as error:
        raise Invalid(f"a sink cannot have the name {name!r}", hint=error.hint, consumer=name) from error


def _others(lake: Lake, made: SinkDef) -> list[str]:
    """The other sinks that live and go to the same place."""
    there = made.to.destination
    return [name for name, sink in active_sinks(lake).items() if name != made.name and sink.to.destination == there]


def _said(done: Registered, before: ConsumerRecord | None, plan: ConsumerPlan, start: Start) -> str:
    """What became of a sink, and what it sends first."""
    name = plan.name
    if not done.is_new:
        how = _changes(before, done) if done.why and before is not None else ""
        return f"Sink {name} goes on from where it is, with {how}." if how else f"Sink {name} is as it was."
    whole = f"the table as it is, about {counted(plan.rows, 'row')}, is sent first"
    first = whole if start == BACKFILL else f"it starts at {_beginning(start)}"
    way = f"{plan.table} → {plan.destination}; {first}."
    if before is None:
        return f"Added the sink {name}: {way}"
    return f"Sink {name} starts again as a new life ({done.why}): {way}"


def _changes(found: ConsumerRecord, would: Registered) -> str:
    """What differs between a sink on record and the same sink as it is declared now."""
    was, now = dict(_facts(found.definition)), dict(_facts(would.consumer.definition))
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    return "; ".join(f"{key}: {was.get(key, 'none')} → {now.get(key, 'none')}" for key in keys) or would.why


def _ask(call: Call, lake: Lake, made: SinkDef, found: ConsumerRecord, under_way: Sequence[Intent]) -> None:
    """Before a sink that lives becomes another one, or sends something else."""
    facts = facts_of(SinkConsumer(made), lake.table(made.table), found)
    would = preview(made.name, **facts, found=found, under_way=under_way, revive=True)
    if would.is_new:
        why = f"{would.why[:1].upper()}{would.why[1:]}: it starts again, and sends nothing more to where it was."
    elif would.why:
        why = f"It goes on from where it is, with {_changes(found, would)}."
    else:
        return
    question = f"There is a sink {made.name}: {found.table} → {found.destination}. {why} Go on?"
    call.confirm(question, f"sink {made.name!r} is changed", table=made.table)


def _beginning(start: str | int) -> str:
    return f"what comes after seq {start}" if isinstance(start, int) else "what comes next"


def list_(call: Call) -> Answer:
    """List the sinks."""
    lake = call.lake()
    found = [sink for sink in sinks.all_of(call, lake) if sink.kind in KINDS]

    def render(out: Console) -> None:
        if not found:
            out.print(f"There are no sinks. Add one: {sinks.adding(call)}")
            return
        rows = [(sink.name, sink.kind, sink.table, sink.destination, sinks.state_text(sink)) for sink in found]
        show_rows(out, ("SINK", "KIND", "TABLE", "DESTINATION", "STATE"), rows)

    return Answer({"lake": lake.storage.uri, "sinks": [sink.to_dict() for sink in found]}, render)


def show(call: Call, name: SinkName) -> Answer:
    """Show a sink: what it sends where, how far it is, and its lives."""
    lake = call.lake()
    (found,) = sinks.all_of(call, lake, [name])
    lives = lake.state.registry.history(name) if lake.has_state else []
    declared = lake.declared.get(name)
    now = next((life for life in lives if life.generation == found.generation), None)
    definition = declared.to_dict() if declared is not None else now.definition if now is not None else {}
    data = {**found.to_dict(), "definition": definition, "lives": [_data(life) for life in lives]}

    def render(out: Console) -> None:
        out.print(f"{name}: {found.table} → {found.destination}", soft_wrap=True)
        for word, fact in (*_facts(definition), *sinks.facts(found)):
            out.print(f"{word:16}{fact}", soft_wrap=True)
        if lives:
            out.print()
            rows = [_life(life, is_now=life is now) for life in lives]
            show_rows(out, ("LIFE", "SINCE (UTC)", "TABLE", "DESTINATION", ""), rows, numbers=("LIFE",))
        if found.error:
            out.print(Text.assemble(("failed: ", "bold red"), found.error), soft_wrap=True)

    return Answer(data, render)


def _facts(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A definition for people; it holds no secrets."""
    to = {key: value for key, value in definition["to"].items() if key not in ("kind", "uri", "url") and value}
    start = definition["start"]
    return [
        ("kind", definition["to"]["kind"]),
        *(
            (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for key, value in to.items()
        ),
        ("where", definition["where"] or "all rows"),
        ("columns", ", ".join(definition["columns"]) if definition["columns"] else "all"),
        ("mask", ", ".join(f"{key}={how}" for key, how in definition["mask"].items()) or "none"),
        *([("salt", definition["salt"])] if definition["salt"] else []),
        ("deletes", "sent" if definition["deletes"] else "not sent"),
        ("start", "with the table as it is" if start == BACKFILL else f"with {_beginning(start)}"),
    ]


def _life(life: ConsumerRecord, *, is_now: bool) -> tuple[str, ...]:
    since = moment(dt.datetime.fromtimestamp(life.created_s, dt.UTC))
    now = "" if not is_now else "retired" if life.is_retired else "now"
    return str(life.life), since, life.table, life.destination, now


def _data(life: ConsumerRecord) -> dict[str, Any]:
    since = dt.datetime.fromtimestamp(life.created_s, dt.UTC)
    return {**{key: value for key, value in vars(life).items() if key != "created_s"}, "created_at": since}
