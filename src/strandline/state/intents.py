"""Intents on record: the batches that a consumer began and has not closed. `marks` opens and closes them.

After a crash: an intent that is still here names the range that was under way; its effect is repeated with the same
cuts before anything newer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    insert,
    select,
)

from strandline.errors import Conflict, Invalid
from strandline.model.text import check_text
from strandline.state.database import metadata
from strandline.state.key_positions import PositionMoves
from strandline.state.values import check_int, from_json, to_json

intents = Table(
    "strandline_intents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("generation", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("vnodes", Text, nullable=False),
    Column("after", BigInteger, nullable=False),
    Column("upto", BigInteger, nullable=False),
    Column("definition", Text, nullable=False),
    Column("schema_id", Integer, nullable=False),
    Column("cuts", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    UniqueConstraint("generation", "lane"),
)
_select_by_life = (
    select(intents)
    .where(intents.c.generation.in_(bindparam("lives", expanding=True)))
    .order_by(intents.c.created_s, intents.c.lane, intents.c.id)
)


@dataclass(frozen=True)
class Intent:
    """An effect that a consumer began: the rows of `vnodes` in `(after, upto]`, cut as `cuts` says."""

    id: str
    generation: str
    lane: str
    vnodes: tuple[int, ...]
    after: int
    upto: int
    definition: Mapping[str, Any] = field(hash=False)
    schema_id: int
    cuts: Any = field(hash=False)
    created_s: float


@dataclass(frozen=True)
class IntentDraft:
    """An intent to save: in one lane, the rows of `vnodes` in `(after, upto]`, cut as `cuts` says. `backfill` are the
    positions of a round that begins with it; such a round may have no changes, only rows of the table at `upto`."""

    lane: str
    vnodes: Collection[int]
    after: int
    upto: int
    schema_id: int
    cuts: Any = None
    backfill: PositionMoves | None = None

    def check_vnodes(self) -> tuple[int, ...]:
        """The vnodes in order; `Invalid` when the range is empty or a value cannot be kept."""
        check_text("lane", self.lane)
        chosen = tuple(sorted({check_int("vnode", vnode) for vnode in self.vnodes}))
        check_int("schema id", self.schema_id)
        least = check_int("after", self.after) + (0 if self.backfill else 1)
        if not chosen or check_int("upto", self.upto) < least:
            raise Invalid(
                f"an intent for vnodes {list(chosen)} in ({self.after}, {self.upto}] holds nothing", lane=self.lane
            )
        return chosen


def open_intents(connection: Connection, generations: Collection[str]) -> list[Intent]:
    """The open intents of these generations, the oldest first."""
    return [
        Intent(
            id=row.id,
            generation=row.generation,
            lane=row.lane,
            vnodes=tuple(from_json("vnodes", row.vnodes)),
            after=row.after,
            upto=row.upto,
            definition=from_json("definition", row.definition),
            schema_id=row.schema_id,
            cuts=from_json("cuts", row.cuts),
            created_s=row.created_s,
        )
        for row in connection.execute(_select_by_life, {"lives": sorted(generations)})
    ]


def insert_intent(connection: Connection, intent: Intent) -> None:
    kept = {name: to_json(name, getattr(intent, name)) for name in ("vnodes", "definition", "cuts")}
    connection.execute(insert(intents), {**vars(intent), **kept})


def open_conflict(name: str, intent: Intent, what: str) -> Conflict:
    """The error for a consumer with an open intent; `what` is what the intent forbids."""
    return Conflict(
        f"{name!r} has an open intent in lane {intent.lane!r}, vnodes {list(intent.vnodes)} in ({intent.after},"
        f" {intent.upto}]: {what}",
        hint="Let a tick finish it first.",
        consumer=name,
        intent=intent.id,
        lane=intent.lane,
    )


def closed_conflict(intent: Intent) -> Conflict:
    return Conflict(
        f"the intent {intent.id} in lane {intent.lane!r} is not open any more",
        hint="Nothing was changed. Load the intents again.",
        intent=intent.id,
        lane=intent.lane,
    )
