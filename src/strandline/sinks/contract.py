"""What every sink is: a destination as a value, and a delivery to it that is opened for one producer.

The loop hands a delivery one batch after another: the changes of some vnodes in `(after, upto]`. A repeated batch has
the same id. The batch's rows go through lane functions, on the driver or in Spark tasks. Then `finish` makes them
count, together with the producer's position where the destination can hold one.

A destination promises two things. A batch counts once, however often it is begun, run or finished, even by a stalled
process and its successor. And `is_delivered` says whether a batch counts already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Conflict, Invalid, StrandlineError
from strandline.model.change import OP, ROW, SEQ, VNODE, RefusedRows
from strandline.storage.open import StagedFile
from strandline.storage.snapshot import DataFile

WITHHELD = "withheld"
"""The `_op` of a change that is not sent: it counts for positions and marks only."""

MIRROR, CHANGES = "mirror", "changes"
"""What a destination holds: the table's current rows, or every change of it with `_op` and `_seq`."""
MIRROR_NOTE = " (mirror)"
"""Ends the destination of a mirror in a folder."""
_OLD_WORDS = {"upsert": MIRROR}

WHOLE = (1 << 31) - 1
"""The round of a destination that has the whole history: more than any round that leaves some of it."""

Expired = tuple[str, pa.Scalar]
"""A time column, and the moment before which rows have expired."""

Lane = Callable[[Iterator[pa.RecordBatch]], Iterator["Result"]]
"""Picklable and free of Spark, since it runs in Spark tasks too. It returns failures in its result."""


@dataclass(frozen=True)
class Producer:
    """Who delivers: one life (`generation`) of a consumer of one life of a table. `life` rises from one life of the
    consumer to the next, even when its state was restored from a copy in between."""

    lake_id: str
    consumer: str
    table: str
    table_generation: str
    generation: str
    life: int

    @property
    def sink(self) -> str:
        """The identity that all lives of the consumer share."""
        return f"{self.lake_id}.{self.consumer}"


@dataclass(frozen=True, order=True)
class Held:
    """How much a destination holds: everything up to `seq`, or, after a number of rounds of a backfill, the rows of the
    table at `seq` up to the key of the last round. It rises from batch to batch."""

    seq: int
    round: int = WHOLE

    @property
    def has_history(self) -> bool:
        return self.round == WHOLE

    def __str__(self) -> str:
        return f"seq {self.seq}" if self.has_history else f"seq {self.seq}, round {self.round} of its history"


Tally = Mapping[int, tuple[int, int, int]]
"""By vnode: the number of rows, the highest seq among them, and the number of rows with that seq."""


@dataclass(frozen=True)
class Batch:
    """The changes of `vnodes` in `(after, upto]`, as they are sent.

    `columns` are the columns of the rows, without the hidden ones; `key` is empty for a table without a key.
    `is_first`: nothing was delivered for these vnodes before. `is_rows`: the batch has rows of the table at `upto`,
    which the destination does not hold. All rows replace whatever it has when the batch is also the first.
    `start_round` and `end_round` are the rounds of a backfill that the destination has before and after the batch.
    `sent` says up to where the rows of a vnode were sent while its history is delivered: the seq of the last one, and
    how many rows with that seq. `is_replay`: the batch was begun before and may have been delivered, in part or as a
    whole. `cuts` is how a lane cuts the batch, saved at the lane's request. `size` is about that of the rows in files.
    `expired`: the rows of a mirror with an earlier value in this column leave it."""

    id: str
    vnodes: tuple[int, ...]
    after: int
    upto: int
    columns: pa.Schema
    key: tuple[str, ...]
    cluster_by: tuple[str, ...] = ()
    is_first: bool = False
    is_rows: bool = False
    start_round: int = WHOLE
    end_round: int = WHOLE
    sent: Mapping[int, tuple[int, int]] = field(default_factory=dict, hash=False)
    is_replay: bool = False
    cuts: Any = None
    size: int = 0
    expired: Expired | None = None

    @property
    def start(self) -> Held:
        """What the destination holds before the batch; nothing at all before the first."""
        return Held(self.after, self.start_round)

    @property
    def end(self) -> Held:
        """What it holds after the batch."""
        return Held(self.upto, self.end_round)

    @property
    def is_backfill(self) -> bool:
        """Whether it delivers a part of the history, or changes while the history is delivered."""
        return not (self.start.has_history and self.end.has_history)

    def first_place(self, vnode: int) -> tuple[int, int]:
        """The seq of the first row of a vnode that may be in the batch, and its number among the rows of that seq."""
        return self.sent.get(vnode, (self.after + 1, 0))

    @property
    def replaces_all(self) -> bool:
        """Whether its rows take the place of everything in a mirror."""
        return self.is_rows and self.is_first

    @property
    def lane_schema(self) -> pa.Schema:
        """The columns of the record batches that a lane gets."""
        return lane_schema(self.columns, self.key)

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of the files that a destination of files gets: `_op`, `_seq` and the row's own."""
        return pa.schema([pa.field(OP, pa.string(), False), pa.field(SEQ, pa.int64(), False), *self.columns])


@dataclass(frozen=True)
class Result:
    """What one run of a lane did. Picklable. `tally` counts the rows that the lane took in a backfill.

    `finish` makes `files` count. With `cuts` the lane has stopped: the cuts are saved, then the lane runs again with
    them. With `error` the batch is not delivered; a later run repeats it."""

    rows: int = 0
    withheld: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    files: tuple[tuple[DataFile, StagedFile | None], ...] = ()
    dead: tuple[RefusedRows, ...] = ()
    cuts: Any = None
    error: StrandlineError | None = None
    tally: Tally = field(default_factory=dict, hash=False)


