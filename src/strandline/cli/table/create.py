"""Make an empty table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.options import VNODES, ClusterBy, Key, VersionColumn, Vnodes, names, settings
from strandline.cli.table.schema_text import parse_schema, type_text
from strandline.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    verb(app, "create")(create)


def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new table.")],
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help='Its columns, ! for required: "id:int64, name:string!, at:timestamp"'),
    ],
    key: Key = None,
    cluster_by: ClusterBy = None,
    vnodes: Vnodes = None,
    version_column: VersionColumn = None,
    time: Annotated[
        str | None, typer.Option(metavar="A", help="The date or timestamp column that rows expire by.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="A setting, such as keep=7d; may be given several times."),
    ] = None,
) -> Answer:
    """Make an empty table."""
    columns = parse_schema(schema)
    care = settings([*([] if time is None else [f"time={time}"]), *(set_ or ())])
    lake = call.lake()
    table = lake.create_table(
        call.new_name(lake, name),
        columns,
        key=names(key),
        cluster_by=names(cluster_by),
        vnodes=vnodes or VNODES,
        version=version_column,
        time=care.pop("time", None),
        **care,
    )
    data = {
        "table": name,
        "generation": table.entry.generation,
        "key": table.definition.key,
        "time": table.definition.time,
        "settings": table.definition.settings.to_dict(),
        "columns": [{"name": f.name, "type": type_text(f.type), "nullable": f.nullable} for f in table.schema],
    }

    def show(out: Console) -> None:
        key_text = ", ".join(table.definition.key) or "none: append-only"
        out.print(f"Made the table {name}, {counted(len(table.schema), 'column')}, key {key_text}.")
        out.print(f"Load files: {call.command(f'ingest {name} FILES')}")

    return Answer(data, show)
