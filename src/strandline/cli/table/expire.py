"""Hide the rows of a table that are past their time."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, moment
from strandline.cli.options import DryRun, TableName, Yes, would
from strandline.cli.verb import Call, verb
from strandline.errors import Invalid
from strandline.table import Table
from strandline.tables.horizon import horizon_at
from strandline.tables.horizon import moment as moment_of


def register(app: typer.Typer) -> None:
    verb(app, "expire")(expire)


def expire(
    call: Call,
    name: TableName,
    before: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Before when, such as 2024-01-31 or 2024-01-31T12:00Z; else by retention."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Hide the rows that are past their time, from a new seq on.

    Their time lies further back than the setting retention says, or before a given time; the latter asks first,
    because what is hidden does not come back."""
    table = call.lake().table(name)
    _check(call, table, is_given=before is not None)
    given = None if before is None else _parsed(before)
    if dry_run:
        plan = table.plan_expiry(given)
        which = f"rows whose {table.definition.time} lies before {moment(plan.before)} UTC"
        return would(f"hide {which}, about {counted(plan.rows, 'row')}", table=name, before=plan.before, rows=plan.rows)
    if given is not None and not yes:
        question = f"Hide every row of {name} whose {table.definition.time} lies before {moment(given)} UTC, for good?"
        call.confirm(question, f"rows of {name!r} expire before a given time", table=name)
    seq = table.expire(given)
    state = table.log.refresh()
    horizon = horizon_at(state.snapshot.txns, state.head)
    assert horizon is not None
    since = moment_of(horizon).replace(tzinfo=dt.UTC)
    data = {"table": name, "time": table.definition.time, "before": since, "seq": seq}

    def show(out: Console) -> None:
        rows = f"rows whose {table.definition.time} lies before {moment(since)} UTC"
        if seq is None:
            out.print(f"{name}: {rows} are hidden already; nothing was written.", soft_wrap=True)
            return
        out.print(f"{name}: {rows} are hidden from seq {seq} on.", soft_wrap=True)
        settings = table.definition.settings.shown()
        out.print(
            f"Compaction drops them when they are many, at once with: {call.command(f'compact {name} --all')}\n"
            f"Vacuum deletes the old files after keep ({settings['keep']}) and grace ({settings['grace']}).",
            soft_wrap=True,
        )

    return Answer(data, show)


def _check(call: Call, table: Table, *, is_given: bool) -> None:
    """What the table itself would refuse, with the command that helps."""
    name = table.name
    if table.definition.time is None:
        hint = f"Name the column: {call.command(f'table set {name} time=COLUMN')}"
        raise Invalid(f"table {name!r} has no time column, by which rows expire", hint=hint, table=name)
    if table.definition.settings.retention is None and not is_given:
        hint = f"Say how long: {call.command(f'table set {name} retention=90d')}; or before when: --before TIME"
        raise Invalid(f"table {name!r} keeps its rows for ever", hint=hint, table=name)


def _parsed(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--before is {text!r}; expected a time such as 2024-01-31T12:00Z") from error
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
