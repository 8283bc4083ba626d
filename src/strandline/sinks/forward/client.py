"""One request to a receiver: how often it is repeated, how long to wait, and what an answer means.

A request is repeated as it is, under the same key, while the receiver is busy or silent; the sink's
patience bounds the waiting, counted from the first failure. After giving up or a crash, the request may be sent again:
a receiver that has the rows already answers as if it had just taken them.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self

import strandline
from strandline.crash import crash_point
from strandline.errors import Invalid, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.scrub import scrub_text
from strandline.sinks.forward.connection import NoAnswer, UntrustedServer, Wire
from strandline.sinks.forward.endpoint import Endpoint, Secrets
from strandline.sinks.forward.protocol import AGAIN, DECIDED, UNAUTHORIZED

_AGENT = f"strandline/{strandline.__version__}"
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 10.0
_LONGEST_ASKED_S = 60.0
_JITTER = 0.25
_SECONDS = re.compile(r"0*(\d{1,9})(\.\d{1,9})?\Z", re.ASCII)
_MANY_SECONDS = re.compile(r"\d+\Z", re.ASCII)


@dataclass(frozen=True)
class Reply:
    """The answer of a receiver. `body` is its beginning. It may repeat the `secrets` of the request."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    secrets: Sequence[str] = field(default=(), repr=False)

    @property
    def is_ack(self) -> bool:
        return 200 <= self.status < 300

    @property
    def document(self) -> Any:
        """The body as JSON; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def error(self) -> Mapping[str, Any]:
        """The `error` object of the forward protocol."""
        document = self.document
        error = document.get("error") if isinstance(document, dict) else None
        return error if isinstance(error, dict) else {}

    @property
    def message(self) -> str:
        message = self.error.get("message")
        text = message if isinstance(message, str) else self.body.decode("utf-8", "replace")
        return scrub_text(text, self.secrets) or f"HTTP status {self.status}"

    @property
    def location(self) -> str | None:
        location = self.headers.get("location")
        # The query may hold secrets of others.
        return None if location is None else scrub_text(location.partition("?")[0], self.secrets)

    @property
    def row(self) -> int | None:
        """The number of the refused row, if the answer names one."""
        row = self.error.get("row")
        return row if type(row) is int else None


class Connection:
    """A connection to a receiver, kept open from one request to the next; for one thread.

    `secrets` were read when the sink was opened; they are read again when the receiver rejects them.
    `requests`, `retries` and `bytes` count what was sent."""

    def __init__(self, sink: Endpoint, secrets: Secrets) -> None:
        self.requests = self.retries = self.bytes = 0
        self._sink = sink
        self._secrets = secrets
        self._wire = Wire(timeout_s=sink.timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """The answer to one request: rows were taken (2xx), refused (400, 422), too many (413), or do not follow the
        receiver's rows (409, 410). Any other answer is raised."""
        attempts, is_refreshed, failing_since_s = 0, False, math.inf
        while True:
            attempts += 1
            crash_point("sink.chunk_sending")
            self.requests += 1
            self.bytes += len(body)
            answer, fault = self._exchange_once("POST", self._sink.url, headers, {}, content=body)
            if answer is not None and answer.status == UNAUTHORIZED and not is_refreshed:
                is_refreshed = True
                self._refresh_secrets()
                self.retries += 1
                continue
            if answer is not None and answer.status not in AGAIN:
                if answer.is_ack or answer.status in DECIDED:
                    return answer
                raise self.unexpected_answer(answer)
            now_s = time.monotonic()
            failing_since_s = min(failing_since_s, now_s)
            pause_s = wait_s(answer, attempts)
            if now_s - failing_since_s + pause_s > self._sink.patience_s:
                raise self._no_answer(answer, fault, attempts)
            time.sleep(pause_s)
            self.retries += 1

    def ask_positions(self, parameters: Mapping[str, str]) -> Reply:
        """The receiver's answer to a request for positions, sent once; `Unavailable` when it is busy or silent."""
        url = f"{self._sink.url.rstrip('/')}/positions"
        answer, fault = self._exchange_once("GET", url, {"Accept": "application/json"}, parameters)
        if answer is not None and answer.status == UNAUTHORIZED:
            self._refresh_secrets()
            answer, fault = self._exchange_once("GET", url, {"Accept": "application/json"}, parameters)
        if answer is None or answer.status in AGAIN:
            raise self._no_answer(answer, fault, 1)
        return answer

    def unexpected_answer(self, answer: Reply) -> Invalid:
        """The error for an answer that needs a person."""
        sink = self._sink
        location = answer.location
        hint = "Nothing is lost: once the sink or the receiver is corrected, the next tick sends the rows."
        if answer.status == UNAUTHORIZED:
            hint = _token_hint(sink.token)
        if location is not None:
            hint = f"Redirects are not followed. Point the sink at the right place: it names {location}"
        return Invalid(
            f"{sink.url} answered {answer.status}: {answer.message}",
            hint=hint,
            url=sink.url,
            status=answer.status,
            location=location,
        )

    def _exchange_once(
        self, method: str, url: str, headers: Mapping[str, str], params: Mapping[str, str], *, content: bytes = b""
    ) -> tuple[Reply | None, str]:
        """The answer and "", or None and the reason why there is none."""
        known = {name.lower() for name in self._secrets.headers}
        agent = {} if "user-agent" in known else {"User-Agent": _AGENT}
        headers = {**agent, **self._secrets.headers, **headers}
        params = {**self._secrets.params, **params}
        try:
            status, told, body = self._wire.exchange(method, url, headers, params, content)
        except UntrustedServer as error:
            raise Invalid(
                f"{self._sink.url} was not asked: {scrub_text(str(error), self._secrets.texts)}",
                hint="Check the address. If its certificate comes from an authority of your own, name the file with the"
                " authority's certificate in the variable SSL_CERT_FILE. Then the next tick sends the rows.",
                url=self._sink.url,
            ) from error
        except NoAnswer as error:
            return None, scrub_text(str(error), self._secrets.texts)
        return Reply(status, told, body, self._secrets.texts), ""

    def _refresh_secrets(self) -> None:
        try:
            self._secrets = self._sink.secrets()
        except StrandlineError as error:
            raise Invalid(
                f"{self._sink.url} answered 401, and reading the token again failed: {error.message}",
                hint=error.hint,
                url=self._sink.url,
                status=UNAUTHORIZED,
            ) from error

    def _no_answer(self, answer: Reply | None, fault: str, attempts: int) -> Unavailable:
        said = f"answered {answer.status}: {answer.message}" if answer is not None else f"did not answer: {fault}"
        times = "once" if attempts == 1 else f"{attempts} times"
        return Unavailable(
            f"{self._sink.url} was asked {times} and {said}",
            hint="Nothing is lost and nothing counts twice: the next tick continues where this one stopped.",
            url=self._sink.url,
            status=None if answer is None else answer.status,
            attempts=attempts,
        )


