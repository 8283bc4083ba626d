"""Show and change how a table is looked after."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, show_rows
from strandline.cli.options import TableName, settings
from strandline.cli.verb import Call, verb
from strandline.errors import Invalid
from strandline.model.definition import TableDef

MEANINGS = {
    "fold_ratio": "fold a vnode when its changes pass this share of its folded rows",
    "fold_files": "or lie in more files than this",
    "fold_age": "or have waited for longer than this",
    "keep": "how far back the table stays readable",
    "grace": "how long a file must be unneeded before vacuum deletes it",
    "retention": "how old a row gets by its time column, before expire hides it",
    "time": "the column that rows expire by",
}


def register(app: typer.Typer) -> None:
    verb(app, "set")(set_settings)


def set_settings(
    call: Call,
    name: TableName,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING=VALUE", help="What to change, such as keep=7d; nothing shows all."),
    ] = None,
) -> Answer:
    """Show a table's settings, or change some."""
    table = call.lake().table(name)
    asked = settings(changes or ())
    before = table.definition
    if asked:
        try:
            table.configure(**asked)
        except Invalid as error:
            if "retention" not in asked or before.time is not None or "time" in asked:
                raise
            both = call.command(f"table set {name} time=COLUMN retention={asked['retention']}")
            raise Invalid(error.message, hint=f"Name one: {both}", table=name, **error.fields) from error
    after = table.definition
    was, now = shown(before), shown(after)
    changed = [setting for setting in now if now[setting] != was[setting]]
    data = {"table": name, "settings": {**after.settings.to_dict(), "time": after.time}, "changed": changed}

    def show(out: Console) -> None:
        if not asked:
            show_rows(out, ("SETTING", "VALUE", "MEANING"), [(key, now[key], MEANINGS[key]) for key in now])
            return
        for setting in asked:
            note = f"was {was[setting]}" if setting in changed else "as before"
            out.print(f"{name}: {setting} is {now[setting]} ({note}).")
        if "retention" in changed and after.settings.retention is not None:
            out.print(f"Rows past it are hidden by: {call.command(f'table expire {name}')}")

    return Answer(data, show)


def shown(definition: TableDef) -> dict[str, str]:
    """Every setting as a person would write it."""
    return {**definition.settings.shown(), "time": definition.time or "none"}
