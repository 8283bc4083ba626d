"""The receipts of consumers on record: what their last advances did. `marks` keeps them."""

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
    bindparam,
    delete,
    func,
    insert,
    select,
)

from strandline.state.database import metadata, now_s
from strandline.state.values import from_json

RECEIPTS = 100
"""How many are kept of each consumer."""

receipts = Table(
    "strandline_receipts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("generation", Text, nullable=False, index=True),
    Column("at_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
_of_life = receipts.c.generation == bindparam("generation")
_oldest_kept = select(receipts.c.id).where(_of_life).order_by(receipts.c.id.desc()).limit(1).offset(bindparam("kept"))
_delete_old_receipts = delete(receipts).where(_of_life, receipts.c.id <= _oldest_kept.scalar_subquery())


@dataclass(frozen=True)
class SavedReceipt:
    """What one advance did, as its consumer reports it."""

    at_s: float
    body: Mapping[str, Any] = field(hash=False)


def read_receipts(connection: Connection, generation: str, limit: int) -> list[SavedReceipt]:
    """The receipts of a generation, the newest first."""
    query = select(receipts).where(receipts.c.generation == generation).order_by(receipts.c.id.desc()).limit(limit)
    return [SavedReceipt(row.at_s, from_json("receipt", row.body)) for row in connection.execute(query)]


def read_last_receipts(connection: Connection, generations: Collection[str]) -> dict[str, SavedReceipt]:
    """The newest receipt of each generation that has one; always one query."""
    newest = select(func.max(receipts.c.id)).where(receipts.c.generation.in_(generations))
    query = select(receipts).where(receipts.c.id.in_(newest.group_by(receipts.c.generation)))
    return {row.generation: SavedReceipt(row.at_s, from_json("receipt", row.body)) for row in connection.execute(query)}


def keep_receipt(connection: Connection, generation: str, body: str) -> None:
    """Keep a receipt, and forget the oldest ones, inside a transaction."""
    connection.execute(insert(receipts), {"generation": generation, "at_s": now_s(connection), "body": body})
    connection.execute(_delete_old_receipts, {"generation": generation, "kept": RECEIPTS})
