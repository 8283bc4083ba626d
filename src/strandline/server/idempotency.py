"""The `Idempotency-Key` of a request: which commit has the request, and which body it came with.

Both are one Delta transaction, in the commit that has the rows: `key/<Idempotency-Key>`, whose version is
`seq << 31 | digest`. It expires as the tokens of the table do. One key stands for one body: the key with other bytes is
refused, because an answer of 200 would drop those rows without a word.
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
        """The commit that has this request; None when there is none yet. `Invalid` when the key was used for another
        body."""
        found = txns.get(self.app)
        if found is None:
            return None
        seq = found >> DIGEST_BITS
        if found != self.packed(seq):
            raise reused(self.text, f"Nothing of this body was applied. The first one is in commit {seq}.", seq=seq)
        return seq


def app_of(text: str) -> str:
    return f"key/{text}"


def reused(text: str, what: str, **fields: int) -> Invalid:
    return Invalid(
        f"the {KEY_HEADER} {text!r} was used before, for another body",
        hint=f"{what} Send the same bytes again, or give other rows a key of their own.",
        **fields,
    )


class Summed:
    """A body on its way: `pieces` passes it on, and `digest` is of all that has passed, and of how it is written."""

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
