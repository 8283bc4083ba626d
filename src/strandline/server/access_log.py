"""The access log: one line for each request, with the name of its token and never the token."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "strandline.token"
"""Where a request keeps the name of its token."""
_QUIET_PATH = "/healthz"
_PATH_CHARACTERS = 200
_CUT_OFF = 499
_log = logging.getLogger("strandline.server")


class AccessLog:
    """Logs method, path, status, time, the bytes of the answer and the token's name. Looks at the health of the server
    are logged as `debug`: they come every second and mean nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status, sent = _CUT_OFF, 0

        async def count(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, count)
        except Exception:
            # The server answers 500 after this.
            status = 500
            raise
        finally:
            _log_request(scope, status, sent, (time.monotonic() - started_s) * 1000)


def _log_request(scope: Scope, status: int, sent: int, took_ms: float) -> None:
    # As it was sent, so that no character of it can forge a line.
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "backslashreplace")[:_PATH_CHARACTERS]
    token = scope.get(TOKEN)
    level = logging.DEBUG if path == _QUIET_PATH else logging.INFO
    line = "%s %s %d, %.0f ms, %d bytes%s"
    who = f", token {token}" if token else ""
    facts = {"method": scope["method"], "path": path, "status": status, "ms": round(took_ms, 1), "bytes": sent}
    _log.log(level, line, scope["method"], path, status, took_ms, sent, who, extra={**facts, "token": token})
