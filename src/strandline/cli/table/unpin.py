"""End a pin."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.answer import Answer
from strandline.cli.options import TableName
from strandline.cli.verb import Call, verb
from strandline.errors import NotFound


def register(app: typer.Typer) -> None:
    verb(app, "unpin")(unpin)


def unpin(
    call: Call,
    name: TableName,
    pin: Annotated[str, typer.Argument(metavar="PIN", help="The pin.")],
) -> Answer:
    """End a pin: what it held may be trimmed by the next vacuum."""
    pins = call.lake().table(name).pins
    found = {each.name: each for each in pins.all()}
    if pin not in found:
        hint = f"Pins: {', '.join(found)}" if found else f"See: {call.command(f'table pins {name}')}"
        raise NotFound(f"table {name!r} has no pin {pin!r}", hint=hint, table=name, pin=pin)
    pins.release(pin)
    data = {"table": name, "pin": pin, "seq": found[pin].seq}
    return Answer(data, lambda out: out.print(f"Pin {pin} of {name} is gone."))
