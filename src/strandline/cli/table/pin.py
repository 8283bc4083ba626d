"""Keep a table readable at a seq."""

from __future__ import annotations

import datetime as dt
import shlex
from typing import Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, moment
from strandline.cli.options import TableName, length, seq_or_time
from strandline.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    verb(app, "pin")(pin)


def pin(
    call: Call,
    name: TableName,
    at: Annotated[
        str | None, typer.Option(metavar="SEQ|TIME", help="What stays readable: a seq or a time; else the latest seq.")
    ] = None,
    pin_name: Annotated[
        str | None, typer.Option("--name", metavar="PIN", help="The pin's name; one that exists is moved and renewed.")
    ] = None,
    length_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the pin holds.")] = "1h",
    why: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "asked for",
) -> Answer:
    """Keep a table readable at a seq and after it, whatever vacuum would trim, until the pin ends."""
    length_s = length(length_, "--for")
    if not length_s:
        raise typer.BadParameter(f"--for is {length_!r}; a pin has to hold for a while")
    table = call.lake().table(name)
    held = table.pin(None if at is None else seq_or_time(at), name=pin_name, why=why, length=length_s)
    until = dt.datetime.fromtimestamp(table.log.storage.now_s() + held.pin.length_s, dt.UTC)
    data = {"table": name, "pin": held.pin.name, "seq": held.seq, "until": until}

    def show(out: Console) -> None:
        out.print(f"Pin {held.pin.name} keeps {name} readable from seq {held.seq} on, until {moment(until)} UTC.")
        again = f"table pin {name} --at {held.seq} --name {held.pin.name} --for {length_} --why {shlex.quote(why)}"
        out.print(f"Renew it: {call.command(again)}", soft_wrap=True)
        out.print(f"End it:   {call.command(f'table unpin {name} {held.pin.name}')}", soft_wrap=True)

    return Answer(data, show)
