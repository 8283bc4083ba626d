"""The `Idempotency-Key` of a request: the commit of the request, and a digest of its body.

Both are one Delta transaction, in the commit that has the rows: `key/<Idempotency-Key>`, whose version is
`seq << 31 | digest`. It expires as the tokens of the table do. A key is for one body: the same key with other bytes is
refused, because an answer of 200 would lose those rows silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from strandline.errors import Invalid
from strandline.sinks.forward.protocol import KEY_HEADER

DIGEST_BITS = 31
_DIGESTS = 1 << DIGEST_BITS


@dataclass(frozen=True)
class Key:
    """A key, and a digest of the body that came with it."""

    text: str
    digest: int

    @property
    def app(self) -> str:
        return app_of(self.text)

    def packed(self, seq: int) -> int:
        return seq << DIGEST_BITS | self.digest

    def seq_in(self, txns: Mapping[str, int]) -> int | None:
        """The commit of this request; None when there is none yet. `Invalid` when the key was used for another body."""
        found = txns.get(self.app)
        if found is None:
            return None
        seq = found >> DIGEST_BITS
        if found != self.packed(seq):
            raise key_reused(self.text, f"Nothing of this body was applied. The first one is in commit {seq}.", seq=seq)
        return seq


def app_of(text: str) -> str:
    return f"key/{text}"


def key_reused(text: str, what: str, **fields: int) -> Invalid:
    return Invalid(
        f"the {KEY_HEADER} {text!r} was used before, for another body",
        hint=f"{what} Send the same bytes again, or give other rows a key of their own.",
        **fields,
    )


class HashedBody:
    """A body that is being received: `pieces` are its bytes, `digest` is of its format and all bytes so far."""

    def __init__(self, stream: AsyncIterator[bytes], *how: str) -> None:
        self._stream = stream
        self._hash = hashlib.blake2b("\n".join([*how, ""]).encode(), digest_size=8)

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._hash.update(piece)
            yield piece

    @property
    def digest(self) -> int:
        return int.from_bytes(self._hash.digest()) % _DIGESTS
