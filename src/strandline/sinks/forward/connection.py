"""One request and its answer over HTTP/1.1, with bounds that no server can stretch.

There are two time limits: one to connect, with the proxy and TLS, and one for the rest, from the first byte of the
request to the last byte of the answer, however slowly they come. (The system bounds the look-up of a host's address.)
At most `ANSWER_BYTES` of an answer are read; it is requested without an encoding and never decoded. Redirects are not
followed, and a connection in any unexpected state is not reused. There are no threads: a request that ran out of time
is over.

Why no library does this: httpx and httpcore limit each read, so a slow answer never ends, and httpx decompresses what
it reads. httpcore does not, and could have one limit with a network backend of our own. But it reuses a connection with
bytes behind an answer, and takes them for the next answer: rows would count as sent that nobody took.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import certifi
import h11
import idna

from strandline.sinks.proxy import Proxy, proxy_for

ANSWER_BYTES: Final = 1 << 20
"""The most that is read of an answer's body; the positions of a table with 4096 vnodes need less."""
SLOWEST_BYTES_S: Final = 64 << 10
"""A large body has more time: one second for this many bytes."""

_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 64 << 10
_INTERIM = 16
_PORTS = {"http": 80, "https": 443}
# What OpenSSL calls an answer that is not TLS.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_UNQUOTED = "/%:@!$&'()*+,;=~-._"


class NoAnswer(Exception):
    """There is no answer. The message may quote the server."""


class UntrustedServer(NoAnswer):
    """The server's certificate is not trusted. Nothing was sent to it."""


