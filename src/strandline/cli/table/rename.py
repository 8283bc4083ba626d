"""Give a table another name."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.answer import Answer
from strandline.cli.options import TableName
from strandline.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    verb(app, "rename")(rename)


def rename(
    call: Call,
    name: TableName,
    to: Annotated[str, typer.Argument(metavar="TO", help="Its new name.")],
) -> Answer:
    """Give a table another name; its rows, seqs and files stay."""
    call.lake().rename(name, to)
    return Answer({"table": to, "was": name}, lambda out: out.print(f"{name} is now {to}."))
