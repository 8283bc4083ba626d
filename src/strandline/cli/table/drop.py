"""Drop a table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.verb import Call, verb
from strandline.errors import Invalid
from strandline.status import BrokenTable


def register(app: typer.Typer) -> None:
    verb(app, "drop")(drop)


def drop(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The table.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> Answer:
    """Drop a table. Its files stay until `strandline doctor --repair` clears them away."""
    lake = call.lake()
    entry = lake.catalog.refresh().get(name)
    if not yes:
        if call.is_json:
            raise Invalid(f"table {name!r} is dropped only with --yes", hint="Add --yes.", table=name)
        found = next(table for table in lake.status().tables if table.name == name)
        holds = "it cannot be read" if isinstance(found, BrokenTable) else counted(found.rows, "row")
        typer.confirm(f"Drop the table {name} ({holds})?", abort=True)
    lake.drop(name)

    def show(out: Console) -> None:
        out.print(f"Dropped {name}. Its files go an hour later with: {call.command('doctor --repair')}")

    return Answer({"table": name, "generation": entry.generation, "dropped": True}, show)