class Wire:
    """A connection, opened when it is needed and kept from one request to the next; for one thread."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._place: tuple[str, str, int] | None = None
        self._proxy: Proxy | None = None
        self._socket: socket.socket | None = None
        self._connection = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._place = None

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], params: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The answer: its status, its headers by lower-case name, and the beginning of its body. After `NoAnswer` the
        request may have arrived. `params` replace the query of the url."""
        try:
            target = self._connect_to(url, params)
            answer = self._send_request(method, target, headers, body)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise UntrustedServer(f"its certificate is not trusted: {error.verify_message}") from error
        except (OSError, ValueError, h11.ProtocolError) as error:
            self.close()
            raise NoAnswer(_describe_error(error)) from error
        except BaseException:
            # A late answer to the interrupted request must not be taken for the next one.
            self.close()
            raise
        if not self._is_reusable():
            self.close()
        return answer

    def _connect_to(self, url: str, params: Mapping[str, str]) -> str:
        """Open a connection to the url's server if needed; returns the target for a request."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        host = host if host.isascii() else idna.encode(host).decode()
        place = (parts.scheme, host, parts.port or _PORTS[parts.scheme])
        proxy = proxy_for(*place)
        if (self._place, self._proxy) != (place, proxy) or not self._is_quiet():
            self.close()
            self._connect(place, proxy)
        path = quote(_LONE_PERCENT.sub("%25", parts.path) or "/", safe=_UNQUOTED)
        target = f"{path}?{urlencode(params, quote_via=quote)}" if params else path
        return f"http://{_authority(*place)}{target}" if proxy and parts.scheme == "http" else target

    def _is_quiet(self) -> bool:
        """Whether the connection is open and silent: unasked bytes mean its end, or an answer that is not ours."""
        if self._socket is None:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def _is_reusable(self) -> bool:
        done = self._connection.our_state is h11.DONE and self._connection.their_state is h11.DONE
        if not done or self._connection.trailing_data != (b"", False):
            return False
        self._connection.start_next_cycle()
        return True

    def _connect(self, place: tuple[str, str, int], proxy: Proxy | None) -> None:
        until_s = time.monotonic() + self._timeout_s
        scheme, host, port = place
        # Loaded before the connection is opened: without it nothing may be sent.
        trust = (
            _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if scheme == "https" else None
        )
        opened = _open_socket(host, port, until_s) if proxy is None else _open_proxy(proxy, until_s)
        try:
            if proxy is not None and trust is not None:
                _open_tunnel(opened, f"{_bracket_host(host)}:{port}", proxy, until_s)
            if trust is not None:
                opened.settimeout(_left_s(until_s))
                opened = trust.wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise
        self._socket, self._place, self._proxy = opened, place, proxy
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    def _send_request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        assert self._socket is not None and self._place is not None
        own = {"Host": _authority(*self._place), "Accept-Encoding": "identity", "Content-Length": str(len(body))}
        if self._proxy is not None and self._place[0] == "http":
            own |= self._proxy.headers
        request = h11.Request(method=method, target=target, headers=[*own.items(), *headers.items()])
        connection = self._connection
        data = [connection.send(request), connection.send(h11.Data(body)), connection.send(h11.EndOfMessage())]
        until_s = time.monotonic() + self._timeout_s + len(body) / SLOWEST_BYTES_S
        # Some servers refuse a request before they have all of it, and close the connection.
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            _send_all(self._socket, b"".join(piece for piece in data if piece), until_s)
        return self._read_answer(until_s)

    def _read_answer(self, until_s: float) -> tuple[int, dict[str, str], bytes]:
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


def _open_socket(host: str, port: int, until_s: float) -> socket.socket:
    """A connection to the first address of a host that accepts one; all addresses share one time limit."""
    failure: OSError | None = None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for at, (family, kind, protocol, _, address) in enumerate(found):
        try:
            opened = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A silent address leaves time for the next ones.
            opened.settimeout(_left_s(until_s) / (len(found) - at))
            opened.connect(address)
            return opened
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
    raise failure or OSError(f"{host} has no address")


def _open_proxy(proxy: Proxy, until_s: float) -> socket.socket:
    try:
        return _open_socket(proxy.host, proxy.port, until_s)
    except (OSError, ValueError) as error:
        raise OSError(f"the proxy {proxy} cannot be reached: {_describe_error(error)}") from error


def _open_tunnel(through: socket.socket, authority: str, proxy: Proxy, until_s: float) -> None:
    """Have the proxy connect this socket to the server."""
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        headers = [("Host", authority), *proxy.headers.items()]
        request = h11.Request(method="CONNECT", target=authority, headers=headers)
        _send_all(through, connection.send(request) or b"", until_s)
        event: object = h11.NEED_DATA
        while event is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if (event := connection.next_event()) is h11.NEED_DATA:
                through.settimeout(_left_s(until_s))
                connection.receive_data(through.recv(_PIECE_BYTES))
    except (OSError, h11.ProtocolError) as error:
        raise OSError(f"the proxy {proxy} did not answer: {_describe_error(error)}") from error
    if not isinstance(event, h11.Response):
        raise OSError(f"the proxy {proxy} closed the connection without an answer")
    if not 200 <= event.status_code < 300:
        raise OSError(f"the proxy {proxy} answered {event.status_code}")


def _send_all(to: socket.socket, data: bytes, until_s: float) -> None:
    rest = memoryview(data)
    while rest:
        to.settimeout(_left_s(until_s))
        rest = rest[to.send(rest[:_PIECE_BYTES]) :]


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "it answers without TLS; give its address as http://, not https://"
    # The words of the system, or of the library, without the names of classes.
    return getattr(error, "strerror", None) or str(error) or "the connection ended"


def _authority(scheme: str, host: str, port: int) -> str:
    return _bracket_host(host) if port == _PORTS[scheme] else f"{_bracket_host(host)}:{port}"


def _bracket_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@cache
def _tls_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The trusted certificates. Loaded once, since loading takes longer than a request."""
    if not file and not folder:
        return ssl.create_default_context(cafile=certifi.where())
    try:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    except OSError as error:
        names = " or ".join(name for name, value in (("SSL_CERT_FILE", file), ("SSL_CERT_DIR", folder)) if value)
        raise UntrustedServer(
            f"the certificates that {names} names cannot be read: {_describe_error(error)}"
        ) from error
