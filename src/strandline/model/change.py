"""Plain values for the changes in a log.

Ranges of seqs are always `(after, upto]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from strandline.errors import Invalid

Op = Literal["upsert", "delete"]
UPSERT: Op = "upsert"
DELETE: Op = "delete"

OP = "_op"
HASH = "_hash"
SEQ = "_seq"
ROW = "_row"
PACKED = "_sl_seq"
"""The seq of each row inside a pack, a log file with the changes of several commits."""
VNODE = "_vnode"
FATE = "_sl_fate"
KEPT, GONE, CAME, LOST = range(4)
"""The fate of a row in a fold. A baseline row is kept or gone; a log row came or is lost."""


class Seq(int):
    """A seq that explains itself when it is called: in pandas and Spark `head(n)` is the first rows."""

    def __call__(self, n: int = 5) -> NoReturn:
        raise Invalid(
            f"head is the latest seq of the table, {int(self)}, and not a function",
            hint=f"To see rows: table.show({n}). To read them: table.to_arrow(limit={n}).",
        )


@dataclass(frozen=True)
class Commit:
    """A batch of changes in the log. `is_replay`: an earlier call with the same token wrote it. A batch without rows
    makes no commit: then `rows` is 0 and `seq` is the head at that moment."""

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
