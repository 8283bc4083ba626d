"""What may stand between a sink and its receiver: something that speaks TLS in front of it, and an HTTP proxy.

The certificates below `tls/` were made once with `openssl`, for a hundred years. An authority (`ca.pem`, whose key is
gone) signed them; `localhost.pem` is for localhost, 127.0.0.1 and ::1, `elsewhere.pem` for elsewhere.example."""

from __future__ import annotations

import base64
import contextlib
import re
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from hostile import Hostile, answer, hostile

TLS = Path(__file__).parent / "tls"
AUTHORITY = str(TLS / "ca.pem")


def certified(name: str = "localhost") -> ssl.SSLContext:
    """What a server needs to prove that it is `name`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{name}.pem")
    return context


def relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each of two connections says, until one of them ends."""
    across = {one: other, other: one}
    # A test that ends closes them meanwhile.
    while one.fileno() >= 0 and other.fileno() >= 0:
        ready = [each for each in across if isinstance(each, ssl.SSLSocket) and each.pending()]
        for each in ready or select.select(list(across), [], [], 60)[0]:
            data = each.recv(65536)
            if not data:
                return
            across[each].sendall(data)


@contextlib.contextmanager
def tls_in_front_of(url: str, name: str = "localhost") -> Iterator[Hostile]:
    """A server that speaks TLS and passes on what it is told to `url`."""
    parts = urlsplit(url)

    def say(connection: socket.socket, _: bytes) -> None:
        with socket.create_connection((parts.hostname, parts.port)) as behind:
            relay(connection, behind)

    with hostile(say, is_reading=False, tls=certified(name)) as server:
        yield server


@contextlib.contextmanager
def proxy(login: str | None = None, *, tls: ssl.SSLContext | None = None) -> Iterator[Hostile]:
    """An HTTP proxy that passes on requests with a whole address, and opens tunnels; only with this login, if any."""
    wanted = None if login is None else b"Basic " + base64.b64encode(login.encode())

    def say(connection: socket.socket, request: bytes) -> None:
        found = re.search(rb"(?i)\r\nproxy-authorization: *([^\r]*)", request)
        if wanted is not None and (found is None or found[1] != wanted):
            connection.sendall(answer("407 Proxy Authentication Required", b"who are you?"))
            return
        verb, target, _ = request.split(b" ", 2)
        parts = urlsplit(target.decode() if verb != b"CONNECT" else f"//{target.decode()}")
        with socket.create_connection((parts.hostname, parts.port)) as behind:
            if verb == b"CONNECT":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                behind.sendall(request.replace(target, parts._replace(scheme="", netloc="").geturl().encode(), 1))
            relay(connection, behind)

    with hostile(say, tls=tls) as server:
        yield server