class Delivery(Protocol):
    """An open destination. One thread at a time uses it; its lanes are used by any number at once."""

    def is_delivered(self, batch: Batch) -> bool:
        """Whether the destination holds the batch already; `Conflict` when it lacks what was delivered before it. A
        batch that is not begun has no id yet, and the destination must not hold it."""
        ...

    def cuts(self) -> Any:
        """How a new batch will be cut, to be saved with its intent; None when a replay may be cut otherwise."""
        ...

    def lane(self, batch: Batch) -> Lane: ...

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        """Make the lanes' rows count and the batch delivered. Finishing it twice is no error."""
        ...

    def position(self, vnodes: int) -> Mapping[int, int] | None:
        """The seq up to which the destination holds everything of this producer, by vnode, of `vnodes` in all; None
        when the destination cannot tell, an empty mapping when it holds nothing. `Conflict` when it lacks a part of
        the history."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Redelivery(Protocol):
    """A delivery to a destination that may refuse rows and take them later."""

    def resend(self, id: str, rows: pa.RecordBatch, as_of: int) -> None:
        """Send rows outside of every range, with `_op` and `_seq`, as they are at seq `as_of` of the table. The same
        rows under the same id count once; raises when they are refused again."""
        ...


@runtime_checkable
class ResumableDelivery(Protocol):
    """A delivery to a destination that takes a batch row by row, knows the lives of a sink, and reports positions
    inside a seq."""

    def partial_positions(self, vnodes: int) -> Mapping[int, tuple[int, int]]:
        """The (seq, index) of each vnode whose last seq the destination holds in part."""
        ...

    def remaining_cuts(self, vnodes: Sequence[int], after: int, upto: int) -> Any:
        """The cuts with which an interrupted batch continues at the destination's position."""
        ...

    def newest_life(self) -> int:
        """The highest life of this sink that has sent rows there; 0 when none has."""
        ...


class Sink(Protocol):
    """A destination, as a frozen value."""

    kind: ClassVar[str]
    access: ClassVar[tuple[str, ...]]
    """The fields that say how the destination is reached, not what is sent."""
    is_ordered: ClassVar[bool]
    """Whether a lane gets its rows in the order of (`_vnode`, `_seq`, key), one lane per Spark partition. Otherwise
    rows come clustered, and several Spark partitions run the lane of one batch."""

    @property
    def mode(self) -> str | None:
        """What the destination holds, `MIRROR` or `CHANGES`; None before the table and the record have decided it."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether the destination is a mirror."""
        ...

    @property
    def destination(self) -> str:
        """A text without secrets that identifies the place, and what is kept there. Another one begins a new life of
        the consumer."""
        ...

    @property
    def lanes(self) -> int:
        """Into how many batches a large range is cut. Each has its own vnodes and succeeds or fails alone."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` needs; secrets only as references (see `secret`)."""
        ...

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self: ...

    def open(self, producer: Producer) -> Delivery: ...


def check_mode(mode: str | None) -> str | None:
    """A mode in its present word."""
    known = _OLD_WORDS.get(mode, mode) if isinstance(mode, str) else mode
    if known not in (None, MIRROR, CHANGES):
        raise Invalid(f"mode is {mode!r}; expected '{MIRROR}' (the current rows) or '{CHANGES}' (every change)")
    return known


def is_delivered(held: Held | None, batch: Batch, producer: Producer, destination: str) -> bool:
    """The decision of `Delivery.is_delivered` for a destination that holds the same of all vnodes."""
    if held is not None and held >= batch.end:
        return True
    if (held is None and batch.is_first) or held == batch.start:
        return False
    has = "knows nothing of it" if held is None else f"holds its changes up to {held}"
    raise Conflict(
        f"sink {producer.consumer!r} delivered up to {batch.start}, but {destination} {has}: it was recreated,"
        " restored from a copy, or changed by someone else",
        hint=f"Nothing was sent. To send the table again: strandline mark reset {producer.consumer}",
        consumer=producer.consumer,
        expected=batch.after,
        found=None if held is None else held.seq,
    )


def spread_position(held: Held | None, vnodes: int, producer: Producer, destination: str) -> Mapping[int, int]:
    """The answer of `Delivery.position` for a destination that holds the same of all vnodes."""
    if held is None:
        return {}
    if held.has_history:
        return dict.fromkeys(range(vnodes), held.seq)
    raise Conflict(
        f"{destination} has a part of the history of sink {producer.consumer!r} ({held}), and only the lost state knew"
        " which",
        hint=f"Deliver it again: strandline backfill restart {producer.consumer}",
        consumer=producer.consumer,
        found=held.seq,
    )


def lane_schema(columns: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """The columns that are sent, behind the hidden ones that describe each row."""
    hidden = [pa.field(OP, pa.string(), False), pa.field(VNODE, pa.int32(), False), pa.field(SEQ, pa.int64(), False)]
    return pa.schema([*hidden, *([] if key else [pa.field(ROW, pa.int64(), False)]), *columns])


def drop_withheld(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The rows to send, and the number of withheld ones."""
    leaves = pc.not_equal(batch.column(OP), WITHHELD)
    kept = batch.filter(leaves) if pc.any(pc.invert(leaves), min_count=0).as_py() else batch
    return kept, batch.num_rows - kept.num_rows
