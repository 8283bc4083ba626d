"""Hide and erase rows: `table expire`, `table purge`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import strandline as sl
from strandline.cli.answer import Answer, Part, counted, moment, preview
from strandline.cli.options import DryRun, TableName, Yes
from strandline.cli.progress import progress_bar
from strandline.cli.table.change import describe_cleanup, describe_expiry
from strandline.cli.verb import Call
from strandline.errors import Invalid

if TYPE_CHECKING:
    from strandline.consumers.retention import ExpiryPlan
    from strandline.jobs.purge import PurgeReport
    from strandline.pipeline.status import ConsumerStatus


def expire(
    call: Call,
    name: TableName,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="A time such as 2024-01-31 or 2024-01-31T12:00Z; by default the setting retention decides.",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Hide the rows that are past their time, from a new seq on.

    These are rows older than the setting retention, or with --before older than a given time. It counts them and asks
    first, because hidden rows do not come back."""
    table = call.table(name)
    time = table.definition.time
    _check_expires(call, table, is_given=before is not None)
    given = None if before is None else _parse_time(before)
    plan = table.plan_expiry(given)
    which = f"{describe_expiry(plan)} of {name}, whose {time} lies before {moment(plan.before)} UTC"
    data: dict[str, Any] = {"table": name, "time": time, "before": plan.before}
    if dry_run:
        return preview(f"Would hide {which}.", {**data, **_count(plan)})
    if (plan.rows or given is not None) and not yes:
        call.confirm(f"Hide {which}, for good?", f"rows of {name!r} are hidden for good", table=name)
    seq = table.expire(given)
    if seq is None:
        return Answer({**data, "before": table.hidden_before, "seq": None, "hidden_rows": 0}, _tell_idle(table))
    data |= {"before": table.hidden_before, "seq": seq, "hidden_rows": plan.rows, **_count(plan)}
    done = f"Hid {describe_expiry(plan)} of {name}, whose {time} lies before {moment(plan.before)} UTC"
    return Answer(
        data,
        [f"{done}, from seq {seq} on.", f"Compaction drops them when they are many, {describe_cleanup(call, table)}"],
    )


def _count(plan: ExpiryPlan) -> dict[str, Any]:
    return {"rows": plan.rows, "total": plan.total, "is_exact": plan.is_exact}


def _tell_idle(table: sl.Table) -> str:
    since = table.hidden_before
    if since is None:
        return f"{table.name}: no row is past its time; nothing was written."
    rows = f"rows whose {table.definition.time} lies before {moment(since)} UTC"
    return f"{table.name}: {rows} are hidden already; nothing was written."


def _check_expires(call: Call, table: sl.Table, *, is_given: bool) -> None:
    """Refuse a table without a time column or a retention, as the table would, with the command that helps."""
    name = table.name
    if table.definition.time is None:
        hint = f"Name the column: {call.command(f'table set {name} time=COLUMN')}"
        raise Invalid(f"table {name!r} has no time column, by which rows expire", hint=hint, table=name)
    if table.definition.settings.retention is None and not is_given:
        hint = f"Say how long: {call.command(f'table set {name} retention=90d')}; or before when: --before TIME"
        raise Invalid(f"table {name!r} keeps its rows for ever", hint=hint, table=name)


def _parse_time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"--before is {text!r}; expected a time such as 2024-01-31T12:00Z") from error
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found


def purge(
    call: Call,
    name: TableName,
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="Keys: values, or JSON objects if the key has several columns. Put -- before one that starts with -.",
        ),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Erase rows for good, also from earlier seqs. Their bytes leave the disk with a later vacuum."""
    table = call.table(name)
    wanted = table.parse_keys(keys)
    if dry_run:
        plan = table.plan_purge(wanted)
        found = f"it has {counted(plan.present, 'row')} of them now"
        return preview(f"Would erase {counted(plan.keys, 'key')} from {name}; {found}.", plan)
    if not yes:
        what = f"{counted(wanted.num_rows, 'key')} of {name}"
        question = f"Erase {what} for good? Seqs before this may no longer be readable."
        call.confirm(question, f"rows of {name!r} are erased", table=name)
    with progress_bar(f"Erasing from {name}") as progress:
        report = table.purge(wanted, progress=progress)
    return Answer(report, _tell(call, report))


def _tell(call: Call, report: PurgeReport) -> Iterator[Part]:
    name = report.table
    counts = (
        (report.log_rows, "of the log"),
        (report.baseline_rows, "of the baseline"),
        (report.rejects, "that an ingest refused"),
    )
    places = [f"{counted(count, 'row')} {where}" for count, where in counts if count]
    if places:
        yield f"Erased {counted(report.keys, 'key')} from {name}, seq {report.seq}: {', '.join(places)}."
        later = f"{moment(report.vacuum_after)} UTC: {call.command(f'vacuum {name}')}"
        yield f"The bytes leave the disk with the first vacuum after {later}"
    else:
        which = "that key" if report.keys == 1 else "those keys"
        yield f"Nothing in {name} had {which}; the delete is seq {report.seq}."
    if report.is_delete_kept:
        pins = call.command(f"table pins {name}")
        yield f"A pin holds the past, so the log keeps the delete and its keys until it is trimmed. See: {pins}"
    for sink in call.lake().status().sinks:
        if sink.table == name and not sink.is_retired and sink.generation:
            yield _describe_copy(call, sink)


def _describe_copy(call: Call, sink: ConsumerStatus) -> str:
    """What is left of erased rows where a sink has sent them."""
    if sink.destination.endswith("mirror)"):
        when = "are gone from" if sink.lag.is_none else "leave"
        tick = "" if sink.lag.is_none else f" with the next tick ({call.command(f'tick {sink.name}')})"
        return f"They {when} {sink.destination}{tick}; its replaced files still hold them until that table is vacuumed."
    return f"Sink {sink.name} sends the delete to {sink.destination}; what it sent there before stays."
