"""How far each vnode of a consumer's backfill has come: a key position, beside the vnode's mark.

While a vnode's history is delivered, its mark is the seq as of which the destination has its rows, and its position is
the last key among them. Invariant: the destination's rows of the vnode are those of the table at the mark with a key at
or before the position. Both move in one transaction, under the consumer's fence (see `marks.advance`). A vnode without
a position here has no history left to deliver, or none was begun.

After a crash: mark and position are those of one finished round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    select,
)

from strandline.errors import Conflict, Invalid
from strandline.model.key_order import is_at_most
from strandline.state.database import metadata

positions = Table(
    "strandline_positions",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("vnode", Integer, primary_key=True, autoincrement=False),
    Column("round", Integer, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("is_done", Boolean, nullable=False),
)
_select = (
    select(positions).where(positions.c.generation.in_(bindparam("lives", expanding=True))).order_by(positions.c.vnode)
)


@dataclass(frozen=True)
class Position:
    """Where the backfill of a vnode stands after `round` rounds: the key behind which the rest lies, encoded (see
    `model/key_order`) and empty before the first one, and how many rows were delivered."""

    round: int = 0
    key: bytes = b""
    rows: int = 0
    is_done: bool = False

    def check_next(self, later: Position, vnode: int) -> None:
        """`Invalid` when a position goes backward, or goes on after the end."""
        is_forward = later.round == self.round + 1 and later.rows >= self.rows and not self.is_done
        if not is_forward or not (later.is_done or is_at_most(self.key, later.key)):
            raise Invalid(
                f"the backfill of vnode {vnode} cannot go from round {self.round} to {later.round}: its position"
                " would go back",
                vnode=vnode,
            )


PositionMoves = Mapping[int, tuple[Position | None, Position]]
"""By vnode, the position that is expected and the one that follows; None for a first one."""


def read_positions(connection: Connection, generations: Collection[str]) -> dict[str, dict[int, Position]]:
    """The positions of these generations, by vnode."""
    found: dict[str, dict[int, Position]] = {each: {} for each in generations}
    for row in connection.execute(_select, {"lives": sorted(generations)}):
        found[row.generation][row.vnode] = Position(row.round, bytes(row.key), row.rows, row.is_done)
    return found


def move_positions(
    connection: Connection, name: str, generation: str, moves: PositionMoves, marks: Collection[int]
) -> None:
    """Move positions of a locked consumer whose `marks` move with them. `Conflict`, with nothing changed, when a vnode
    is somewhere else."""
    if others := sorted(set(moves) - set(marks)):
        raise Invalid(f"the position of {name!r} in vnode {others[0]} cannot move without its mark", vnode=others[0])
    found = read_positions(connection, [generation])[generation]
    for vnode, (expected, to) in sorted(moves.items()):
        if found.get(vnode) != expected:
            raise Conflict(
                f"the backfill of {name!r} stands elsewhere in vnode {vnode} than it did: another process moved it",
                hint="Nothing was changed. Load the positions again.",
                consumer=name,
                vnode=vnode,
            )
        if expected is not None:
            expected.check_next(to, vnode)
    which = (positions.c.generation == generation) & positions.c.vnode.in_(sorted(moves))
    connection.execute(delete(positions).where(which))
    rows = [{"generation": generation, "vnode": vnode, **vars(to)} for vnode, (_, to) in sorted(moves.items())]
    if rows:
        connection.execute(insert(positions), rows)
