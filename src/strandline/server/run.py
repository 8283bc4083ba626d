"""Run the server in this process.

SIGTERM and Ctrl-C end it: new requests are refused, running ones are committed and answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from strandline.errors import Invalid, Unavailable
from strandline.lake import Lake
from strandline.server.app import make_app
from strandline.server.connections import IDLE_S, RepeatFilter, log_loop_error, protocol_for
from strandline.server.receiver import Limits
from strandline.state.tokens import Tokens

HOST = "127.0.0.1"
PORT = 8321
_STOP_S = 30
_BACKLOG = 2048


def serve(
    lake: Lake,
    *,
    tokens: Tokens | None,
    host: str = HOST,
    port: int = PORT,
    on_listening: Callable[[str], None],
    **limits: Any,
) -> None:
    """Serve a lake until a signal ends it. `on_listening` gets the address; `limits` are those of `make_app`. Without
    a token only this machine is served."""
    is_public = not _is_loopback(host)
    _check_tokens(tokens, host, is_public=is_public)
    app = make_app(lake, tokens=tokens, is_public=is_public, **limits)
    with _bind_socket(host, port) as listener:
        config = uvicorn.Config(
            app,
            http=protocol_for(limits.get("queue_requests", Limits.queue_requests)),
            # Its lines go where ours go; see `AccessLog` for the access log.
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        server = _Server(config, lambda: on_listening(_format_url(host, listener.getsockname()[1])))
        quiet, logs = RepeatFilter(), [logging.getLogger(name) for name in ("strandline.server", "uvicorn.error")]
        for log in logs:
            log.addFilter(quiet)
        before = {each: signal.signal(each, server.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            # At its end it raises the signal again; our handlers treat this as a second request to stop.
            server.run(sockets=[listener])
        finally:
            for log in logs:
                log.removeFilter(quiet)
            for each, handler in before.items():
                signal.signal(each, handler)


def _check_tokens(tokens: Tokens | None, host: str, *, is_public: bool) -> None:
    """`Invalid` when the lake has no token, unless only this machine is served and the lake has never had one."""
    if tokens is not None and tokens.all():
        return
    if is_public:
        why = f"other machines can reach {host}, and this lake has no tokens"
    elif tokens is not None and tokens.were_made():
        why = "all tokens of this lake were revoked, so nobody could be served"
    else:
        return
    raise Invalid(why, hint="Create one first: strandline token add NAME --role writer", host=host)


class _Server(uvicorn.Server):
    """A server with a callback for the moment when it listens."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        await super().startup(sockets=sockets)
        if self.started:
            self._on_listening()


def _is_loopback(host: str) -> bool:
    return bool(host) and all(ipaddress.ip_address(found[4][0]).is_loopback for found in _resolve_host(host, 0))


def _bind_socket(host: str, port: int) -> socket.socket:
    family, _, _, _, address = _resolve_host(host, port)[0]
    # With IPPROTO_TCP the event loop sends small answers at once; otherwise they wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"the server cannot listen on {_format_url(host, port)}: {error.strerror}",
            hint="Choose another port with --port, or any free one with --port 0.",
            host=host,
            port=port,
        ) from error


def _resolve_host(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Invalid(f"{host!r} is not an address of this machine: {error.strerror}", host=host) from error


def _format_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
