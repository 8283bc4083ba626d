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

MOST_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_under_way = threading.local()


class BoundedAdapter(HTTPAdapter):
    """One exchange after the other for each thread; redirects are exchanges of their own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        manager: Any = self.poolmanager
        manager.pool_classes_by_scheme = {
            scheme: type("WatchedPool", (pool,), {"ConnectionCls": _watched(pool.ConnectionCls)})
            for scheme, pool in manager.pool_classes_by_scheme.items()
        }

    def send(self, request: Any, *_: Any, **options: Any) -> Any:
        watch = _under_way.watch = _Watch()
        clock = threading.Timer(self._timeout_s, watch.end)
        clock.daemon = True
        clock.start()
        try:
            response = super().send(request, **{**options, "stream": True})
            response._content = _read(response)
        except Exception as error:
            watch.check(self._timeout_s, error)
            raise
        finally:
            clock.cancel()
            _under_way.watch = None
        # A body whose end is that of its connection looks whole when the clock ended it.
        watch.check(self._timeout_s, None)
        return response


def _read(response: Any) -> bytes:
    body = bytearray()
    for piece in response.iter_content(_PIECE_BYTES):
        body += piece
        if len(body) > MOST_BYTES:
            response.close()
            raise RequestException(f"the answer has more than {MOST_BYTES} bytes")
    return bytes(body)


class _Watch:
    """Ends the connections of one exchange."""

    def __init__(self) -> None:
        self.connections: list[Any] = []
        self.sockets: list[socket.socket] = []
        self._is_over = False

    def end(self) -> None:
        self._is_over = True
        for each in [*self.sockets, *(connection.sock for connection in self.connections)]:
            with suppress(OSError, TypeError):
                # The one of the plain socket: a TLS socket's own would wait for the other side.
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def check(self, timeout_s: float, cause: Exception | None) -> None:
        if self._is_over:
            raise ReadTimeout(f"no whole answer within {timeout_s:g} s") from cause


def _watched(connection: type) -> type:
    """A connection that the watch of its thread's exchange knows, from the moment at which it is opened."""

    def connect(self: Any) -> None:
        _note(self)
        connection.connect(self)  # type: ignore[attr-defined]

    def request(self: Any, *arguments: Any, **options: Any) -> None:
        _note(self)
        connection.request(self, *arguments, **options)  # type: ignore[attr-defined]
        # Kept by itself: a connection that will be closed lets go of its socket when the head is read.
        if (watch := getattr(_under_way, "watch", None)) is not None and self.sock is not None:
            watch.sockets.append(self.sock)

    return type("Watched", (connection,), {"connect": connect, "request": request})


def _note(connection: Any) -> None:
    if (watch := getattr(_under_way, "watch", None)) is not None:
        watch.connections.append(connection)
