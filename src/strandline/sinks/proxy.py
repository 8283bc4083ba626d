"""The HTTP proxy that the environment names for an address: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

_PORT = 80


@dataclass(frozen=True)
class Proxy:
    """Where a proxy is. `login` is a user and a password, as `user:password`, for the proxy alone."""

    host: str
    port: int
    login: str | None = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def headers(self) -> Mapping[str, str]:
        if self.login is None:
            return {}
        return {"Proxy-Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}

    @classmethod
    def parse(cls, text: str) -> Self:
        """The proxy that a variable names. An error does not repeat the variable: it may hold a password."""
        kind, address = _split_scheme(text)
        if kind != "http":
            raise OSError("the environment names a proxy that is not an http:// one, and only those are used")
        try:
            parts = urlsplit(f"//{address.rpartition('@')[2]}")
            host, port = parts.hostname, parts.port or _PORT
        except ValueError:
            host, port = None, 0
        if not host:
            raise OSError(
                "the environment names a proxy whose address is not of the form http://user:password@host:port"
            )
        return cls(host, port, _find_login(text))


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy for a server; None when there is none."""
    known = urllib.request.getproxies_environment()
    found = known.get(scheme) or known.get("all")
    if not found or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    return Proxy.parse(found)


def proxy_secrets() -> list[str]:
    """The logins and passwords of all proxies in the environment, which no message may repeat."""
    known = urllib.request.getproxies_environment()
    logins = [login for name, text in known.items() if name != "no" and (login := _find_login(text))]
    return [secret for login in logins for secret in (login, login.partition(":")[2]) if secret]


def _find_login(text: str) -> str | None:
    """The `user:password` of a proxy. It ends at the last `@`, since a password may hold others."""
    before, mark, _ = _split_scheme(text)[1].rpartition("@")
    user, _, password = before.partition(":")
    return f"{unquote(user)}:{unquote(password)}" if mark else None


def _split_scheme(text: str) -> tuple[str, str]:
    kind, mark, address = text.partition("://")
    return (kind.lower(), address) if mark else ("http", text)
