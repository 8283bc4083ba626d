"""Make a table from one that exists elsewhere."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, counted
from strandline.cli.options import VNODES, ClusterBy, Key, VersionColumn, Vnodes, names
from strandline.cli.progress import progress_bar
from strandline.cli.verb import Call, verb
from strandline.jobs.import_table import import_table as bring
from strandline.pipeline.status import table_status


def register(app: typer.Typer) -> None:
    verb(app, "import")(import_table)


def import_table(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new table.")],
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A Delta table, a Parquet file or a folder of them; also s3://…")
    ],
    key: Key = None,
    cluster_by: ClusterBy = None,
    vnodes: Vnodes = None,
    version_column: VersionColumn = None,
    order_by: Annotated[
        str | None, typer.Option(metavar="A", help="Of rows with one key, keep the one that is highest here.")
    ] = None,
) -> Answer:
    """Make a table with the columns and rows of an existing one, which stays as it is."""
    lake = call.lake()
    call.new_name(lake, name)
    started_s = time.monotonic()
    with progress_bar(f"Importing {name}") as progress:
        bring(
            lake,
            name,
            path,
            key=names(key),
            cluster_by=names(cluster_by),
            vnodes=vnodes or VNODES,
            version=version_column,
            order_by=order_by,
            progress=progress,
        )
    seconds = time.monotonic() - started_s
    found = table_status(lake.table(name))

    def show(out: Console) -> None:
        out.print(f"Imported {counted(found.rows, 'row')} into {name} at seq {found.head}, {seconds:.1f} s.")
        out.print(f"See: {call.command(f'table show {name}')}")

    return Answer({"table": name, "source": path, "rows": found.rows, "seq": found.head, "seconds": seconds}, show)
