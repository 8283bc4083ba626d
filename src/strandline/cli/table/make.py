"""Make tables: `table create`, `table import`."""

from __future__ import annotations

import time as clock
from typing import Annotated, Any

import typer

from strandline.cli.answer import Answer, counted
from strandline.cli.options import (
    VNODES,
    ClusterBy,
    Key,
    Names,
    NewName,
    Skip,
    VersionColumn,
    Vnodes,
    list_names,
    parse_names,
    parse_settings,
)
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call


def create(
    call: Call,
    name: NewName,
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
    """Create an empty table."""
    settings: dict[str, Any] = dict(parse_settings([*([] if time is None else [f"time={time}"]), *(set_ or ())]))
    table = call.lake().create_table(
        name,
        schema,
        key=parse_names(key, "--key"),
        cluster_by=parse_names(cluster_by, "--cluster-by"),
        vnodes=vnodes or VNODES,
        version=version_column,
        time=settings.pop("time", None),
        **settings,
    )
    facts = table.describe()
    data = {"table": name, **{word: facts[word] for word in ("generation", "key", "time", "settings", "columns")}}
    key_text = ", ".join(table.definition.key) or "none: append-only"
    made = f"Made the table {name}, {counted(len(table.schema), 'column')}, key {key_text}."
    return Answer(data, [made, f"Load files: {call.command(f'ingest {name} FILES')}"])


def import_(
    call: Call,
    name: NewName,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A Delta table, a Parquet file or a folder of them; also s3://…")
    ],
    key: Key = None,
    cluster_by: ClusterBy = None,
    vnodes: Vnodes = None,
    version_column: VersionColumn = None,
    order_by: Annotated[
        str | None,
        typer.Option(metavar="A", help="Of rows with the same key, keep the one with the highest value here."),
    ] = None,
    skip: Skip = None,
    names: Names = None,
) -> Answer:
    """Create a table with the columns and rows of a Delta table or of Parquet files, which are not changed."""
    lake = call.lake()
    started_s = clock.monotonic()
    with progress_bar(f"Importing {name}") as progress:
        table = lake.import_table(
            name,
            path,
            key=parse_names(key, "--key"),
            cluster_by=parse_names(cluster_by, "--cluster-by"),
            vnodes=vnodes or VNODES,
            version=version_column,
            order_by=order_by,
            skip=parse_names(skip, "--skip"),
            names=names,
            progress=progress,
        )
    seconds = clock.monotonic() - started_s
    found = table.status()
    data = {
        "table": name,
        "source": path,
        "rows": found.rows,
        "seq": found.head,
        "seconds": seconds,
        "names": table.describe()["names"],
    }
    done = f"Imported {counted(found.rows, 'row')} into {name} at seq {found.head}, {seconds:.1f} s."
    return Answer(
        data, [done, *list_names(table.definition.names.renamed), f"See: {call.command(f'table show {name}')}"]
    )
