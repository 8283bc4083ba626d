"""How the positions of a backfill move with the works of a consumer (see `state/key_positions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.consumers.work import ROUND, Work
from strandline.sinks.contract import Tally
from strandline.state.key_positions import Position, PositionMoves


def begin_positions(work: Work, vnodes: Sequence[int]) -> PositionMoves:
    """The positions of these vnodes when a round begins."""
    assert work.span is not None
    found = {vnode: work.positions.get(vnode) for vnode in vnodes}
    planned = work.extent.rows // max(1, len(work.vnodes)), work.share
    return {vnode: (at, (at or Position()).begun(work.span.end, planned)) for vnode, at in found.items()}


def finish_positions(
    work: Work, vnodes: Sequence[int], positions: Mapping[int, Position], tally: Tally | None, pace: float
) -> PositionMoves:
    """How the positions of a lane move when its work is done. `tally` counts its rows; a consumer that is no sink
    counts them without their seqs. None for a round that an earlier run delivered: then it has the rows that were
    planned."""
    moves: dict[int, tuple[Position | None, Position]] = {}
    for vnode in vnodes:
        at = positions.get(vnode)
        if at is None or vnode not in work.positions:
            continue
        rows, seq, at_seq = (at.planned[0], 0, 0) if tally is None else tally.get(vnode, (0, 0, 0))
        sent = (seq, at_seq + (at.sent[1] if seq == at.sent[0] else 0)) if seq else None
        if work.source == ROUND:
            moves[vnode] = at, at.finished(rows, sent=sent, pace=pace)
        elif sent is not None:
            moves[vnode] = at, at.caught_up(sent)
    return moves
