"""Errors as HTTP answers: the one place where kinds become statuses."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from strandline.errors import Conflict, Corrupt, Internal, Invalid, NotFound, NotRetained, StrandlineError, Unavailable
from strandline.sinks.forward import protocol
from strandline.sinks.forward.refusal import Refusal

RETRY_AFTER_S = 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_STATUSES: dict[type[StrandlineError], int] = {
    NotFound: protocol.NOT_FOUND,
    NotRetained: protocol.GONE,
    Invalid: protocol.INVALID,
    Conflict: protocol.CONFLICT,
    Unavailable: protocol.UNAVAILABLE,
    Corrupt: protocol.FAULT,
    Internal: protocol.FAULT,
}


def answer(error: Exception) -> JSONResponse:
    """The answer to a request that failed."""
    status, said = _status_of(error)
    headers = {}
    if status in (protocol.BUSY, protocol.UNAVAILABLE):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == protocol.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": _to_json(said)}, status, headers)


def _status_of(error: Exception) -> tuple[int, StrandlineError]:
    if isinstance(error, Refusal):
        return error.status, error.error
    if isinstance(error, StrandlineError):
        return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), error
    if isinstance(error, HTTPException):
        kind = NotFound if error.status_code == protocol.NOT_FOUND else Invalid
        return error.status_code, kind(str(error.detail))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return protocol.MALFORMED, Invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if isinstance(error, ClientDisconnect):
        return protocol.MALFORMED, Invalid("the connection ended before the body did")
    if isinstance(error, OSError):
        return protocol.UNAVAILABLE, Unavailable(f"the lake could not be read or written: {error.strerror or error}")
    # An unexpected error goes to the server's log, not to the client.
    return protocol.FAULT, Internal("a fault in Strandline", hint="Please report it with the server's log.")


def _to_json(error: StrandlineError) -> dict[str, Any]:
    hint = {} if error.hint is None else {"hint": error.hint}
    told = {"kind": error.kind, "message": error.message, **hint, **error.fields}
    # Names from a body may have half of a surrogate pair, which cannot be encoded.
    text = _SURROGATE.sub("?", json.dumps(told, default=str, ensure_ascii=False))
    return cast("dict[str, Any]", json.loads(text))
