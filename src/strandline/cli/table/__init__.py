"""The verbs about one table."""

from __future__ import annotations

import typer

from strandline.cli.table import change, erase, look, make, pins
from strandline.cli.verb import group

VERBS = {
    "list": look.list_,
    "show": look.show,
    "history": look.history,
    "create": make.create,
    "import": make.import_,
    "rename": change.rename,
    "set": change.set_,
    "restore": change.restore,
    "expire": erase.expire,
    "pin": pins.pin,
    "unpin": pins.unpin,
    "pins": pins.pins,
    "drop-column": change.drop_column,
    "purge": erase.purge,
    "drop": change.drop,
}


def register(app: typer.Typer) -> None:
    group(app, "table", "Make, look at and change tables.", VERBS)
