"""List the lake's tables."""

from __future__ import annotations

import typer
from rich.console import Console

from strandline.cli.answer import Answer
from strandline.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    verb(app, "list")(list_tables)


def list_tables(call: Call) -> Answer:
    """List the lake's tables."""
    tables = call.lake().tables()

    def show(out: Console) -> None:
        out.print("\n".join(tables) if tables else "There are no tables yet.")

    return Answer({"tables": tables}, show)
