"""Make an empty table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.table.schema_text import parse_schema, type_text
from strandline.cli.verb import Call, names, verb


def register(app: typer.Typer) -> None:
    verb(app, "create")(create)


def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new table.")],
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help='Its columns, ! for required: "id:int64, name:string!, at:timestamp"'),
    ],
    key: Annotated[str | None, typer.Option(metavar="A,B", help="Its key; without one it is append-only.")] = None,
    cluster_by: Annotated[str | None, typer.Option(metavar="A,B", help="Columns that repeat together.")] = None,
    vnodes: Annotated[int, typer.Option(metavar="N", help="How many parts it has, a power of two.")] = 16,
    version_column: Annotated[
        str | None, typer.Option(metavar="A", help="An older value here never replaces a newer row.")
    ] = None,
) -> Answer:
    """Make an empty table."""
    columns = parse_schema(schema)
    lake = call.lake()
    table = lake.create_table(
        call.new_name(lake, name),
        columns,
        key=names(key),
        cluster_by=names(cluster_by),
        vnodes=vnodes,
        version=version_column,
    )
    data = {
        "table": name,
        "generation": table.entry.generation,
        "key": table.definition.key,
        "columns": [{"name": f.name, "type": type_text(f.type), "nullable": f.nullable} for f in table.schema],
    }

    def show(out: Console) -> None:
        key_text = ", ".join(table.definition.key) or "none: append-only"
        out.print(f"Made the table {name}, {counted(len(table.schema), 'column')}, key {key_text}.")
        out.print(f"Load files: {call.command(f'ingest {name} FILES')}")

    return Answer(data, show)
