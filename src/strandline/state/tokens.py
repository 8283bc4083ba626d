"""Tokens for the clients of a lake's server: a name, a role, and a secret that is shown once.

The state keeps only the secret's hash. A secret is 32 random bytes, so one round of SHA-256 is enough: it
cannot be guessed. A row without a name records for good that there was a token: a lake whose last token was revoked
does not become open to all.
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
    """The public part of a token; its time is the database's."""

    name: str
    role: Role
    created_s: float

    @property
    def created_at(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.created_s, dt.UTC)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "role": self.role, "created_at": self.created_at}


@dataclass(frozen=True)
class TokenHash:
    """The part of a token that a server checks secrets with."""

    hash: str
    role: Role
    name: str = ""


class Tokens:
    """The tokens of one state."""

    def __init__(self, state: Database) -> None:
        self._state = state

    def add(self, name: str, role: str) -> str:
        """Make a token; returns its secret, which is not stored."""
        if not isinstance(name, str) or not _NAME.match(name):
            raise Invalid(
                f"token name {name!r:.140} is not allowed",
                hint="A name has letters, digits and _ . @ -, at most 128.",
            )
        if role not in ROLES:
            raise Invalid(f"there is no role {role!r:.40}", hint=f"Roles: {', '.join(ROLES)}")
        self._state.ensure(tokens)
        secret = f"sl_{secrets.token_urlsafe(32)}"
        kept = hash_of(secret)
        with self._state.transaction() as connection:
            _note_existence(connection)
            insert_missing(connection, tokens, name=name, role=role, hash=kept, created_s=now_s(connection))
            if connection.execute(select(tokens.c.hash).where(tokens.c.name == name)).scalar_one() != kept:
                raise Invalid(
                    f"there is already a token {name!r}",
                    hint=f"Choose another name, or end that one: strandline token revoke {name}",
                    token=name,
                )
        return secret

    def all(self) -> list[Token]:
        return [Token(row.name, row.role, row.created_s) for row in self._rows() if row.name != _EVER]

    def hashes(self) -> list[TokenHash]:
        """The hash, role and name of every token."""
        return [TokenHash(row.hash, row.role, row.name) for row in self._rows() if row.name != _EVER]

    def were_made(self) -> bool:
        """Whether there is a token, or ever was one."""
        return bool(self._rows())

    def revoke(self, name: str) -> None:
        """End a token; servers notice within a second or so."""
        self._state.ensure(tokens)
        with self._state.transaction() as connection:
            if not connection.execute(delete(tokens).where(tokens.c.name == name, tokens.c.name != _EVER)).rowcount:
                raise NotFound(f"there is no token {name!r}", hint="See: strandline token list", token=name)
            _note_existence(connection)

    def _rows(self) -> Sequence[Row[Any]]:
        """Every row, by name. A state without tokens may lack the table, and reading does not create it."""
        if not self._state.has(tokens):
            return ()
        with self._state.reading() as connection:
            return connection.execute(select(tokens).order_by(tokens.c.name)).all()


def _note_existence(connection: Connection) -> None:
    """Record that there was a token. States of older versions may lack the record until a token is revoked."""
    insert_missing(connection, tokens, name=_EVER, role="", hash="", created_s=now_s(connection))


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def find_token(secret: str, known: Iterable[TokenHash]) -> TokenHash | None:
    """The token of a secret. Every token is compared, in constant time, so that the time tells nothing."""
    kept = hash_of(secret)
    found: TokenHash | None = None
    for token in known:
        if hmac.compare_digest(token.hash, kept):
            found = token
    return found
