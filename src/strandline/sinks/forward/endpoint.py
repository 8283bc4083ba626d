"""What the sending end of the forward protocol needs to know of a receiver: its address and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from strandline.sinks.proxy import proxy_secrets


@dataclass(frozen=True)
class Secrets:
    """The user's part of every request, resolved: headers, and the parameters of the address."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def texts(self) -> list[str]:
        """The texts that no message may repeat: these, and the login at the proxy."""
        return [*self.headers.values(), *self.params.values(), *proxy_secrets()]


class Endpoint(Protocol):
    """A receiver and its settings (see `HttpSink`)."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str | None: ...

    @property
    def chunk_rows(self) -> int: ...

    @property
    def chunk_bytes(self) -> int: ...

    @property
    def patience_s(self) -> float: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def keeps_positions(self) -> bool:
        """Whether the receiver knows rows by their positions, or requests by their keys."""
        ...

    @property
    def body_format(self) -> str: ...

    def secrets(self) -> Secrets:
        """The user's headers and parameters, read again."""
        ...
