"""The words of the forward protocol, once for both ends: headers, body types, and what each status means.

A sender acts by the status alone. `REFUSED` is final: the rows become dead letters. `TOO_LARGE` asks for fewer rows,
`AGAIN` for another attempt. After any other status the sender keeps its rows, and a person has to act.
"""

from __future__ import annotations

VERSION = 1
CHUNK_HEADER = "Strandline-Chunk"
REPLAY_HEADER = "Strandline-Replay"
KEY_HEADER = "Idempotency-Key"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
NDJSON_TYPE = "application/x-ndjson"
INDEX = "_index"
"""The column with a row's number within its seq and vnode."""
INDEX_BITS = 31
INDEXES = 1 << INDEX_BITS
SEQS = 1 << 32

MALFORMED, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
TOO_SLOW, CONFLICT, GONE, NOT_READY, TOO_LARGE, UNSUPPORTED = 408, 409, 410, 412, 413, 415
INVALID, BUSY, FAULT, UNAVAILABLE = 422, 429, 500, 503
REFUSED = frozenset({MALFORMED, INVALID})
AGAIN = frozenset({TOO_SLOW, 425, BUSY, FAULT, 502, UNAVAILABLE, 504})
DECIDED = REFUSED | {CONFLICT, GONE, TOO_LARGE}
"""Statuses that a sender handles without a person."""
