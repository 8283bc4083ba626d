"""Servers that answer with raw bytes, whatever they are, and however slowly."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Say = Callable[[socket.socket, bytes], None]
"""Answers a request on its connection; to return ends the connection."""


@dataclass
class Hostile:
    port: int
    host: str = "127.0.0.1"
    scheme: str = "http"
    requests: list[bytes] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{shown}:{self.port}/ingest/items"


@contextlib.contextmanager
def hostile(
    say: Say, *, is_reading: bool = True, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Hostile]:
    """A server that gives each request to `say`, one thread for each connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=64)
    server = Hostile(listener.getsockname()[1], host, "http" if tls is None else "https")
    threads: list[threading.Thread] = []
    held: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(OSError))
            connection = stack.enter_context(connection)
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
                held.append(connection)
            request = read_request(connection) if is_reading else b""
            server.requests.append(request)
            say(connection, request)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(60)
                held.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield server
    finally:
        server.over.set()
        # Closing alone does not wake up a thread that waits in accept or recv.
        for each in (listener, *held):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in (accepting, *threads):
            thread.join(10)


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", data)
    missing = int(found[1]) if found else 0
    missing -= len(data.partition(b"\r\n\r\n")[2])
    while missing > 0 and (piece := connection.recv(65536)):
        data += piece
        missing -= len(piece)
    return data


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """A well-formed answer."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def once(data: bytes) -> Say:
    return lambda connection, _: connection.sendall(data)
