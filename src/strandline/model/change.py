"""Changes: what a log holds, as plain values.

Ranges of seqs are always `(after, upto]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Op = Literal["upsert", "delete"]
UPSERT: Op = "upsert"
DELETE: Op = "delete"

OP = "_op"
HASH = "_hash"
SEQ = "_seq"
ROW = "_row"
VNODE = "_vnode"
FATE = "_fate"
KEPT, GONE, CAME, LOST = range(4)
"""What a fold makes of a row: one of the baseline stays or goes, one of the log comes or is lost."""


@dataclass(frozen=True)
class Commit:
    """A batch of changes that is in the log. `is_replay` says that an earlier call with the same token wrote it. A
    batch without rows is no commit: `rows` is 0 and `seq` the head of then."""

    seq: int
    rows: int
    is_replay: bool = False


@dataclass(frozen=True)
class RefusedRows:
    """Rows that a destination refuses for good. `at` is the position (vnode, seq, index) of the first one; `keys` are
    their identities (the key, or `_seq` and `_row`) as an Arrow IPC stream."""

    at: tuple[int, int, int]
    rows: int
    keys: bytes
    reason: str
    status: int | None = None
