"""The shape of a block of made-up conversations: who speaks, in which parts, message by message.

Every block has exactly `BLOCK_ROWS` rows, so the block of a row follows from the row's ordinal."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CONVERSATIONS: Final = 64
BLOCK_ROWS: Final = CONVERSATIONS * 136
SHORTEST: Final = 4

ROLES: Final = ["user", "assistant", "tool"]
KINDS: Final = ["text", "reasoning", "tool_call", "tool_result", "image", "error"]
ASSISTANT: Final = ROLES.index("assistant")
TOOL_CALL: Final = KINDS.index("tool_call")
TOOL_RESULT: Final = KINDS.index("tool_result")
IMAGE: Final = KINDS.index("image")
ERROR: Final = KINDS.index("error")

# The first turn opens a conversation. Each other turn is a response and the message after it, so turns can come
# in any order.
TURNS: Final = [
    (0.00, "user text"),
    (0.36, "assistant tool_call; tool tool_result"),
    (0.18, "assistant text tool_call; tool tool_result"),
    (0.18, "assistant reasoning text tool_call; tool tool_result"),
    (0.09, "assistant reasoning tool_call tool_call; tool tool_result tool_result"),
    (0.13, "assistant reasoning text; user text"),
    (0.04, "assistant text; user text image"),
    (0.02, "assistant error; user text"),
]


def _rows_of(turn: str) -> list[tuple[int, int, bool, int]]:
    """A turn's rows as (role, kind, is first in its message, number of the same kind before it)."""
    return [
        (ROLES.index(role), KINDS.index(kind), part == 0, kinds[:part].count(kind))
        for role, *kinds in map(str.split, turn.split("; "))
        for part, kind in enumerate(kinds)
    ]


_ROWS: Final = [_rows_of(turn) for _, turn in TURNS]
_SIZES: Final = np.array([len(rows) for rows in _ROWS])
_FIRSTS: Final = np.cumsum(_SIZES) - _SIZES
_ROLE, _KIND, _OPENS, _PAIR = (np.array(column) for column in zip(*chain(*_ROWS), strict=True))


@dataclass(frozen=True, eq=False)
class Turns:
    """One entry per row. `conversation`, `turn`, `message` and `request` count within the block."""

    conversation: Array
    turn: Array
    request: Array
    message: Array
    message_index: Array
    part_index: Array
    role: Array
    kind: Array
    call: Array
    is_last_part: Array

    @property
    def turns(self) -> int:
        return int(self.turn[-1]) + 1

    @property
    def messages(self) -> int:
        return int(self.message[-1]) + 1


def draw(rng: np.random.Generator) -> Turns:
    """Draw a block's conversations, a few of them many times longer than most.

    A conversation may end in the middle of a turn, as if interrupted: a call may have no result, but every result
    has a call."""
    weights = rng.lognormal(0, 1, CONVERSATIONS)
    spread = BLOCK_ROWS - SHORTEST * CONVERSATIONS
    sizes = SHORTEST + (weights * (spread / weights.sum())).astype(np.int64)
    sizes[: BLOCK_ROWS - sizes.sum()] += 1

    # No turn but the first has fewer than two rows, so this many are enough; rows beyond `sizes` are dropped.
    turns = sizes // 2 + 1
    openings = np.cumsum(turns) - turns
    choice = rng.choice(len(TURNS), int(turns.sum()), p=[weight for weight, _ in TURNS])
    choice[openings] = 0
    turn = np.repeat(np.arange(len(choice)), _SIZES[choice])
    drawn = np.arange(len(turn))
    turn_starts = np.cumsum(_SIZES[choice]) - _SIZES[choice]
    conversation = np.repeat(np.arange(CONVERSATIONS), turns)[turn]
    is_kept = drawn - turn_starts[openings][conversation] < sizes[conversation]
    part = (_FIRSTS[choice][turn] + drawn - turn_starts[turn])[is_kept]
    turn, conversation = turn[is_kept], conversation[is_kept]

    message = np.cumsum(_OPENS[part]) - 1
    message_starts = np.flatnonzero(_OPENS[part])
    conversation_starts = np.cumsum(sizes) - sizes
    return Turns(
        conversation=conversation,
        turn=turn,
        request=np.where(_ROLE[part] == ASSISTANT, turn, turn + 1),
        message=message,
        message_index=message - message[conversation_starts][conversation],
        part_index=np.arange(BLOCK_ROWS) - message_starts[message],
        role=_ROLE[part],
        kind=_KIND[part],
        call=2 * turn + _PAIR[part],
        is_last_part=np.append(message[1:] != message[:-1], True),
    )
