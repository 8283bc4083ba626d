"""One piece of work of a consumer: the changes of some vnodes of a table in `(after, upto]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.consumers.feed import Feed, KeySpan, RangeSize, log_with_schema
from strandline.engines.choice import DELIVERY
from strandline.engines.spark import session
from strandline.sinks.outgoing import Outgoing
from strandline.state.intents import Intent, IntentDraft
from strandline.state.key_positions import Position, PositionMoves
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SNAPSHOT, ROUND, LOG, NOTHING = "snapshot", "round", "log", "nothing"


@dataclass(frozen=True)
class Work:
    """The changes of `lanes` in `(after, upto]`. The vnodes of a lane succeed or fail together.

    `source` is where the rows come from: the table at `upto`, the rows of a round of a backfill there, the log, or
    nowhere when only marks move. `span` are the keys that it has; None for all. `positions` are those of its vnodes
    while their history is delivered, None for one that has not begun; `share` is about the part of it that a round
    leaves delivered. `engine` runs it. `intents` are the saved intents of the lanes; with `is_replay` an earlier run
    saved them. `why` says why the work is due, where that is not obvious."""

    table: TableStore = field(repr=False)
    after: int
    upto: int
    source: str
    lanes: tuple[tuple[int, ...], ...]
    extent: RangeSize
    schema_id: int
    engine: str
    intents: tuple[Intent, ...] = ()
    is_replay: bool = False
    why: str = ""
    span: KeySpan | None = None
    positions: Mapping[int, Position | None] = field(default_factory=dict, hash=False, repr=False)
    share: float = 0.0
    verified: set[str] = field(default_factory=set, hash=False, compare=False, repr=False)
    """The paths of files that were checked for it, or for works before it."""

    @property
    def vnodes(self) -> tuple[int, ...]:
        return tuple(sorted(vnode for lane in self.lanes for vnode in lane))

    @property
    def token(self) -> str:
        """The id of this work, which has one lane; a repeated work has the same id."""
        (intent,) = self.intents
        return intent.id

    def only(self, chosen: Sequence[int]) -> Work:
        """The same with some of its lanes."""
        intents = tuple(self.intents[at] for at in chosen) if self.intents else ()
        return replace(self, lanes=tuple(self.lanes[at] for at in chosen), intents=intents)

    def draft_intent(self, lane: tuple[int, ...], cuts: object, positions: PositionMoves | None) -> IntentDraft:
        """What is saved of a lane before it begins, and how its positions move with that."""
        return IntentDraft(
            lane=f"{lane[0]}-{lane[-1]}",
            vnodes=lane,
            after=self.after,
            upto=self.upto,
            schema_id=self.schema_id,
            cuts=cuts,
            backfill=positions,
        )

    def feed(self, outgoing: Outgoing | None = None, *, is_ordered: bool = True) -> Feed:
        """Its rows as `outgoing` sends them, or with all columns, by the table's schema when it was planned."""
        log = log_with_schema(self.table.log.refresh(), self.schema_id)
        return Feed(
            self.table,
            outgoing or Outgoing.of(log.definition),
            log,
            self.upto if self.source == NOTHING else self.after,
            self.upto,
            self.vnodes,
            is_snapshot=self.source in (SNAPSHOT, ROUND),
            is_ordered=is_ordered,
            span=self.span,
            extent=None if self.span is None else self.extent,
            verified=self.verified,
        )

    @contextmanager
    def frame(self) -> Iterator[DataFrame]:
        """The rows of `batches` as a Spark DataFrame, in no order. Their files are kept while the block runs."""
        spark = session(self.table.spark)
        feed = self.feed()
        if self.source == NOTHING:
            yield spark.createDataFrame(feed.schema.empty_table())
            return
        with feed.hold_files():
            yield feed.frame(spark)

    @contextmanager
    def batches(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Its rows on the driver, in the order of (`_vnode`, `_seq`, key), with `_op`, `_vnode` and `_seq` in front."""
        if self.source == NOTHING:
            yield iter(())
            return
        feed = self.feed()
        with feed.hold_files(), feed.batches() as rows:
            yield rows

    def to_dict(self) -> dict[str, Any]:
        return {
            "after": self.after,
            "upto": self.upto,
            "source": self.source,
            "rows": self.extent.rows,
            "bytes": self.extent.bytes,
            "commits": self.extent.commits,
            "engine": self.engine,
            "lanes": len(self.lanes),
            "is_replay": self.is_replay,
            "why": self.why,
        }


def engine_for(extent: RangeSize) -> str:
    """The engine for a range of this size."""
    return "driver" if DELIVERY.takes(rows=extent.rows, raw_bytes=extent.raw_bytes) else "spark"
