"""Erase rows for good."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted, moment
from strandline.cli.options import DryRun, TableName, Yes, would
from strandline.cli.progress import progress_bar
from strandline.cli.table.key_text import parse_keys
from strandline.cli.verb import Call, verb
from strandline.errors import Invalid
from strandline.jobs.purge import PurgeReport
from strandline.storage.delta import RESTED_S


def register(app: typer.Typer) -> None:
    verb(app, "purge")(purge)


def purge(
    call: Call,
    name: TableName,
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="Keys: values, or JSON objects if the key has several columns; after -- one may start with -.",
        ),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Erase rows for good, also from the past. Their bytes leave the disk with a later vacuum."""
    table = call.lake().table(name)
    if not table.definition.is_keyed:
        raise Invalid(f"table {name!r} has no key: single rows of it cannot be named", table=name)
    wanted = parse_keys(keys, table.definition)
    if dry_run:
        plan = table.plan_purge(wanted)
        what = f"erase {counted(plan.keys, 'key')} from {name}; it has {counted(plan.present, 'row')} of them now"
        return would(what, table=name, keys=plan.keys, present=plan.present)
    if not yes:
        what = f"{counted(wanted.num_rows, 'key')} of {name}"
        question = f"Erase {what} for good? States before this may no longer be readable."
        call.confirm(question, f"rows of {name!r} are erased", table=name)
    with progress_bar(f"Erasing from {name}") as progress:
        report = table.purge(wanted, progress=progress)
    grace_s = table.definition.settings.grace
    free_at = dt.datetime.fromtimestamp(table.log.storage.now_s() + max(grace_s, RESTED_S), dt.UTC)
    data = {**report.to_dict(), "vacuum_after": free_at}
    return Answer(data, lambda out: _show(out, call, report, free_at))


def _show(out: Console, call: Call, report: PurgeReport, free_at: dt.datetime) -> None:
    name = report.table
    places = [
        f"{counted(count, 'row')} {where}"
        for count, where in (
            (report.log_rows, "of the log"),
            (report.baseline_rows, "of the baseline"),
            (report.rejects, "that an ingest refused"),
        )
        if count
    ]
    if places:
        out.print(
            f"Erased {counted(report.keys, 'key')} from {name}, seq {report.seq}: {', '.join(places)}.", soft_wrap=True
        )
        later = f"the first vacuum after {moment(free_at)} UTC: {call.command(f'vacuum {name}')}"
        out.print(f"The bytes leave the disk with {later}", soft_wrap=True)
    else:
        which = "that key" if report.keys == 1 else "those keys"
        out.print(f"Nothing in {name} had {which}; the delete is seq {report.seq}.")
    if report.is_delete_kept:
        pins = call.command(f"table pins {name}")
        out.print(
            f"A pin holds the past, so the log keeps the delete and its keys until it is trimmed. See: {pins}",
            soft_wrap=True,
        )
