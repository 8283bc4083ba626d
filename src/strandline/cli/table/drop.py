"""Drop a table."""

from __future__ import annotations

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.options import TableName, Yes
from strandline.cli.verb import Call, verb
from strandline.tables.broken import BrokenTable


def register(app: typer.Typer) -> None:
    verb(app, "drop")(drop)


def drop(
    call: Call,
    name: TableName,
    yes: Yes = False,
) -> Answer:
    """Drop a table. Its files stay for an hour, until a vacuum."""
    lake = call.lake()
    entry = lake.catalog.refresh().get(name)
    if not yes:
        found = next(table for table in lake.status().tables if table.name == name)
        holds = "it cannot be read" if isinstance(found, BrokenTable) else counted(found.rows, "row")
        call.confirm(f"Drop the table {name} ({holds})?", f"table {name!r} is dropped", table=name)
    lake.drop(name)

    def show(out: Console) -> None:
        out.print(f"Dropped {name}. Its files go with a vacuum an hour or more from now: {call.command('vacuum')}")

    return Answer({"table": name, "generation": entry.generation, "dropped": True}, show)
