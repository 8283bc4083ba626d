"""An HTTP endpoint that takes a table's changes by the forward protocol: another lake, or a program that honours
`Idempotency-Key`.

A Strandline receiver keeps the producer's position with the rows, so any cut is safe to repeat. For every other
receiver the rule that cuts the batch is saved with the intent, and each chunk has a key made from its positions.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from strandline.errors import Conflict, Invalid
from strandline.model import duration, secret
from strandline.sinks.contract import CHANGES, Batch, Producer, Result
from strandline.sinks.forward import encode
from strandline.sinks.forward.chunks import CutRule
from strandline.sinks.forward.client import Connection
from strandline.sinks.forward.encode import ARROW, FORMATS, NDJSON
from strandline.sinks.forward.endpoint import Secrets
from strandline.sinks.forward.lane import HttpLane, describe_producer, held_positions, outlived_conflict
from strandline.sinks.forward.protocol import CONFLICT, GONE, KEY_HEADER, REPLAY_HEADER

STRANDLINE, ANY = "strandline", "any"

_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_OWN_HEADERS = {
    "accept", "connection", "content-encoding", "content-length", "content-type", "host", "idempotency-key",
    "strandline-chunk", "strandline-replay", "transfer-encoding",
}  # fmt: skip
_MOST_LANES = 256
_MOST_ROWS = 1_000_000
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class HttpSink:
    """Changes as requests to `url`.

    `receiver` is "strandline" for `strandline serve`, "any" for everything else. `token` and the values of `headers`
    and of `params`, the query of the address, may be references (`env:NAME`, `file:PATH`). Only references are kept
    with the definition; they are no part of the destination's identity. A chunk holds at most `chunk_rows` rows and
    `chunk_bytes` bytes. `patience` is how long a failing request is repeated; `timeout` bounds the opening of a
    connection, and then each request with its whole answer."""

    kind: ClassVar[str] = "http"
    access: ClassVar[tuple[str, ...]] = ("token", "headers", "params", "patience", "timeout")
    is_ordered: ClassVar[bool] = True
    mode: ClassVar[str] = CHANGES
    keeps_rows: ClassVar[bool] = False

    url: str
    token: str | None = field(default=None, kw_only=True, repr=False)
    receiver: str = field(default=STRANDLINE, kw_only=True)
    format: str | None = field(default=None, kw_only=True)
    lanes: int = field(default=4, kw_only=True)
    chunk_rows: int = field(default=5000, kw_only=True)
    chunk_bytes: int = field(default=4 << 20, kw_only=True)
    patience: str | float | dt.timedelta = field(default="60s", kw_only=True)
    timeout: str | float | dt.timedelta = field(default="30s", kw_only=True)
    headers: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False, hash=False)
    params: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False, hash=False)

    def __post_init__(self) -> None:
        if self.receiver not in (STRANDLINE, ANY):
            raise Invalid(f"receiver is {self.receiver!r}; expected {STRANDLINE!r} or {ANY!r}")
        if self.format is not None and self.format not in FORMATS:
            raise Invalid(f"format is {self.format!r}; expected one of: {', '.join(FORMATS)}")
        _check_number("lanes", self.lanes, _MOST_LANES)
        _check_number("chunk_rows", self.chunk_rows, _MOST_ROWS)
        _check_number("chunk_bytes", self.chunk_bytes, _MOST_BYTES)
        if not duration.seconds(self.timeout, "timeout"):
            raise Invalid("timeout is 0; expected a length of time such as 30s")
        if self.token is not None:
            _check_secret("token", self.token)
        normal = {
            "url": _normalize_url(self.url, self.receiver),
            "patience": duration.to_text(duration.seconds(self.patience, "patience")),
            "timeout": duration.to_text(duration.seconds(self.timeout, "timeout")),
            "headers": _check_headers(self.headers, has_token=self.token is not None),
            "params": _check_params(self.params, self.receiver),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @property
    def destination(self) -> str:
        return self.url

    @property
    def keeps_positions(self) -> bool:
        """Whether the receiver knows rows by their positions, or requests by their keys."""
        return self.receiver == STRANDLINE

    @property
    def body_format(self) -> str:
        return self.format or (ARROW if self.keeps_positions else NDJSON)

    @property
    def patience_s(self) -> float:
        return duration.seconds(self.patience)

    @property
    def timeout_s(self) -> float:
        return duration.seconds(self.timeout)

    def secrets(self) -> Secrets:
        """The user's headers and parameters, read again; `Invalid` when one cannot be found."""
        found = _resolve_secrets(self.headers, "header", self.url)
        if self.token is not None:
            found["Authorization"] = f"Bearer {secret.resolve(self.token, f'token of {self.url}')}"
        for name, text in found.items():
            if not _is_sendable(text):
                raise Invalid(f"the header {name} for {self.url} holds characters that are not allowed in a header")
        return Secrets(found, _resolve_secrets(self.params, "parameter", self.url))

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "token": secret.reference(self.token),
            "receiver": self.receiver,
            "format": self.format,
            "lanes": self.lanes,
            "chunk_rows": self.chunk_rows,
            "chunk_bytes": self.chunk_bytes,
            "patience": self.patience,
            "timeout": self.timeout,
            "headers": _references(self.headers),
            "params": _references(self.params),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        return cls(**facts)

    def open(self, producer: Producer) -> HttpDelivery:
        return HttpDelivery(self, producer)


