"""Create, show and change tables."""

from __future__ import annotations

from strandline.cli.table import change, drop, erase, look, make, pins

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
    "add-column": change.add_column,
    "rename-column": change.rename_column,
    "drop-column": change.drop_column,
    "purge": erase.purge,
    "drop": drop.drop,
    "undrop": drop.undrop,
}
