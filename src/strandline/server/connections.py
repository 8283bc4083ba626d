"""The server's connections: how many there are, and how long one may keep the server waiting.

A connection waits while it has no complete head of a request: it is new, idle, or still sends the head. When there are
too many connections, the one that has waited longest is closed; running requests stay. Many equal log lines become one.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from strandline.sinks.forward.refusal import too_slow

HEAD_S: Final = 10.0
"""The time for the head of a request, and for the rest of a body that was answered before it was read."""
IDLE_S: Final = 75
"""The time that a connection may be idle between two requests."""
BODY_S: Final = 15.0
"""The time that a body may keep the server waiting, all its pauses together …"""
SLOWEST_BYTES_S: Final = 8 << 10
"""… plus one second for this many bytes of it."""
ANSWER_S: Final = 60.0
"""The time that a client may leave an answer unread, when the answer does not fit into the network buffers."""
SPARE: Final = 256
"""The number of connections beyond the limit of requests: for waiting ones, and for `GET /healthz`."""

_CLOSE_S = 5.0
_QUIET_S = 10.0
_OTHER_FILES = 256
_LEAST = 16
_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
_log = logging.getLogger("strandline.server")


class ConnectionLimit:
    """The limit that the connections of a server share."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting: dict[ClientConnection, None] = {}

    def admit(self, count: int) -> bool:
        """Whether a new connection is served; a waiting one is closed for it if necessary."""
        if count <= self.most:
            return True
        _log.warning("Too many connections: %d are served at once.", self.most)
        if not self.waiting:
            return False
        next(iter(self.waiting)).make_room()
        return True


class ClientConnection(H11Protocol):
    """One connection. `protocol_for` gives it the limit of its server."""

    limit: ConnectionLimit
    _clock: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit.admit(len(self.connections)):
            self._start_clock(HEAD_S)
        else:
            transport.write(_FULL)
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._set_clock()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_clock()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(ANSWER_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close()

    def make_room(self) -> None:
        """Make room for another connection."""
        self.limit.waiting.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def _set_clock(self) -> None:
        """Set or stop the clock, depending on what the server waits for now."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_clock()
            return
        is_in_head = bool(self.conn.trailing_data[0]) or self.conn.their_state is h11.SEND_BODY
        self._start_clock(HEAD_S if is_in_head else IDLE_S)

    def _start_clock(self, length_s: float) -> None:
        """Wait at most this long for a request. A clock that ends earlier stays."""
        until_s = self.loop.time() + length_s
        if self._clock is not None and self._clock.when() <= until_s:
            return
        self._stop_clock()
        self.limit.waiting[self] = None
        self._clock = self.loop.call_at(until_s, self._time_out)

    def _stop_clock(self) -> None:
        self.limit.waiting.pop(self, None)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_out(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(_LATE)
        self._close()

    def _close(self) -> None:
        """Close the connection, also when its client does not read the rest."""
        self._stop_clock()
        self.transport.close()
        self.loop.call_later(_CLOSE_S, self.transport.abort)


def protocol_for(requests: int) -> type[ClientConnection]:
    """The protocol of a server that runs at most this many requests at once."""
    return type(
        "LimitedConnection", (ClientConnection,), {"limit": ConnectionLimit(_affordable_connections(requests + SPARE))}
    )


def _affordable_connections(wanted: int) -> int:
    """The wanted number of connections, or fewer if the system allows the process fewer open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        raised = soft
    return max(_LEAST, raised - _OTHER_FILES)


async def limit_pace(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body; 408 when they arrive too slowly."""
    waited_s, received = 0.0, 0
    while True:
        since_s = time.monotonic()
        try:
            async with asyncio.timeout(BODY_S + received / SLOWEST_BYTES_S - waited_s):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise too_slow(f"after {received} bytes the body kept the server waiting for too long") from error
        waited_s += time.monotonic() - since_s
        received += len(piece)
        yield piece


class RepeatFilter(logging.Filter):
    """Logs a repeated warning only once in a while, with the number of repeats."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        cause = record.exc_info[0] if record.exc_info else None
        line = f"{record.msg} {cause}"[:200]
        since_s, count = self._seen.get(line, (-_QUIET_S, 0))
        now_s = time.monotonic()
        if now_s - since_s < _QUIET_S:
            self._seen[line] = since_s, count + 1
            return False
        self._seen = {each: seen for each, seen in self._seen.items() if now_s - seen[0] < _QUIET_S}
        self._seen[line] = now_s, 0
        if count:
            record.msg = f"{record.getMessage()} ({count} times more before)"
            record.args = ()
        return True


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop. When the process has no files left, the loop reports every connection that it
    cannot accept, thousands per second; these become one line."""
    if "accept" in str(context.get("message")):
        _log.error("No connection can be accepted: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)
