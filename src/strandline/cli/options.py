"""Arguments and options that several verbs share, and the parsers of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strandline.cli.answer import Rows
from strandline.cli.completion import complete_tables
from strandline.errors import Invalid
from strandline.model import duration
from strandline.model.names import split_names
from strandline.model.settings import TableSettings

if TYPE_CHECKING:
    from strandline.model.name_map import RenamedColumn

VNODES = 16
_SIZE = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?) ?(?P<unit>|[kmg]?b)", re.I)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}

TableName = Annotated[str, typer.Argument(metavar="NAME", help="The table.", autocompletion=complete_tables)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="The new table.")]
TableNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="The tables; without a name, all of them.", autocompletion=complete_tables),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Where = Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that match this condition.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Show retired sinks as well.")]
UseEngine = Annotated[
    Literal["auto", "driver", "spark"] | None,
    typer.Option(
        "--engine", help="Who does the work: this process (driver), Spark, or the one that suits its size (auto)."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]

Key = Annotated[str | None, typer.Option(metavar="A,B", help="The key of the table; without one it is append-only.")]
ClusterBy = Annotated[str | None, typer.Option(metavar="A,B", help="Of a new table: columns that repeat together.")]
Names = Annotated[
    Literal["snake", "keep"] | None,
    typer.Option(help='How "Order Date" names a new column: order_date (snake, the default) or as it is (keep).'),
]
Vnodes = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help=f"Of a new table: the number of hash buckets, a power of two; default {VNODES}."
    ),
]
Skip = Annotated[str | None, typer.Option(metavar="A,B", help="Columns of the files to leave out.")]
VersionColumn = Annotated[
    str | None, typer.Option(metavar="A", help="Of a new table: a lower value here never replaces a higher one.")
]


def parse_names(text: str | None, option: str) -> tuple[str, ...]:
    """The names in the text of an option, such as `a,b` or `a,"b, c"`; none when it is not given."""
    names = split_names(text or "")
    if text is not None and not names:
        hint = (
            "For a table without a key, leave --key out (ingest: --no-key)"
            if option == "--key"
            else 'A name without text is written ""'
        )
        raise Invalid(f"{option} names no column", hint=f"{hint}.", option=option)
    return names


def list_names(names: Sequence[RenamedColumn]) -> Iterator[Rows]:
    """The columns whose names in the file are other ones."""
    if names:
        yield Rows(("NAME IN FILE", "COLUMN"), [(name.source or "(no name)", name.column) for name in names], most=20)


def parse_pairs(texts: Sequence[str], option: str, example: str) -> Mapping[str, str]:
    """The pairs in texts such as `name=value`."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign and value):
            raise typer.BadParameter(f"{option} is {text!r}; expected NAME=VALUE, such as {example}")
        if name in found:
            raise typer.BadParameter(f"{option} gives {name} twice")
        found[name] = value
    return found


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """The settings in texts such as `keep=7d`: those of `TableSettings`, and `time`."""
    known = ["time", *(field.name for field in fields(TableSettings))]
    found = parse_pairs(texts, "the setting", "keep=7d")
    for name in found:
        if name not in known:
            raise Invalid(f"there is no setting {name!r}", hint=f"Settings: {', '.join(known)}", setting=name)
    return dict(found)


def parse_length(text: str | None, option: str) -> float | None:
    """The seconds of a length of time such as `7d`; None when none is given."""
    try:
        return None if text is None else duration.seconds(text, option)
    except Invalid as error:
        raise typer.BadParameter(error.message) from error


def parse_amount(text: str | None, option: str) -> float | None:
    """A number of things a second; None for `none`, and when none is given."""
    if text in (None, "none"):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError as error:
        raise typer.BadParameter(f"{option} is {text!r}; expected a number, such as 1000, or none") from error


def parse_size(text: str | None, option: str) -> float | None:
    """The bytes of a size such as `10MB`; None for `none`, and when none is given."""
    if text in (None, "none"):
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{option} is {text!r}; expected a size such as 500kB, 10MB or 1GB, or none")
    return float(found["number"]) * _UNITS[found["unit"].lower()]


def parse_seq_or_time(text: str | None) -> int | str | None:
    """A seq, or the text of a time, which the table parses."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text