def _token_hint(token: str | None) -> str:
    """The hint for a rejected token; it names the token's source and never the token."""
    ways = "strandline sink add … --token env:NAME, or HttpSink(url, token='env:NAME')"
    if token is None:
        return f"The sink has no token. Give it one: {ways}."
    read = f"that was read from {token} " if secret.is_reference(token) else ""
    return f"The token {read}is not accepted. Put a good one there, or name another place: {ways}."


def wait_s(answer: Reply | None, attempts: int) -> float:
    """How long to wait after this many attempts."""
    asked_s = 0.0 if answer is None else _retry_after_s(answer.headers.get("retry-after", ""))
    if asked_s > 0:
        return min(asked_s, _LONGEST_ASKED_S)
    # Also for a receiver that asks for no wait at all: that would be a busy loop.
    ladder_s = min(_FIRST_WAIT_S * 2.0 ** min(attempts - 1, 16), _LONGEST_WAIT_S)
    return ladder_s * random.uniform(1 - _JITTER, 1 + _JITTER)


def _retry_after_s(text: str) -> float:
    """The seconds of a `Retry-After`, which may be a date; 0 when it cannot be read."""
    text = text.strip()
    if _SECONDS.match(text):
        return float(text)
    if _MANY_SECONDS.match(text):
        return math.inf
    try:
        moment = parsedate_to_datetime(text)
        return (moment.replace(tzinfo=moment.tzinfo or dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
