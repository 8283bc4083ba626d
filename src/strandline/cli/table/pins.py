"""List a table's pins."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict

import typer
from rich.console import Console

from strandline.cli.answer import Answer, moment, show_rows
from strandline.cli.options import TableName
from strandline.cli.verb import Call, verb
from strandline.tables.pins import Pin


def register(app: typer.Typer) -> None:
    verb(app, "pins")(pins)


def pins(call: Call, name: TableName) -> Answer:
    """List who holds which past of a table: pins, and work that is under way."""
    table = call.lake().table(name)
    now_s = table.log.storage.now_s()
    found = table.pins.all()
    data = [{**asdict(pin), "until": _until(pin), "is_live": pin.expires_s > now_s} for pin in found]

    def show(out: Console) -> None:
        if not found:
            out.print(f"Nothing is pinned in {name}.")
            return
        rows = [
            (
                pin.name,
                "" if pin.seq is None else f"{pin.seq:,}",
                pin.why,
                pin.holder,
                moment(_until(pin)) + ("" if pin.expires_s > now_s else " (over)"),
            )
            for pin in found
        ]
        show_rows(out, ("PIN", "SEQ", "WHY", "HOLDER", "UNTIL (UTC)"), rows, numbers=("SEQ",))

    return Answer({"table": name, "pins": data}, show)


def _until(pin: Pin) -> dt.datetime:
    return dt.datetime.fromtimestamp(pin.expires_s, dt.UTC)
