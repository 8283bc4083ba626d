"""Tokens for those who reach a lake's server: a name, a role, and a secret that is shown once.

The state keeps only the secret's hash. A secret is 32 random bytes, so one round of SHA-256 is enough: there is nothing
to guess. It also keeps for good that there was a token, in a row without a name: a lake whose last token was revoked is
not open to all.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Column, Connection, Double, Row, Table, Text, delete, select

from strandline.errors import Invalid, NotFound
from strandline.state.database import Database, insert_missing, metadata, now_s

Role = Literal["reader", "writer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

_EVER = ""  # the name of the row that says that there was a token
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}\Z")

tokens = Table(
    "strandline_tokens",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("created_s", Double, nullable=False),
)


@dataclass(frozen=True)
class Token:
    """What may be told of a token; its time is the database's."""

    name: str
    role: Role
    created_s: float

    @property
    def created_at(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.created_s, dt.UTC)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "role": self.role, "created_at": self.created_at}


@dataclass(frozen=True)
class KnownToken:
    """A token as a server knows it."""

    hash: str
    role: Role


class Tokens:
    """The tokens of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state

    def add(self, name: str, role: str) -> str:
        """A new token's secret, which nothing keeps."""
        if not isinstance(name, str) or not _NAME.match(name):
            raise Invalid(
                f"token name {name!r:.140} is not allowed",
                hint="A name has letters, digits and _ . @ -, at most 128.",
            )
        if role not in ROLES:
            raise Invalid(f"role is {role!r:.40}; expected one of: {', '.join(ROLES)}")
        self._state.ensure(tokens)
        secret = f"sl_{secrets.token_urlsafe(32)}"
        kept = hash_of(secret)
        with self._state.transaction() as connection:
            _note(connection)
            insert_missing(connection, tokens, name=name, role=role, hash=kept, created_s=now_s(connection))
            if connection.execute(select(tokens.c.hash).where(tokens.c.name == name)).scalar_one() != kept:
                raise Invalid(
                    f"there is a token {name!r}",
                    hint=f"Choose another name, or end that one: strandline token revoke {name}",
                    token=name,
                )
        return secret

    def all(self) -> list[Token]:
        return [Token(row.name, row.role, row.created_s) for row in self._rows() if row.name != _EVER]

    def known(self) -> list[KnownToken]:
        """What a server checks secrets with."""
        return [KnownToken(row.hash, row.role) for row in self._rows() if row.name != _EVER]

    def were_made(self) -> bool:
        """Whether there is a token, or ever was one."""
        return bool(self._rows())

    def revoke(self, name: str) -> None:
        """End a token; servers notice within a second or so."""
        self._state.ensure(tokens)
        with self._state.transaction() as connection:
            if not connection.execute(delete(tokens).where(tokens.c.name == name, tokens.c.name != _EVER)).rowcount:
                raise NotFound(f"there is no token {name!r}", hint="See: strandline token list", token=name)
            _note(connection)

    def _rows(self) -> Sequence[Row[Any]]:
        """Every row, by name; a state that had no token yet has no table of them, and is not written to be read."""
        if not self._state.has(tokens):
            return ()
        with self._state.reading() as connection:
            return connection.execute(select(tokens).order_by(tokens.c.name)).all()


def _note(connection: Connection) -> None:
    """Keep that there was a token. A row of a state from before tokens were noted is noted when it goes."""
    insert_missing(connection, tokens, name=_EVER, role="", hash="", created_s=now_s(connection))


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def role_of(secret: str, known: Iterable[KnownToken]) -> Role | None:
    """The role that a secret has. Every token is looked at, in a time that does not tell which one was near."""
    kept = hash_of(secret)
    role: Role | None = None
    for token in known:
        if hmac.compare_digest(token.hash, kept):
            role = token.role
    return role
