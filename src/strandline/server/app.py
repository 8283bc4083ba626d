"""The server's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import strandline
from strandline.errors import StrandlineError
from strandline.lake import Lake
from strandline.server.access_log import TOKEN, AccessLog
from strandline.server.auth import Auth
from strandline.server.connections import limit_pace
from strandline.server.errors import answer
from strandline.server.receiver import Limits, Receiver
from strandline.sinks.forward.refusal import Refusal
from strandline.state.tokens import Role, Tokens

_FAILURES = (StrandlineError, Refusal, HTTPException, RequestValidationError, ClientDisconnect, OSError, Exception)


def make_app(
    lake: Lake,
    *,
    tokens: Tokens | None = None,
    is_public: bool = False,
    body_bytes: int = Limits.body_bytes,
    queue_bytes: int = Limits.queue_bytes,
    queue_requests: int = Limits.queue_requests,
    commit_rows: int = Limits.commit_rows,
    linger_ms: float = Limits.linger_ms,
    body_rows: int = Limits.body_rows,
    body_columns: int = Limits.body_columns,
    table_columns: int = Limits.table_columns,
    evolve: bool = True,
) -> FastAPI:
    """The server of a lake. Requests need a token if it `is_public`, or if the lake has ever had a token."""
    limits = Limits(
        body_bytes, queue_bytes, queue_requests, commit_rows, linger_ms, body_rows, body_columns, table_columns
    )
    receiver = Receiver(lake, limits, evolve=evolve)
    auth = Auth(tokens, is_public=is_public)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await receiver.close()

    app = FastAPI(title="Strandline", version=strandline.__version__, docs_url=None, redoc_url=None, lifespan=lifespan)

    async def failed(_: Request, error: Exception) -> JSONResponse:
        return answer(error)

    app.add_middleware(AccessLog)
    for kind in _FAILURES:
        app.add_exception_handler(kind, failed)

    async def allow(request: Request, *roles: Role) -> None:
        request.scope[TOKEN] = await auth.check(request.headers.get("Authorization"), roles)

    @app.post("/ingest/{table}")
    async def ingest(table: str, request: Request) -> JSONResponse:
        """Apply the rows of the body to a table: see the forward protocol."""
        await allow(request, "writer")
        outcome = await receiver.ingest(table, request.headers, limit_pace(request.stream()))
        return JSONResponse(outcome.to_dict())

    @app.get("/ingest/{table}/positions")
    async def positions(table: str, sink: str, request: Request, life: int | None = None) -> JSONResponse:
        """The positions of one life of a sink in a table; without `life`, of the newest one."""
        await allow(request, "writer", "reader")
        found, places = await receiver.positions(table, sink, life)
        return JSONResponse({"sink": sink, "life": found, "positions": places})

    @app.get("/status")
    async def status(request: Request) -> JSONResponse:
        """What the lake holds."""
        await allow(request, "reader")
        return JSONResponse((await run_in_threadpool(lake.status)).to_dict())

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        """Whether the server runs."""
        return JSONResponse({"status": "ok"})

    return app
