"""One request and its answer over HTTP/1.1, with bounds that no server can stretch.

There are two clocks: one to connect, and one for all that follows, from the first byte of the request to the last one
of the answer, however slowly they drip. Of an answer no more is read than `ANSWER_BYTES`, as it comes: it is asked for
without an encoding and never decoded. Nothing is followed, and a connection of which anything looks odd is not used
again. No thread works here: a request that ran out of time is over.
"""

from __future__ import annotations

import base64
import select
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import h11

ANSWER_BYTES: Final = 1 << 20
"""As many of an answer's body are read; the positions of a table with 4096 vnodes are less."""
SLOWEST_BYTES_S: Final = 64 << 10
"""A large body has more time: a second for so many bytes."""

_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 64 << 10
_INTERIM = 16
_PORTS = {"http": 80, "https": 443}
_UNQUOTED = "/%:@!$&'()*+,;=~-._"


class Failed(Exception):
    """There is no answer; why, in words that may be the server's."""


class Wire:
    """A connection, opened when it is needed and kept from one request to the next; for one thread."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._place: tuple[str, str, int] | None = None
        self._socket: socket.socket | None = None
        self._connection = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._place = None

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], params: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The answer: its status, its headers by their names in lower case, and the beginning of its body. `Failed`
        when there is none; the request may have arrived nevertheless."""
        try:
            target = self._ready(url, params)
            answer = self._asked(method, url, target, headers, body)
        except (OSError, UnicodeError, h11.ProtocolError) as error:
            self.close()
            raise Failed(_reason(error)) from error
        except BaseException:
            # What was interrupted may still be answered, and that would be taken for the answer to something else.
            self.close()
            raise
        if not self._is_reusable():
            self.close()
        return answer

    def _ready(self, url: str, params: Mapping[str, str]) -> str:
        """Have a connection to where the url is; what to name as the target of a request there."""
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("ascii" if parts.netloc.isascii() else "idna").decode()
        place = (parts.scheme, host, parts.port or _PORTS[parts.scheme])
        proxy = _proxy(*place)
        if self._place != place or not self._is_quiet():
            self.close()
            self._connect(place, proxy)
        path = quote(parts.path or "/", safe=_UNQUOTED)
        target = f"{path}?{urlencode(params, quote_via=quote)}" if params else path
        return f"http://{_authority(*place)}{target}" if proxy and parts.scheme == "http" else target

    def _is_quiet(self) -> bool:
        """Whether the connection is open and says nothing: what comes unasked is its end, or no answer of ours."""
        if self._socket is None or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _is_reusable(self) -> bool:
        done = self._connection.our_state is h11.DONE and self._connection.their_state is h11.DONE
        if not done or self._connection.trailing_data != (b"", False):
            return False
        self._connection.start_next_cycle()
        return True

    def _connect(self, place: tuple[str, str, int], proxy: str | None) -> None:
        until_s = time.monotonic() + self._timeout_s
        scheme, host, port = place
        through = urlsplit(proxy) if proxy else None
        there = (host, port) if through is None else (through.hostname or "", through.port or 80)
        opened = _open(*there, until_s)
        try:
            if through is not None and scheme == "https":
                _tunnel(opened, f"{host}:{port}", _proxy_headers(proxy), until_s)
            if scheme == "https":
                opened.settimeout(_left_s(until_s))
                opened = _trust().wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise
        self._socket, self._place = opened, place
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    def _asked(
        self, method: str, url: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        assert self._socket is not None and self._place is not None
        own = {"Host": _authority(*self._place), "Accept-Encoding": "identity", "Content-Length": str(len(body))}
        if target.startswith("http://"):
            own |= _proxy_headers(_proxy(*self._place))
        request = h11.Request(method=method, target=target, headers=[*own.items(), *headers.items()])
        connection = self._connection
        data = [connection.send(request), connection.send(h11.Data(body)), connection.send(h11.EndOfMessage())]
        until_s = time.monotonic() + self._timeout_s + len(body) / SLOWEST_BYTES_S
        # Some say what is wrong with a request before they have all of it, and hang up.
        with suppress(BrokenPipeError, ConnectionResetError):
            _send(self._socket, b"".join(piece for piece in data if piece), until_s)
        return self._answer(until_s)

    def _answer(self, until_s: float) -> tuple[int, dict[str, str], bytes]:
        head: h11.Response | None = None
        body = bytearray()
        interim = 0
        while len(body) < ANSWER_BYTES:
            event = self._next_event(until_s)
            if isinstance(event, h11.InformationalResponse):
                interim += 1
                if interim > _INTERIM or event.status_code == 101:
                    raise h11.RemoteProtocolError(
                        f"{interim} answers before the answer, the last a {event.status_code}"
                    )
            elif isinstance(event, h11.Response):
                head = event
                if head.http_version not in (b"1.0", b"1.1"):
                    raise h11.RemoteProtocolError(f"an answer in HTTP {head.http_version.decode()}")
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise h11.RemoteProtocolError("the connection was closed without an answer")
        assert head is not None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(head.headers))}
        return head.status_code, headers, bytes(body[:ANSWER_BYTES])

    def _next_event(self, until_s: float) -> object:
        assert self._socket is not None
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._socket.settimeout(_left_s(until_s))
            self._connection.receive_data(self._socket.recv(_PIECE_BYTES))
        return event


def _open(host: str, port: int, until_s: float) -> socket.socket:
    """A connection to the first of a host's addresses that takes one; all of them share one clock."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.settimeout(_left_s(until_s))
            opened.connect(address)
            return opened
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
    raise failure or OSError(f"{host} has no address")


def _send(to: socket.socket, data: bytes, until_s: float) -> None:
    rest = memoryview(data)
    while rest:
        to.settimeout(_left_s(until_s))
        rest = rest[to.send(rest[:_PIECE_BYTES]) :]


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _authority(scheme: str, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == _PORTS[scheme] else f"{shown}:{port}"


# --- proxies, as the environment names them --------------------------------------------------------------------------


def _proxy(scheme: str, host: str, port: int) -> str | None:
    known = urllib.request.getproxies_environment()
    found = known.get(scheme) or known.get("all")
    if not found or urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    kind, mark, _ = found.partition("://")
    if mark and kind.lower() != "http":
        raise OSError(f"the environment names a proxy of the kind {kind}, and only http:// proxies are used")
    return found if mark else f"http://{found}"


def _proxy_headers(proxy: str | None) -> dict[str, str]:
    parts = urlsplit(proxy or "")
    if parts.username is None:
        return {}
    who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(who.encode()).decode()}"}


def _tunnel(through: socket.socket, authority: str, headers: Mapping[str, str], until_s: float) -> None:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    request = h11.Request(method="CONNECT", target=authority, headers=[("Host", authority), *headers.items()])
    _send(through, connection.send(request) or b"", until_s)
    while (event := connection.next_event()) is h11.NEED_DATA:
        through.settimeout(_left_s(until_s))
        connection.receive_data(through.recv(_PIECE_BYTES))
    status = event.status_code if isinstance(event, h11.Response) else 0
    if not 200 <= status < 300:
        raise OSError(f"the proxy answered {status}")


@cache
def _trust() -> ssl.SSLContext:
    """Loaded once: it takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()
