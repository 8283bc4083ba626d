"""Keep the past of a table: `table pin`, `table unpin`, `table pins`."""

from __future__ import annotations

import datetime as dt
import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from strandline.cli.answer import Answer, Rows, moment
from strandline.cli.options import TableName, parse_length, parse_seq_or_time
from strandline.cli.verb import Call


def pin(
    call: Call,
    name: TableName,
    at: Annotated[
        str | None,
        typer.Option(metavar="SEQ|TIME", help="What stays readable: a seq or a time; by default the latest seq."),
    ] = None,
    pin_name: Annotated[
        str | None,
        typer.Option("--name", metavar="PIN", help="The name of the pin; a pin that exists is moved and renewed."),
    ] = None,
    length_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the pin holds.")] = "1h",
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for people.")] = "asked for",
) -> Answer:
    """Keep a table readable at a seq and after it, whatever vacuum would trim, until the pin ends."""
    length_s = parse_length(length_, "--for")
    if not length_s:
        raise typer.BadParameter(f"--for is {length_!r}; a pin has to hold for a while")
    table = call.table(name)
    held = table.pin(parse_seq_or_time(at), name=pin_name, why=why, length=length_s)
    made = held.pin.name
    until = dt.datetime.fromtimestamp(table.log.storage.now_s() + length_s, dt.UTC)
    again = f"table pin {name} --at {held.seq} --name {made} --for {length_} --why {shlex.quote(why)}"
    return Answer(
        {"table": name, "pin": made, "seq": held.seq, "until": until},
        [
            f"Pin {made} keeps {name} readable from seq {held.seq} on, until {moment(until)} UTC.",
            f"Renew it: {call.command(again)}",
            f"End it:   {call.command(f'table unpin {name} {made}')}",
        ],
    )


def unpin(call: Call, name: TableName, pin: Annotated[str, typer.Argument(metavar="PIN", help="The pin.")]) -> Answer:
    """End a pin: what it held may be trimmed by the next vacuum."""
    ended = call.table(name).unpin(pin)
    return Answer({"table": name, "pin": pin, "seq": ended.seq}, f"Pin {pin} of {name} is gone.")


def pins(call: Call, name: TableName) -> Answer:
    """List the pins of a table: the seq that each keeps readable, and until when."""
    table = call.table(name)
    now_s = table.log.storage.now_s()
    found = [(pin, pin.expires_s > now_s) for pin in table.pins.all()]
    data = [{**asdict(pin), "until": pin.until, "is_live": is_live} for pin, is_live in found]
    rows = [
        (pin.name, pin.seq, pin.why, pin.holder, moment(pin.until) + ("" if is_live else " (over)"))
        for pin, is_live in found
    ]
    shown = Rows(("PIN", "SEQ", "WHY", "HOLDER", "UNTIL (UTC)"), rows)
    return Answer({"table": name, "pins": data}, shown if found else f"Nothing is pinned in {name}.")
