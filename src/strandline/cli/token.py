"""Make, list and end the tokens of a lake's server."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from strandline.cli.answer import Answer, moment, show_rows
from strandline.cli.verb import Call, verb

if TYPE_CHECKING:
    from strandline.state.tokens import Tokens

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(name="token", help="Make, list and end the tokens of the lake's server.", no_args_is_help=True)
    verb(group, "add")(add)
    verb(group, "list")(list_)
    verb(group, "revoke")(revoke)
    app.add_typer(group)


def add(
    call: Call,
    name: Name,
    role: Annotated[str, typer.Option(help="What it may do: reader, writer (send rows) or admin (everything).")],
) -> Answer:
    """Make a token and print its secret, once: only a hash of it is kept."""
    secret = _tokens(call).add(name, role)
    # From here on the lake knows of it: a state without the token is an older one, and is not served.
    call.lake().state.epoch.renew()
    data = {"name": name, "role": role, "token": secret}
    return Answer(data, lambda out: out.print(secret, soft_wrap=True))


def list_(call: Call) -> Answer:
    """List the tokens, without their secrets."""
    found = _tokens(call).all() if call.lake().has_state else []
    made = [(token, dt.datetime.fromtimestamp(token.created_s, dt.UTC)) for token in found]
    data = [{"name": token.name, "role": token.role, "created_at": at} for token, at in made]

    def show(out: Console) -> None:
        if not found:
            out.print(f"No tokens. Make one: {call.command('token add NAME --role writer')}")
            return
        show_rows(out, ("TOKEN", "ROLE", "MADE (UTC)"), [(token.name, token.role, moment(at)) for token, at in made])

    return Answer({"tokens": data}, show)


def revoke(call: Call, name: Name) -> Answer:
    """End a token: who uses it is refused from now on."""
    _tokens(call).revoke(name)
    call.lake().state.epoch.renew()
    return Answer({"name": name, "is_revoked": True}, lambda out: out.print(f"Token {name} is revoked."))


def _tokens(call: Call) -> Tokens:
    # The database's library loads late: few verbs need it.
    from strandline.state.tokens import Tokens

    lake = call.lake()
    lake.state.epoch.check()
    return Tokens(lake.state.database)
