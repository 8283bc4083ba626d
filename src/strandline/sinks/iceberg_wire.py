"""What a REST catalog answers is bounded: an exchange by a clock from its connection to the last byte, a body in size.

`requests` bounds each wait for bytes alone, and takes a body of any size. This module loads it; it comes with
`pyiceberg`."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from requests.adapters import HTTPAdapter
from requests.exceptions import ReadTimeout, RequestException
from urllib3.exceptions import HTTPError

MOST_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_exchange = threading.local()


class BoundedAdapter(HTTPAdapter):
    """One exchange after the other for each thread; redirects are exchanges of their own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        _watch_pools(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        is_new = proxy not in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if is_new:
            _watch_pools(manager)
        return manager

    def send(self, request: Any, *_: Any, **options: Any) -> Any:
        request.headers["Accept-Encoding"] = "identity"
        watch = _exchange.watch = _Watch()
        clock = threading.Timer(self._timeout_s, watch.end)
        clock.daemon = True
        clock.start()
        try:
            response = super().send(request, **{**options, "stream": True})
            response._content = _read_body(response)
        except Exception as error:
            watch.check(self._timeout_s, error)
            raise
        finally:
            clock.cancel()
            _exchange.watch = None
        # A body whose end is that of its connection looks whole when the clock ended it.
        watch.check(self._timeout_s, None)
        return response


def _read_body(response: Any) -> bytes:
    """The body as it was sent: how much a packed one would take is not known before it is unpacked."""
    body = bytearray()
    try:
        while piece := response.raw.read(_PIECE_BYTES, decode_content=False):
            body += piece
            if len(body) > MOST_BYTES:
                response.close()
                raise RequestException(f"the answer has more than {MOST_BYTES} bytes")
    except HTTPError as error:
        raise RequestException(str(error)) from error
    coding = response.headers.get("Content-Encoding", "identity")
    if body and coding.lower() != "identity":
        raise RequestException(f"the answer is packed ({coding}), although it was asked for as it is")
    return bytes(body)


class _Watch:
    """Ends the connections of one exchange, also those that are opened when it is over."""

    def __init__(self) -> None:
        self._connections: list[Any] = []
        self._sockets: list[Any] = []
        self._is_over = False

    def note(self, connection: Any) -> None:
        self._connections.append(connection)
        # Kept by itself: a connection that will be closed lets go of its socket when the head is read.
        self._sockets.append(connection.sock)
        if self._is_over:
            self.end()

    def end(self) -> None:
        self._is_over = True
        for each in [*self._sockets, *(connection.sock for connection in self._connections)]:
            with suppress(OSError, TypeError):
                # The one of the plain socket: a TLS socket's own would wait for the other side. TLS within the TLS of
                # a proxy is no socket, but has one.
                socket.socket.shutdown(getattr(each, "socket", each), socket.SHUT_RDWR)

    def check(self, timeout_s: float, cause: Exception | None) -> None:
        if self._is_over:
            raise ReadTimeout(f"no whole answer within {timeout_s:g} s") from cause


def _watch_pools(manager: Any) -> None:
    manager.pool_classes_by_scheme = {
        scheme: type("WatchedPool", (pool,), {"ConnectionCls": _watch_class(pool.ConnectionCls)})
        for scheme, pool in manager.pool_classes_by_scheme.items()
    }


def _watch_class(connection: type) -> type:
    """A connection that the watch of its thread's exchange knows, from the moment at which it is opened."""

    def connect(self: Any) -> None:
        _note_connection(self)
        connection.connect(self)  # type: ignore[attr-defined]
        _note_connection(self)

    def request(self: Any, *arguments: Any, **options: Any) -> None:
        _note_connection(self)
        connection.request(self, *arguments, **options)  # type: ignore[attr-defined]

    return type("Watched", (connection,), {"connect": connect, "request": request})


def _note_connection(connection: Any) -> None:
    if (watch := getattr(_exchange, "watch", None)) is not None:
        watch.note(connection)
