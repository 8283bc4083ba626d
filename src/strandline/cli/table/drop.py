"""Drop tables, and bring them back: `table drop`, `table undrop`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.answer import Answer, Part, Rows, counted, moment, warning
from strandline.cli.options import TableName, Yes
from strandline.cli.verb import Call

if TYPE_CHECKING:
    from strandline.jobs.dropped import DroppedTable, DropReport


def drop(call: Call, name: TableName, yes: Yes = False) -> Answer:
    """Drop a table. `table undrop` brings it back until a vacuum deletes its files, an hour or more later."""
    lake = call.lake()
    plan = lake.drop(name, dry_run=True)
    if not yes:
        sinks = f" Its sinks will send nothing more: {', '.join(plan.sinks)}." if plan.sinks else ""
        call.confirm(f"Drop the table {name} ({_describe(plan)})?{sinks}", f"table {name!r} is dropped", table=name)
    report = lake.drop(name)
    return Answer({**report.to_dict(), "dropped": True}, _tell_drop(call, report))


def _describe(plan: DropReport) -> str:
    if plan.rows is None:
        return "it cannot be read"
    return f"{'' if plan.is_exact else 'at most '}{counted(plan.rows, 'row')}"


def _tell_drop(call: Call, report: DropReport) -> Iterator[Part]:
    name = report.table
    yield f"Dropped {name} ({_describe(report)})."
    if report.sinks:
        yield warning(f"These sinks send nothing more: {', '.join(report.sinks)}")
    yield f"Bring it back: {call.command(f'table undrop {name}')}"
    if report.until is not None:
        yield f"Its files go with the first vacuum after {moment(report.until)} UTC: {call.command('vacuum')}"


def undrop(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The dropped table; without a name, list them.")
    ] = None,
    as_: Annotated[str | None, typer.Option("--as", metavar="NEW", help="Bring it back under this name.")] = None,
    generation: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Which of several dropped tables of that name; by default the last dropped one."
        ),
    ] = None,
) -> Answer:
    """Bring a dropped table back, with its rows, history and sinks, while its files are there.

    Without a name, list the tables that can be brought back."""
    lake = call.lake()
    if name is None:
        if as_ or generation:
            raise typer.BadParameter("--as and --generation go with the name of a table")
        found = lake.dropped()
        return Answer({"dropped": [table.to_dict() for table in found]}, _tell_dropped(call, found))
    table = lake.undrop(name, to=as_, generation=generation)
    plan = lake.drop(table.name, dry_run=True)
    data = {**plan.to_dict(), "was": name}
    done = f"{name} is back{'' if table.name == name else f' as {table.name}'}: {_describe(plan)}, seq {table.head}."
    sinks = [f"Its sinks go on with the next tick: {', '.join(plan.sinks)}"] if plan.sinks else []
    return Answer(data, [done, *sinks])


def _tell_dropped(call: Call, found: list[DroppedTable]) -> Iterator[Part]:
    if not found:
        yield "No dropped table can be brought back."
        return
    rows = [
        (each.table, each.at, f"{'' if each.is_exact else '≤ '}{each.rows:,}", each.until, each.generation)
        for each in found
    ]
    yield Rows(("TABLE", "DROPPED (UTC)", "ROWS", "FILES STAY UNTIL", "GENERATION"), rows, numbers=("ROWS",))
    yield f"Bring one back: {call.command(f'table undrop {found[0].table}')}"
