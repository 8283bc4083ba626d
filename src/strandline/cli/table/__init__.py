"""The verbs about one table, one a file."""

from __future__ import annotations

import typer

from strandline.cli.table import create, drop, history, import_, list_, rename, show

app = typer.Typer(name="table", help="Make, look at and change tables.", no_args_is_help=True)
for verb in (list_, show, create, import_, rename, history, drop):
    verb.register(app)
