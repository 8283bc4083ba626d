"""Bounds for the answers of a REST catalog: one time limit from the connection to the last byte, and a size limit.

`requests`, which comes with `pyiceberg`, only bounds each wait for bytes, and accepts a body of any size."""

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
    """Runs one exchange at a time for each thread; a redirect is a new exchange."""

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
        # A body that ends with its connection looks complete when the clock closed the connection.
        watch.check(self._timeout_s, None)
        return response


def _read_body(response: Any) -> bytes:
    """The body as it was sent. Compressed ones are refused, since their real size is unknown beforehand."""
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
        raise RequestException(f"the answer is compressed ({coding}), although that was not asked for")
    return bytes(body)


class _Watch:
    """Ends the connections of one exchange, even those that it opens after its end."""

    def __init__(self) -> None:
        self._connections: list[Any] = []
        self._sockets: list[Any] = []
        self._is_over = False

    def note(self, connection: Any) -> None:
        self._connections.append(connection)
        # Kept separately: a connection that will be closed drops its socket when the head is read.
        self._sockets.append(connection.sock)
        if self._is_over:
            self.end()

    def end(self) -> None:
        self._is_over = True
        for each in [*self._sockets, *(connection.sock for connection in self._connections)]:
            with suppress(OSError, TypeError):
                # `shutdown` of the plain socket: that of a TLS socket would wait for the other side. TLS inside the
                # TLS of a proxy is no socket, but holds one.
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
    """A connection class whose objects register with the watch of their thread's exchange when they open."""

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
