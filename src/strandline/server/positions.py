"""How far a table has the changes of each producer: Delta transactions in the commits that bring them.

For each (producer, vnode) the log keeps the position before which it has everything. Positions move forward only, and
in the commit that adds the rows, so rows and positions cannot disagree, whatever crashes or repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strandline.definitions import MAX_VNODES
from strandline.errors import Conflict
from strandline.server.chunk import Chunk, Places, unpack


def app_of(producer: str, vnode: int) -> str:
    return f"from/{producer}/{vnode}"


def known(txns: Mapping[str, int], producer: str) -> list[list[int]]:
    """`[[first_vnode, last_vnode, seq, index], …]` of what is kept of a producer."""
    runs: list[list[int]] = []
    for vnode in range(MAX_VNODES):
        position = txns.get(app_of(producer, vnode))
        if position is None:
            continue
        place = list(unpack(position))
        if runs and runs[-1][1] == vnode - 1 and runs[-1][2:] == place:
            runs[-1][1] = vnode
        else:
            runs.append([vnode, vnode, *place])
    return runs


def has_all(chunk: Chunk, txns: Mapping[str, int]) -> bool:
    """Whether nothing of a chunk is new. Positions do not move back, so that stays so."""
    return all(end <= txns.get(app_of(chunk.producer, vnode), -1) for vnode, (_, end) in chunk.ranges.items())


@dataclass(frozen=True)
class Verdict:
    """What of a chunk is new: which of its rows (None: all of them), and where positions stand after it."""

    is_new: npt.NDArray[np.bool_] | None
    moved: Mapping[str, int]


def verdict(chunk: Chunk, places: Places, txns: Mapping[str, int]) -> Verdict:
    """What to do with a chunk when positions stand as in `txns`; `Conflict` with them when something is missing before
    it: then nothing of it may be applied."""
    floors = np.zeros(MAX_VNODES, np.int64)
    moved: dict[str, int] = {}
    is_all = True
    for vnode, (start, end) in chunk.ranges.items():
        app = app_of(chunk.producer, vnode)
        position = txns.get(app)
        if position is None and chunk.is_first:
            position = start
            moved[app] = end
        elif position is None or position < start:
            raise _gap(chunk, vnode, position, start, txns)
        elif position < end:
            moved[app] = end
        is_all = is_all and position <= start
        floors[vnode] = position
    return Verdict(None if is_all else places.positions >= floors[places.vnodes], moved)


def _gap(chunk: Chunk, vnode: int, position: int | None, start: int, txns: Mapping[str, int]) -> Conflict:
    has = "nothing of it" if position is None else f"everything before (seq, index) {unpack(position)}"
    return Conflict(
        f"the chunk of producer {chunk.producer!r} begins at {unpack(start)} in vnode {vnode}; this table has {has}",
        hint="Nothing was applied.",
        positions=known(txns, chunk.producer),
    )
