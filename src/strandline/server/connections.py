"""The server's connections: how many there are, and how long one may keep the server waiting.

A connection waits while it has no request under way: it is new, idle, or in the middle of a head. Where more come than
are served, the one that has waited longest goes; requests under way stay. What a storm does is logged in one line, not
in one for each connection.
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
"""How long the head of a request may take; also the rest of a body that was answered before it was read."""
IDLE_S: Final = 75
"""How long a connection may be idle between two requests."""
BODY_S: Final = 15.0
"""How long a body may keep the server waiting, all its pauses together …"""
SLOWEST_BYTES_S: Final = 8 << 10
"""… and a second longer for so many bytes of it."""
ANSWER_S: Final = 60.0
"""How long a client may leave an answer unread that does not fit into the buffers on its way."""
SPARE: Final = 256
"""So many connections more are served than requests: for those that wait, and for `GET /healthz`."""

_CLOSE_S = 5.0
_QUIET_S = 10.0
_OTHER_FILES = 256
_LEAST = 16
_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
_log = logging.getLogger("uvicorn.error")


class ConnectionLimit:
    """What the connections of a server share."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting: dict[ClientConnection, None] = {}

    def enter(self, door: ClientConnection, count: int) -> bool:
        """Whether a new connection is served; one that waits makes room for it."""
        if count <= self.most:
            return True
        _log.warning("Too many connections: %d are served at once.", self.most)
        if not self.waiting:
            return False
        next(iter(self.waiting)).leave()
        return True


class ClientConnection(H11Protocol):
    """One connection. `protocol_for` binds it to the others of its server."""

    doors: ConnectionLimit
    _clock: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.doors.enter(self, len(self.connections)):
            self._wait(HEAD_S)
        else:
            transport.write(_FULL)
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._work()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

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

    def leave(self) -> None:
        """Make room for another connection."""
        self.doors.waiting.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()

    def _look(self) -> None:
        """Set the clock for what is waited for now."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._work()
            return
        is_in_head = bool(self.conn.trailing_data[0]) or self.conn.their_state is h11.SEND_BODY
        self._wait(HEAD_S if is_in_head else IDLE_S)

    def _wait(self, length_s: float) -> None:
        """Wait so long for a request; not longer than it would have been before, whatever came meanwhile."""
        until_s = self.loop.time() + length_s
        if self._clock is not None and self._clock.when() <= until_s:
            return
        self._work()
        self.doors.waiting[self] = None
        self._clock = self.loop.call_at(until_s, self._end)

    def _work(self) -> None:
        self.doors.waiting.pop(self, None)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(_LATE)
        self._close()

    def _close(self) -> None:
        """End the connection, also one whose client leaves unread what is on its way to it."""
        self._work()
        self.transport.close()
        self.loop.call_later(_CLOSE_S, self.transport.abort)


def protocol_for(requests: int) -> type[ClientConnection]:
    """The protocol of a server that has so many requests under way at most."""
    return type("ServedDoor", (ClientConnection,), {"doors": ConnectionLimit(_affordable(requests + SPARE))})


def _affordable(wanted: int) -> int:
    """As many connections as the system lets one process have, with room for its other files."""
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


async def paced(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a body; 408 when they keep the server waiting for too long."""
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


class OneLine(logging.Filter):
    """Lets a line pass once in a while, however often it is written, and tells how often that was."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
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


def told_once(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop cannot do, such as to accept a connection when the process has no file left for it: the loop
    tells of each one that it tries in vain, thousands in a second."""
    if "accept" in str(context.get("message")):
        _log.error("No connection can be accepted: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)
