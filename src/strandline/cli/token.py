"""Create, list and revoke the tokens of the lake's server."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.answer import Answer, Rows
from strandline.cli.verb import Call

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


def add(
    call: Call,
    name: Name,
    role: Annotated[str, typer.Option(help="What it may do: reader, writer (send rows) or admin (everything).")],
) -> Answer:
    """Create a token and print its secret, once: only a hash of it is kept."""
    secret = call.lake().add_token(name, role)
    return Answer({"name": name, "role": role, "token": secret}, secret)


def list_(call: Call) -> Answer:
    """List the tokens, without their secrets."""
    lake = call.lake()
    found = lake.tokens().all() if lake.has_state else []
    rows = Rows(("TOKEN", "ROLE", "MADE (UTC)"), [(token.name, token.role, token.created_at) for token in found])
    none = f"No tokens. Make one: {call.command('token add NAME --role writer')}"
    return Answer({"tokens": [token.to_dict() for token in found]}, rows if found else none)


def revoke(call: Call, name: Name) -> Answer:
    """Revoke a token: requests with it are refused from now on."""
    call.lake().revoke_token(name)
    return Answer({"name": name, "is_revoked": True}, f"Token {name} is revoked.")


VERBS = {"add": add, "list": list_, "revoke": revoke}
