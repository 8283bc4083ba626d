"""How far a table has the changes of each sender: Delta transactions in the commits that bring them.

For each sink the log keeps the highest life that has sent rows, and for each vnode of that life the position before
which it has everything. Positions of a life move forward only. All of it lands in the commit that adds the rows, so
rows, positions and lives cannot disagree, whatever crashes or repeats.

A sink that starts again is a new life, with positions of its own. From its first commit on nothing of an older life is
taken: a request of that life which was on its way until then would put old rows over newer ones. The positions of the
older life are forgotten in the same commit.

Dead letters that are sent again come outside of all positions. They say at which seq of the sender's table their rows
were read, and are applied only if nothing of the sink that may be newer is here.
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
            f"this is life {sender.life} of sink {sender.sink!r}, and life {newest} of it has sent rows to this table",
            life=newest,
        )


def list_positions(txns: Mapping[str, int], sender: Sender) -> list[list[int]]:
    """`[[first_vnode, last_vnode, seq, index], …]` of what is kept of a sender."""
    runs: list[list[int]] = []
    for vnode, position in _positions_by_vnode(txns, sender).items():
        place = list(unpack(position))
        if runs and runs[-1][1] == vnode - 1 and runs[-1][2:] == place:
            runs[-1][1] = vnode
        else:
            runs.append([vnode, vnode, *place])
    return runs


def older_positions(txns: Mapping[str, int], sender: Sender) -> dict[str, int]:
    """What is kept of the life before a sender's, which its first commit forgets."""
    life = txns.get(sender.life_app, sender.life)
    if life == sender.life:
        return {}
    older = Sender(sender.sink, life)
    return {app: txns[app] for app in replay_transactions(older) if app in txns and app != older.life_app}


def replay_transactions(sender: Sender) -> list[str]:
    """Every transaction that a replay is judged by."""
    return [sender.life_app, sender.replay_app, *map(sender.position_app, range(MAX_VNODES))]


def holds_chunk(chunk: ChunkHeader, txns: Mapping[str, int]) -> bool:
    """Whether nothing of a chunk is new. Positions do not move back, so that stays so."""
    return all(end <= txns.get(chunk.sender.position_app(vnode), -1) for vnode, (_, end) in chunk.ranges.items())


@dataclass(frozen=True)
class NewRows:
    """What of a chunk is new: which of its rows (None: all of them), and where life and positions stand after it."""

    is_new: npt.NDArray[np.bool_] | None
    moved: Mapping[str, int]


def find_new_rows(chunk: ChunkHeader, places: Places, txns: Mapping[str, int]) -> NewRows:
    """What to do with a chunk when lives and positions stand as in `txns`; 410 when its life is over; `Conflict` with
    the positions when something is missing before it. Then nothing of it may be applied."""
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
    """Where life and replays stand after a replay; 410 when its life is over; `Conflict` when something of the sink is
    here that is newer than its rows may be. Then nothing of it may be applied.

    Changes that the table does not have yet may be older than these rows. They come later, up to that seq and beyond,
    so each key ends in its newest state."""
    sender, as_of = replay.sender, replay.as_of
    check_life(sender, txns)
    earlier = txns.get(sender.replay_app, -1)
    # The seq of the last change before a position, as far as the position tells.
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
