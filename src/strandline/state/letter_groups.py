"""Dead letters that have the same cause, together."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from strandline.state.letters import DeadLetter

_SAMPLE = 3
# The parts of a reason that name one row.
_OWN = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass(frozen=True)
class LetterGroup:
    """Letters of one consumer that were refused for the same reason. `reason` is that of the newest letter; `keys` are
    some of the refused keys."""

    consumer: str
    table: str
    status: int | None
    reason: str
    letters: int
    rows: int
    first_at: dt.datetime
    last_at: dt.datetime
    keys: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def group_letters(letters: Sequence[DeadLetter]) -> list[LetterGroup]:
    """The letters by consumer and cause, the largest group first. Reasons that differ in numbers and quoted values are
    the same cause."""
    found: dict[tuple[object, ...], list[DeadLetter]] = {}
    for letter in letters:
        cause = (letter.consumer, letter.table, letter.status, _OWN.sub("", letter.reason))
        found.setdefault(cause, []).append(letter)
    groups = [_make_group(each) for each in found.values()]
    return sorted(groups, key=lambda group: -group.rows)


def _make_group(letters: Sequence[DeadLetter]) -> LetterGroup:
    newest = max(letters, key=lambda letter: letter.created_s)
    keys = islice((key for letter in letters for key in letter.key_table.slice(0, _SAMPLE).to_pylist()), _SAMPLE)
    return LetterGroup(
        consumer=newest.consumer,
        table=newest.table,
        status=newest.status,
        reason=newest.reason,
        letters=len(letters),
        rows=sum(letter.rows for letter in letters),
        first_at=min(letter.created_at for letter in letters),
        last_at=newest.created_at,
        keys=tuple(keys),
    )
