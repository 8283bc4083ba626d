"""The verbs about one table, one a file."""

from __future__ import annotations

import typer

from strandline.cli.table import (
    create,
    drop,
    drop_column,
    expire,
    history,
    import_,
    list_,
    pin,
    pins,
    purge,
    rename,
    restore,
    set_,
    show,
    unpin,
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="table", help="Make, look at and change tables.", no_args_is_help=True)
    for verb in (list_, show, history, create, import_, rename, set_, restore, expire, pin, unpin, pins):
        verb.register(group)
    for verb in (drop_column, purge, drop):
        verb.register(group)
    app.add_typer(group)
