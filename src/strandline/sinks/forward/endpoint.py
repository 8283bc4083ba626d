"""What the sending end of the forward protocol has to know of a receiver: where it is, and how it is spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from strandline.sinks.proxy import proxy_secrets


@dataclass(frozen=True)
class Secrets:
    """What is the user's in every request, as it is: headers, and the parameters of the address."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def texts(self) -> list[str]:
        """What nobody's words may repeat: these, and the login at the proxy that the request went through."""
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
        """The headers and parameters that are the user's, read anew."""
        ...
