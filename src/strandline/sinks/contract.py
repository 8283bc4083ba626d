"""What every sink is: a destination as a value, and a delivery to it that is opened for one producer.

The cursor hands a delivery one batch after another: the changes of some vnodes in `(after, upto]`, under an id that is
the same whenever the batch is repeated. The batch's rows go through lane functions, on the driver or in Spark tasks;
then `finish` makes them count, together with the producer's position where the destination can hold one.

What a destination promises: a batch counts once, however often it is begun, run or finished, by one process or by a
stalled one and its successor; and `is_delivered` tells a batch that counts already from one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import Conflict, StrandlineError
from strandline.model.change import OP, ROW, SEQ, VNODE, RefusedRows
from strandline.storage.open import Staged
from strandline.storage.snapshot import DataFile

WITHHELD = "withheld"
"""The `_op` of a change that does not leave: it counts for positions and marks, and carries nothing."""

Lane = Callable[[Iterator[pa.RecordBatch]], Iterator["Result"]]
"""Picklable, and free of Spark: it runs in Spark tasks too. It returns failures in its result instead of raising."""


@dataclass(frozen=True)
class Producer:
    """Who delivers: one life (`generation`) of a consumer of one life of a table. `life` is a number that rises from
    one life of the consumer to the next, also when its state was put back from a copy in between."""

    lake_id: str
    consumer: str
    table: str
    table_generation: str
    generation: str
    life: int

    @property
    def sink(self) -> str:
        """What all lives of the consumer have in common, and no other consumer has."""
        return f"{self.lake_id}.{self.consumer}"


@dataclass(frozen=True)
class Batch:
    """The changes of `vnodes` in `(after, upto]`, as they leave.

    `columns` are those of the rows, without the hidden ones; `key` names a row, and is empty for a table without one.
    `is_first`: nothing was delivered for these vnodes before. `is_replay`: it was begun before and may have been
    delivered, in part or as a whole. `cuts` are what a lane asked to be kept of how it cuts the batch."""

    id: str
    vnodes: tuple[int, ...]
    after: int
    upto: int
    columns: pa.Schema
    key: tuple[str, ...]
    cluster_by: tuple[str, ...] = ()
    is_first: bool = False
    is_replay: bool = False
    cuts: Any = None

    @property
    def lane_schema(self) -> pa.Schema:
        """The columns of the record batches that a lane gets."""
        return lane_schema(self.columns, self.key)

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of the files that a table-like destination gets: `_op`, `_seq` and the row's own."""
        return pa.schema([pa.field(OP, pa.string(), False), pa.field(SEQ, pa.int64(), False), *self.columns])


@dataclass(frozen=True)
class Result:
    """What one run of a lane did. Picklable.

    `files` are what a lane wrote for `finish` to make count. With `cuts` the lane has stopped and wants them saved
    before it is run again with them. With `error` the batch is not delivered; a later run repeats it."""

    rows: int = 0
    withheld: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    files: tuple[tuple[DataFile, Staged | None], ...] = ()
    dead: tuple[RefusedRows, ...] = ()
    cuts: Any = None
    error: StrandlineError | None = None


class Delivery(Protocol):
    """An open destination. One thread at a time uses it; its lanes are used by any number at once."""

    def is_delivered(self, batch: Batch) -> bool:
        """Whether the destination holds the batch already; `Conflict` when it lacks what was delivered before it. Also
        asked of a batch that is not begun, which has no id yet: then it must not hold it."""
        ...

    def cuts(self) -> Any:
        """How a new batch will be cut, to be saved with its intent; None when a replay may be cut in any way."""
        ...

    def lane(self, batch: Batch) -> Lane: ...

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        """Let what the lanes did count, and with it that the batch is delivered. To finish it twice is no error."""
        ...

    def position(self, vnodes: int) -> Mapping[int, int] | None:
        """The seq up to which the destination holds everything of this producer, by vnode of a table that has so many;
        None when it cannot tell, an empty mapping when it holds nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Redelivery(Protocol):
    """A delivery to a destination that can refuse rows, and take them later."""

    def resend(self, id: str, rows: pa.RecordBatch, as_of: int) -> None:
        """Send rows outside of every range, with `_op` and `_seq`, as they are at seq `as_of` of the table. The same
        rows under the same id count once; an error when they are refused again."""
        ...


@runtime_checkable
class ResumableDelivery(Protocol):
    """A delivery to a destination that takes a batch row by row, knows the lives of a sink, and says how far it has
    come inside a seq."""

    def partial_positions(self, vnodes: int) -> Mapping[int, tuple[int, int]]:
        """The (seq, index) of each vnode of which the destination holds a part of a seq."""
        ...

    def remaining_cuts(self, vnodes: Sequence[int], after: int, upto: int) -> Any:
        """The cuts by which a batch that was interrupted goes on where the destination stands."""
        ...

    def newest_life(self) -> int:
        """The highest life of this sink that the destination has taken rows of; 0 when there is none."""
        ...


class Sink(Protocol):
    """A destination, as a frozen value."""

    kind: ClassVar[str]
    access: ClassVar[tuple[str, ...]]
    """The fields that say how the destination is reached, and not what goes there."""
    is_ordered: ClassVar[bool]
    """Whether a lane gets its rows in the order of (`_vnode`, `_seq`, key), a lane per Spark partition; otherwise they
    come clustered, and several Spark partitions run the lane of one batch."""

    @property
    def keeps_rows(self) -> bool:
        """Whether the destination holds the current rows, and not the changes that led to them."""
        ...

    @property
    def destination(self) -> str:
        """A text that identifies the place: another one is another life of the consumer. No secrets."""
        ...

    @property
    def lanes(self) -> int:
        """Into how many batches of separate vnodes a large range is cut, which succeed or fail alone."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` needs; secrets only as references (see `secret`)."""
        ...

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self: ...

    def open(self, producer: Producer) -> Delivery: ...


def is_delivered(held: int | None, batch: Batch, producer: Producer, destination: str) -> bool:
    """The decision of `Delivery.is_delivered` for a destination that holds everything of a producer up to one seq."""
    if held is not None and held >= batch.upto:
        return True
    if (held is None and batch.is_first) or held == batch.after:
        return False
    has = "knows nothing of it" if held is None else f"holds its changes up to seq {held}"
    raise Conflict(
        f"sink {producer.consumer!r} delivered up to seq {batch.after}, but {destination} {has}: it was recreated,"
        " restored from a copy, or changed by someone else",
        hint=f"Nothing was sent. To send the table again: strandline mark reset {producer.consumer}",
        consumer=producer.consumer,
        expected=batch.after,
        found=held,
    )


def lane_schema(columns: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Columns that leave, behind those that say what each row is."""
    hidden = [pa.field(OP, pa.string(), False), pa.field(VNODE, pa.int32(), False), pa.field(SEQ, pa.int64(), False)]
    return pa.schema([*hidden, *([] if key else [pa.field(ROW, pa.int64(), False)]), *columns])


def drop_withheld(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """The rows that leave, and how many are withheld."""
    leaves = pc.not_equal(batch.column(OP), WITHHELD)
    kept = batch.filter(leaves) if pc.any(pc.invert(leaves), min_count=0).as_py() else batch
    return kept, batch.num_rows - kept.num_rows
