"""Take a column out of a table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from strandline.cli.answer import Answer
from strandline.cli.options import DryRun, TableName, Yes, would
from strandline.cli.verb import Call, verb
from strandline.pipeline.resolve import sinks_needing


def register(app: typer.Typer) -> None:
    verb(app, "drop-column")(drop_column)


def drop_column(
    call: Call,
    name: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column.")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Answer:
    """Take a column out of a table, for good.

    Its values can no longer be read at any seq, and its name is not used again."""
    lake = call.lake()
    table = lake.table(name)
    rest = table.definition.without(column).schema.names
    silenced = sinks_needing(lake, table, column)
    then = f" The conditions of these sinks need it, and let nothing leave then: {', '.join(silenced)}."
    if dry_run:
        keeps = f"drop the column {column} of {name}; it keeps {', '.join(rest)}"
        return would(f"{keeps}.{then.rstrip('.')}" if silenced else keeps, table=name, columns=rest, sinks=silenced)
    if not yes:
        question = f"Drop the column {column} of {name} for good?{then if silenced else ''}"
        call.confirm(question, f"column {column!r} of {name!r} is dropped", table=name)
    left = table.drop_column(column).names

    def show(out: Console) -> None:
        out.print(f"Dropped the column {column} of {name}; it keeps {', '.join(left)}.", soft_wrap=True)
        if silenced:
            out.print(Text(then.strip(), "yellow"), soft_wrap=True)
        settings = table.definition.settings.shown()
        out.print(
            f"Its values go as files are rewritten, at once with: {call.command(f'compact {name} --all')}\n"
            f"Vacuum deletes the old files after keep ({settings['keep']}) and grace ({settings['grace']}).",
            soft_wrap=True,
        )

    return Answer({"table": name, "dropped": column, "columns": left, "sinks": silenced}, show)
