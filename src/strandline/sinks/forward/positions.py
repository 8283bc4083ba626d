"""The positions up to which a table has each sender's changes, kept as Delta transactions of the same commits.

For each sink the log keeps the highest life that has sent rows, and for each vnode of that life the position before
which it has everything. Positions of a life only move forward. They land in the commit that adds the rows, so rows,
positions and lives always agree, whatever crashes or repeats.

A sink that starts again is a new life with its own positions. From its first commit on, rows of older lives are
refused: a late request would put old rows over newer ones. The same commit forgets the positions of the older life.

Replayed dead letters have no positions. They carry the seq of the sender's table at which their rows were read, and are
applied only if the table has no rows of the sink that may be newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strandline.errors import Conflict
from strandline.model.definition import MAX_VNODES
from strandline.sinks.forward.message import ChunkHeader, Places, Replay, Sender, unpack
from strandline.sinks.forward.protocol import INDEX_BITS
from strandline.sinks.forward.refusal import outlived


def check_life(sender: Sender, txns: Mapping[str, int]) -> None:
    """410 when a newer life of the sender's sink has sent rows."""
    newest = txns.get(sender.life_app, 0)
    if newest > sender.life:
        raise outlived(
            f"this is generation {sender.life} of sink {sender.sink!r}, and generation {newest} of it has sent rows to"
            " this table",
            life=newest,
        )


def list_positions(txns: Mapping[str, int], sender: Sender) -> list[list[int]]:
    """The positions of a sender as `[[first_vnode, last_vnode, seq, index], …]`."""
    runs: list[list[int]] = []
    for vnode, position in _positions_by_vnode(txns, sender).items():
        place = list(unpack(position))
        if runs and runs[-1][1] == vnode - 1 and runs[-1][2:] == place:
            runs[-1][1] = vnode
        else:
            runs.append([vnode, vnode, *place])
    return runs


def older_positions(txns: Mapping[str, int], sender: Sender) -> dict[str, int]:
    """The transactions of the life before a sender's, which its first commit forgets."""
    life = txns.get(sender.life_app, sender.life)
    if life == sender.life:
        return {}
    older = Sender(sender.sink, life)
    return {app: txns[app] for app in replay_transactions(older) if app in txns and app != older.life_app}


def replay_transactions(sender: Sender) -> list[str]:
    """Every transaction that decides about a replay."""
    return [sender.life_app, sender.replay_app, *map(sender.position_app, range(MAX_VNODES))]


def holds_chunk(chunk: ChunkHeader, txns: Mapping[str, int]) -> bool:
    """Whether the table has all of a chunk. Positions never move back, so this stays true."""
    return all(end <= txns.get(chunk.sender.position_app(vnode), -1) for vnode, (_, end) in chunk.ranges.items())


@dataclass(frozen=True)
class NewRows:
    """The new rows of a chunk (None: all of them), and the life and positions after it."""

    is_new: npt.NDArray[np.bool_] | None
    moved: Mapping[str, int]


def find_new_rows(chunk: ChunkHeader, places: Places, txns: Mapping[str, int]) -> NewRows:
    """The new rows of a chunk, given the lives and positions in `txns`. 410 when a newer life has sent; `Conflict` with
    the positions when rows before the chunk are missing. Then nothing of it may be applied."""
    sender = chunk.sender
    check_life(sender, txns)
    floors = np.zeros(MAX_VNODES, np.int64)
    moved: dict[str, int] = {}
    is_all = True
    for vnode, (start, end) in chunk.ranges.items():
        app = sender.position_app(vnode)
        position = txns.get(app)
        if position is None and chunk.is_first:
            position = start
            moved[app] = end
        elif position is None or position < start:
            raise _gap_conflict(chunk, vnode, position, start, txns)
        elif position < end:
            moved[app] = end
        is_all = is_all and position <= start
        floors[vnode] = position
    if moved and txns.get(sender.life_app) != sender.life:
        moved[sender.life_app] = sender.life
    return NewRows(None if is_all else places.positions >= floors[places.vnodes], moved)


def check_replay(replay: Replay, txns: Mapping[str, int]) -> dict[str, int]:
    """The life and replay transactions after a replay. 410 when a newer life has sent; `Conflict` when the table may
    have newer rows of the sink. Then nothing of it may be applied.

    Changes that the table does not have yet may be older than these rows. They arrive later, in order, and end beyond
    that seq, so each key gets its newest row."""
    sender, as_of = replay.sender, replay.as_of
    check_life(sender, txns)
    earlier = txns.get(sender.replay_app, -1)
    # The highest seq that a change before a position can have.
    newest = max([earlier, *((position - 1) >> INDEX_BITS for position in _positions_by_vnode(txns, sender).values())])
    if newest > as_of:
        raise Conflict(
            f"the rows are as of seq {as_of} of sink {sender.sink!r}; this table has rows of it up to seq {newest}",
            hint="Nothing was applied. Send the rows as they are now.",
            as_of=newest,
        )
    moved = {} if earlier == as_of else {sender.replay_app: as_of}
    return moved if txns.get(sender.life_app) == sender.life else {**moved, sender.life_app: sender.life}


def _positions_by_vnode(txns: Mapping[str, int], sender: Sender) -> dict[int, int]:
    found = ((vnode, txns.get(sender.position_app(vnode))) for vnode in range(MAX_VNODES))
    return {vnode: position for vnode, position in found if position is not None}


def _gap_conflict(
    chunk: ChunkHeader, vnode: int, position: int | None, start: int, txns: Mapping[str, int]
) -> Conflict:
    has = "nothing of it" if position is None else f"everything before (seq, index) {unpack(position)}"
    return Conflict(
        f"the chunk of sink {chunk.sender.sink!r} begins at {unpack(start)} in vnode {vnode}; this table has {has}",
        hint="Nothing was applied.",
        positions=list_positions(txns, chunk.sender),
    )