class HttpDelivery:
    def __init__(self, sink: HttpSink, producer: Producer) -> None:
        self._sink = sink
        self._producer = producer
        self._secrets: Secrets | None = None
        self._connection: Connection | None = None
        self._positions: dict[int, tuple[int, int]] | None = None

    def is_delivered(self, batch: Batch) -> bool:
        """A receiver that keeps positions is asked once for all batches of this delivery. Any other receiver cannot
        say; it recognises repeated chunks by their keys."""
        self._secrets = self._sink.secrets()
        if not self._sink.keeps_positions:
            return False
        if self._positions is None:
            self._positions = held_positions(self._open_connection(), self._sink, self._producer)
        held = {vnode: self._positions.get(vnode, (0, 0)) for vnode in batch.vnodes}
        whole = (batch.upto + 1, 0)
        if batch.end.has_history and all(position == whole for position in held.values()):
            return True
        # A repeated batch may be there in part; nothing after it was ever sent.
        ahead = [
            vnode
            for vnode, position in held.items()
            if position > (whole if batch.is_replay else batch.first_place(vnode))
        ]
        if ahead:
            raise self._ahead_conflict(batch, ahead[0], held[ahead[0]])
        return False

    def _ahead_conflict(self, batch: Batch, vnode: int, found: tuple[int, int]) -> Conflict:
        return Conflict(
            f"sink {self._producer.consumer!r} is at seq {batch.after}, but {self._sink.url} has vnode {vnode} up to"
            f" seq {found[0]}, index {found[1]}: the lake and its state were restored from a copy, or"
            " the receiver is wrong",
            hint=f"Nothing was sent. To send the table again: strandline mark reset {self._producer.consumer}",
            consumer=self._producer.consumer,
            url=self._sink.url,
            expected=batch.after,
            found=found[0],
        )

    def cuts(self) -> Any:
        """A receiver that knows chunks by their keys must get the same chunks again."""
        return None if self._sink.keeps_positions else CutRule(self._sink.chunk_rows, self._sink.chunk_bytes).to_dict()

    def lane(self, batch: Batch) -> HttpLane:
        secrets = self._sink.secrets() if self._secrets is None else self._secrets
        return HttpLane(self._sink, self._producer, batch, secrets)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        """Nothing is left to do: what is acknowledged is durable."""

    def resend(self, id: str, rows: pa.RecordBatch, as_of: int) -> None:
        """Send the rows of a dead letter, all or none; `Unavailable` when the receiver is busy or silent. A receiver
        that keeps positions refuses rows that may be older than its own: an abandoned request may still arrive."""
        data, headers = encode.encode(rows, self._sink.body_format)
        key = hashlib.sha256(f"{self._producer.generation}/{id}/".encode() + data).hexdigest()
        headers = {**headers, KEY_HEADER: key}
        if self._sink.keeps_positions:
            headers[REPLAY_HEADER] = json.dumps({**describe_producer(self._producer), "as_of": as_of})
        answer = self._open_connection().post(data, headers)
        if answer.status == GONE and self._sink.keeps_positions:
            raise outlived_conflict(self._producer, self._sink, answer)
        if not answer.is_ack:
            is_late = answer.status == CONFLICT and self._sink.keeps_positions
            kind = Conflict if answer.status == CONFLICT else Invalid
            raise kind(
                f"{self._sink.url} refuses the rows again ({answer.status}): {answer.message}",
                hint=f"The letter stays. To read its rows anew and send them: strandline deadletter replay {id[:8]}"
                if is_late
                else None,
                consumer=self._producer.consumer,
                url=self._sink.url,
                status=answer.status,
            )

    def position(self, vnodes: int) -> Mapping[int, int] | None:
        """The last seq of each vnode that the receiver has completely."""
        if not self._sink.keeps_positions:
            return None
        self._positions = held_positions(self._open_connection(), self._sink, self._producer)
        return {vnode: max(0, seq - 1) for vnode, (seq, _) in self._positions.items() if vnode < vnodes}

    def partial_positions(self, vnodes: int) -> Mapping[int, tuple[int, int]]:
        """The vnodes that the receiver has up to an index inside a seq; call it after `position`. Only the interrupted
        batch knows whether that seq is a commit or a first load."""
        return {v: place for v, place in (self._positions or {}).items() if v < vnodes and place[1]}

    def remaining_cuts(self, vnodes: Sequence[int], after: int, upto: int) -> Any:
        """A rule that continues at the first vnode that the receiver does not have completely. Refused rows are tried
        again: their dead letters may be lost."""
        held = self._positions or {}
        places = ((vnode, *held.get(vnode, (after + 1, 0))) for vnode in sorted(vnodes))
        done = next((place for place in places if place[1:] < (upto + 1, 0)), None)
        return CutRule(self._sink.chunk_rows, self._sink.chunk_bytes, done).to_dict()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def newest_life(self) -> int:
        if not self._sink.keeps_positions:
            return 0
        document = self._open_connection().ask_positions({"sink": self._producer.sink}).document
        life = document.get("life") if isinstance(document, dict) else None
        return life if type(life) is int else 0

    def _open_connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._sink, self._sink.secrets() if self._secrets is None else self._secrets)
        return self._connection


