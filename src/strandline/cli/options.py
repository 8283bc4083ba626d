"""Arguments and options that several verbs share, and how their texts are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated

import typer

from strandline.cli.answer import Answer
from strandline.errors import Invalid
from strandline.lake import Lake
from strandline.model import duration
from strandline.model.settings import TableSettings

VNODES = 16

TableName = Annotated[str, typer.Argument(metavar="NAME", help="The table.")]
TableNames = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="The tables; all of them without a name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; write nothing.")]

Key = Annotated[str | None, typer.Option(metavar="A,B", help="Its key; without one it is append-only.")]
ClusterBy = Annotated[str | None, typer.Option(metavar="A,B", help="Of a new table: columns that repeat together.")]
Vnodes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help=f"Of a new table: its parts, a power of two; {VNODES} if not said."),
]
VersionColumn = Annotated[
    str | None, typer.Option(metavar="A", help="Of a new table: an older value here never replaces a newer row.")
]


def named(lake: Lake, tables: Sequence[str] | None) -> list[str]:
    """The tables that a call names, which must be there, each once."""
    catalog = lake.catalog.refresh()
    return list(dict.fromkeys(catalog.get(name).name for name in tables or ()))


def names(text: str | None) -> tuple[str, ...]:
    """The names in a text such as `a,b`."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def settings(texts: Sequence[str]) -> dict[str, str]:
    """What texts such as `keep=7d` set: settings of `TableSettings`, and `time`."""
    known = ["time", *(field.name for field in fields(TableSettings))]
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not name or not value:
            raise typer.BadParameter(f"{text!r} is no setting; expected SETTING=VALUE, such as keep=7d")
        if name not in known:
            raise Invalid(f"there is no setting {name!r}", hint=f"Settings: {', '.join(known)}", setting=name)
        if name in found:
            raise typer.BadParameter(f"{name} is set twice")
        found[name] = value
    return found


def length(text: str | None, option: str) -> float | None:
    """The seconds of a length of time such as `7d`; None when none is given."""
    try:
        return None if text is None else duration.seconds(text, option)
    except Invalid as error:
        raise typer.BadParameter(error.message) from error


def seq_or_time(text: str) -> int | str:
    """A seq, or else a time for the table to make sense of."""
    return int(text) if text.isascii() and text.isdigit() else text


def would(what: str, **data: object) -> Answer:
    """The answer of a dry run: what would happen, and that it did not."""
    said = f"Would {what}.\nNothing was written."
    return Answer({**data, "is_dry_run": True}, lambda out: out.print(said, soft_wrap=True))
