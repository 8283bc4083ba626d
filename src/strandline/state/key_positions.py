"""How far each vnode of a consumer's backfill has come: a key position, beside the vnode's mark.

While a vnode's history is delivered, its mark is the seq as of which the destination has its rows, and its position is
the last key among them. Invariant: the destination's rows of the vnode are those of the table at the mark with a key at
or before the position. Both move in one transaction, under the consumer's fence (see `marks.advance`). A vnode without
a position here has no history to deliver.

Two kinds of moves keep the invariant. A round brings the rows of the table at the mark behind the position, up to a
later key. A catch-up brings the changes after the mark of the keys at or before the position: then only the mark moves
on. A round is begun in the transaction that saves its intent, and names the key that it goes up to: a repeated round
has the same rows.

After a crash: mark and position are those of one finished round or catch-up; what was under way is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
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

IN_HISTORY = "its history was being delivered, and only the lost state knew how far it had come"
"""Why a consumer is undecided whose marks were lost before its history was delivered."""

positions = Table(
    "strandline_backfills",
    metadata,
    Column("generation", Text, primary_key=True),
    Column("vnode", Integer, primary_key=True, autoincrement=False),
    Column("round", Integer, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("sent_seq", BigInteger, nullable=False),
    Column("sent_rows", BigInteger, nullable=False),
    Column("share", Double, nullable=False),
    Column("pace", Double, nullable=False),
    Column("is_done", Boolean, nullable=False),
    Column("is_begun", Boolean, nullable=False),
    Column("until", LargeBinary),
    Column("planned_rows", BigInteger, nullable=False),
    Column("planned_share", Double, nullable=False),
)
_select = (
    select(positions).where(positions.c.generation.in_(bindparam("lives", expanding=True))).order_by(positions.c.vnode)
)


@dataclass(frozen=True)
class Position:
    """Where the backfill of a vnode stands after `round` rounds: the last key that was delivered, encoded (see
    `model/key_order`) and empty before the first one, and how many rows were. While the next round `is_begun`, it goes
    up to the key `until`, None for the last key of all; `planned` says about how many rows it has, and which share of
    the history it leaves delivered.

    `sent` says up to where rows were sent: the seq of the last one, and how many rows with that seq.
    `share` is about the part of the vnode's rows that lies at or before the key, from 0 to 1. `pace` is how many rows a
    second the consumer sent of late."""

    round: int = 0
    key: bytes = b""
    rows: int = 0
    sent: tuple[int, int] = (1, 0)
    share: float = 0.0
    pace: float = 0.0
    is_done: bool = False
    is_begun: bool = False
    until: bytes | None = None
    planned: tuple[int, float] = (0, 0.0)

    def begun(self, until: bytes | None, planned: tuple[int, float] = (0, 0.0)) -> Position:
        """The same while a round is under way."""
        return replace(self, is_begun=True, until=until, planned=planned)

    def finished(self, rows: int, *, sent: tuple[int, int] | None = None, pace: float = 0.0) -> Position:
        """The position after the round under way, which delivered so many rows. The share never falls."""
        is_done = self.until is None
        return Position(
            self.round + 1,
            self.key if self.until is None else self.until,
            self.rows + rows,
            self.sent if sent is None else sent,
            1.0 if is_done else max(self.share, min(self.planned[1], 1.0)),
            pace,
            is_done,
        )

    def caught_up(self, sent: tuple[int, int] | None = None) -> Position:
        """The position after a catch-up, with which the mark moved on."""
        return self if sent is None else replace(self, sent=sent)

    def check_next(self, later: Position, vnode: int) -> None:
        """`Invalid` when one position does not follow another: it only goes forward, a round at a time."""
        if self.is_begun:
            rows = max(0, later.rows - self.rows)
            wanted = self.finished(rows, sent=later.sent, pace=later.pace)
        else:
            wanted = self.begun(later.until, later.planned) if later.is_begun else self.caught_up(later.sent)
        is_back = later.is_begun and later.until is not None and is_at_most(later.until, self.key)
        if self.is_done or later != wanted or is_back:
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
        until = None if row.until is None else bytes(row.until)
        sent, planned = (row.sent_seq, row.sent_rows), (row.planned_rows, row.planned_share)
        found[row.generation][row.vnode] = Position(
            row.round, bytes(row.key), row.rows, sent, row.share, row.pace, row.is_done, row.is_begun, until, planned
        )
    return found


def move_positions(
    connection: Connection, name: str, generation: str, moves: PositionMoves | None, marks: Collection[int]
) -> None:
    """Move positions of a locked consumer whose `marks` move with them. `Conflict`, with nothing changed, when a vnode
    is somewhere else."""
    if not moves:
        return
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
    connection.execute(insert(positions), [_row_of(generation, vnode, to) for vnode, (_, to) in sorted(moves.items())])


def forget_positions(connection: Connection, generation: str) -> None:
    """Forget the positions of a locked consumer, for an adoption: it has its whole history, or begins again."""
    connection.execute(delete(positions).where(positions.c.generation == generation))


def _row_of(generation: str, vnode: int, at: Position) -> dict[str, object]:
    facts = {name: value for name, value in vars(at).items() if name not in ("sent", "planned")}
    facts |= {"sent_seq": at.sent[0], "sent_rows": at.sent[1]}
    facts |= {"planned_rows": at.planned[0], "planned_share": at.planned[1]}
    return {**facts, "generation": generation, "vnode": vnode}