def _check_number(name: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise Invalid(f"{name} is {value!r}; expected a number from 1 to {most}")


def _check_secret(role: str, text: object) -> None:
    if not isinstance(text, str) or not text or not _is_sendable(text):
        raise Invalid(
            f"the {role} is not a text that a header can hold",
            hint="Name where it is: 'env:NAME' or 'file:PATH'.",
        )


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _normalize_url(url: object, receiver: str) -> str:
    """The address in one spelling. Errors do not repeat it, since it may hold a password."""
    expected = "Expected an address that begins with http:// or https://, such as https://host/ingest/messages"
    if not isinstance(url, str) or not url or not url.isprintable() or " " in url:
        raise Invalid("the url is not an address", hint=expected)
    try:
        parts = urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme
    except ValueError as error:
        raise Invalid(f"the url is not an address: {error}", hint=expected) from error
    if "@" in parts.netloc:
        raise Invalid("the url holds credentials", hint="Leave them out; give a token or headers instead.")
    if "?" in url:
        raise Invalid(
            "the url has a query, which would be written down with it",
            hint="Leave out the part from '?' on; give it as params={'code': 'env:NAME'}.",
        )
    if scheme not in _PORTS or not host:
        raise Invalid(f"the url {url!r} has the scheme {scheme!r} and the host {host!r}", hint=expected)
    if parts.fragment or url.endswith("#"):
        raise Invalid(f"the url {url!r} has a fragment, which is never sent", hint="Leave out the part from '#' on.")
    place = f"[{host}]" if ":" in host else host
    place = place if port in (None, _PORTS[scheme]) else f"{place}:{port}"
    path = parts.path.rstrip("/") if receiver == STRANDLINE else parts.path
    return urlunsplit((scheme, place, path or "/", "", ""))


def _check_headers(headers: object, *, has_token: bool) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise Invalid(f"headers is a {type(headers).__name__}; expected names and texts, such as {{'X-Team': 'data'}}")
    taken = _OWN_HEADERS | ({"authorization"} if has_token else set())
    for name, text in headers.items():
        if not isinstance(name, str) or not _NAME.match(name):
            raise Invalid(f"headers names {name!r}, which is not a valid header name")
        if name.lower() in taken:
            raise Invalid(f"the header {name} is set by the sink itself", hint="Leave it out.")
        _check_secret(f"header {name}", text)
    if len({name.lower() for name in headers}) != len(headers):
        raise Invalid("headers names one header twice")
    return dict(headers)


def _check_params(params: object, receiver: str) -> dict[str, str]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise Invalid(f"params is a {type(params).__name__}; expected names and texts, such as {{'code': 'env:NAME'}}")
    for name, text in params.items():
        if not isinstance(name, str) or not name:
            raise Invalid(f"params names {name!r}, which is not a valid parameter name")
        if receiver == STRANDLINE and name in ("sink", "life"):
            raise Invalid(f"the parameter {name} is set by the sink itself", hint="Leave it out.")
        if not isinstance(text, str) or not text:
            raise Invalid(
                f"the parameter {name} is not a text", hint="Give it, or name where it is: 'env:NAME' or 'file:PATH'."
            )
    return dict(params)


def _resolve_secrets(texts: Mapping[str, str] | None, role: str, url: str) -> dict[str, str]:
    return {name: secret.resolve(text, f"{role} {name} of {url}") for name, text in (texts or {}).items()}


def _references(texts: Mapping[str, str] | None) -> dict[str, str | None]:
    return {name: secret.reference(text) for name, text in (texts or {}).items()}
