"""Who may do what: bearer tokens and their roles.

While a lake has never had a token, everyone who reaches the server may do everything; this is meant for one machine
only. A server that others can reach (`is_public`) always asks for a token. So does a server whose lake has ever had
one: when the last token is revoked, nobody is let in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from strandline.sinks.forward.refusal import forbidden, unauthorized
from strandline.state.tokens import Role, TokenHash, Tokens, find_token

_FRESH_S = 1.0


class Auth:
    """Checks requests. Tokens are read from the state once a second, so a revoked one stops working."""

    def __init__(self, tokens: Tokens | None, *, is_public: bool = False) -> None:
        self._tokens = tokens
        self._known: Sequence[TokenHash] = ()
        self._is_asking = is_public
        self._looked_s = -_FRESH_S
        self._lock = asyncio.Lock()

    async def check(self, authorization: str | None, roles: Sequence[Role]) -> str | None:
        """Let a request pass that carries a token of one of these roles, or of an admin; returns the token's name."""
        known = await self._refresh_tokens()
        if not self._is_asking:
            return None
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise unauthorized("a token is needed", hint="Send it: Authorization: Bearer TOKEN")
        token = find_token(secret.strip(), known)
        if token is None:
            raise unauthorized("the token is not known", hint="Create one: strandline token add NAME --role ROLE")
        if token.role != "admin" and token.role not in roles:
            raise forbidden(f"a {token.role} may not do this", hint=f"Use a token with the role {roles[0]}.")
        return token.name

    async def _refresh_tokens(self) -> Sequence[TokenHash]:
        if self._tokens is None:
            return ()
        if time.monotonic() - self._looked_s >= _FRESH_S:
            async with self._lock:
                if time.monotonic() - self._looked_s >= _FRESH_S:
                    self._known = await asyncio.to_thread(self._tokens.hashes)
                    if not self._is_asking:
                        self._is_asking = bool(self._known) or await asyncio.to_thread(self._tokens.were_made)
                    self._looked_s = time.monotonic()
        return self._known
