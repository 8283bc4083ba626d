"""How far a round of a backfill goes, and how long a consumer waits between batches.

A round is cut at a key, by the footers of the files, so deleted ranges cost nothing. Where row groups reach beyond the
round, its last key is looked up among the rows that are left, and those groups are read again by later rounds. Its size
follows the time that rounds take, so that changes of delivered rows never wait long, and a kill costs little. A
rate makes rounds small enough to be smooth, and the waits between batches hold it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from strandline.consumers.feed import KeySpan, RangeSize
from strandline.consumers.ranges import BATCH_BYTES, BATCH_ROWS, ROUND_S
from strandline.consumers.work import ROUND, Work, engine_for
from strandline.engines.choice import chosen_engine
from strandline.model.key_order import is_at_most
from strandline.state.rates import NO_RATE, NONE_SENT, Rate, Sent
from strandline.tables.key_cuts import GroupEnd, compare_positions, find_group_ends, next_cut

TARGET_S = 5.0
"""How long a round should take."""
FIRST_ROWS, FIRST_BYTES = 200_000, 256 << 20
LEAST_ROWS, MOST_ROWS = 2_000, 8_000_000
_LOOK_S = 0.5
_SMOOTHED = 0.3
_LEAST_PART = 0.25
# With less than this part of a row group more than wanted, a cut at its end is good enough.
_CLOSE = 1.3


@dataclass
class Rounds:
    """The rounds of a consumer in one process. `rows` and `raw_bytes` are how much the next one has."""

    rows: int = field(default_factory=lambda: FIRST_ROWS)
    raw_bytes: int = field(default_factory=lambda: FIRST_BYTES)
    rate: Rate = NO_RATE
    pace: float = 0.0
    part: float = 1.0
    """About how many of the rows that a round reads are sent: a condition leaves out the others."""
    last: Sent = NONE_SENT
    save: Callable[[Sent], None] = lambda last: None
    """Keeps the last batch for the next runner."""
    verified: set[str] = field(default_factory=set)
    """The paths of files of the table that were checked for the history under way."""
    generation: str = ""
    """The life of the consumer that this was learned of."""
    _began_s: float | None = None

    def cut(self, work: Work, others: Collection[bytes] = ()) -> Work:
        """A round with its last key. `others` are the positions of other vnodes: the round ends at one that lies in it,
        so that vnodes which fell behind go on with the others."""
        assert work.span is not None
        merge, planned = work.table.merge(work.upto), work.extent
        is_all = len(work.vnodes) == merge.definition.vnodes
        groups = find_group_ends(merge if is_all else merge.part(work.vnodes))
        rows, raw_bytes = self._wanted(work)
        start, until = work.span.start, work.span.end
        until = next_cut(groups, start, rows, raw_bytes)
        for other in others:
            if other and not is_at_most(other, start) and (until is None or compare_positions(other, until) < 0):
                until = other
        size = _size_of([group for group in groups if group.may_hold(start, until)], work)
        work = replace(work, span=KeySpan(start, until))
        share = _share_before(until, groups)
        if size.rows > _CLOSE * rows:
            # Row groups reach beyond the round. Without such a key it has all rows that are left.
            key = work.feed().nth_key(rows)
            most = rows if key is not None else max(1, min(rows, planned.rows))
            part = most / size.rows
            size = RangeSize(0, most, round(size.bytes * part), round(size.raw_bytes * part))
            # The highest key of all leaves nothing for another round.
            until = until if key is None else None if key == groups[-1].key else key
            shares = [0.0 if each is None else each.share for each in work.positions.values()]
            share = sum(shares) / max(1, len(shares)) + size.rows / max(1, sum(group.rows for group in groups))
        share = 1.0 if until is None else min(1.0, share)
        return replace(work, span=KeySpan(start, until), extent=size, share=share, engine=engine_for(size))

    def _wanted(self, work: Work) -> tuple[int, int]:
        """About how many rows and bytes in memory the next round has."""
        rows, raw_bytes = self.rows, self.raw_bytes
        if chosen_engine() == "driver":
            rows, raw_bytes = min(rows, BATCH_ROWS), min(raw_bytes, BATCH_BYTES)
        if self.rate.rows_per_s:
            rows = min(rows, max(1, round(self.rate.rows_per_s * ROUND_S / self.part)))
        if self.rate.bytes_per_s:
            row_bytes = max(1, work.extent.bytes) / max(1, work.extent.rows)
            rows = min(rows, max(1, round(self.rate.bytes_per_s * ROUND_S / self.part / row_bytes)))
        return rows, raw_bytes

    def begin(self, work: Work) -> None:
        """Count a batch before its first row is sent: a runner that is killed does not make the next one quicker."""
        part = self.part if work.source == ROUND else 1.0
        now_s, free_s = time.monotonic(), self.last.free_s(self.rate)
        # A batch that begins a little late makes the next one no later: planning takes time too.
        self._began_s = free_s if free_s <= now_s < free_s + ROUND_S else now_s
        self._set_last(round(work.extent.rows * part), round(work.extent.bytes * part), self._began_s)

    def _set_last(self, rows: int, size: int, began_s: float) -> None:
        self.last = Sent(rows, size, self.rate.owed_s(rows, size), began_s)
        if self.rate.is_limited:
            self.save(self.last)

    def note(self, work: Work, rows: int, size: int, took_s: float, *, is_whole: bool = True) -> None:
        """Learn from a batch that was sent, or in part when it failed."""
        began_s = time.monotonic() - took_s if self._began_s is None else self._began_s
        self._set_last(rows, size, began_s)
        self._began_s = None
        if work.source != ROUND:
            return
        if work.extent.rows and is_whole:
            part = min(1.0, rows / work.extent.rows)
            self.part = max(_LEAST_PART, self.part + _SMOOTHED * (part - self.part))
        due_s = max(took_s, self.rate.owed_s(rows, size), 1e-6)
        if rows:
            self.pace = rows / due_s if not self.pace else self.pace + _SMOOTHED * (rows / due_s - self.pace)
        if took_s < TARGET_S / 2 and work.extent.rows >= self.rows // 2:
            by = 4 if took_s < TARGET_S / 8 else 2
            self.rows, self.raw_bytes = min(MOST_ROWS, self.rows * by), min(8 * BATCH_BYTES, self.raw_bytes * by)
        elif took_s > 2 * TARGET_S:
            self.rows, self.raw_bytes = max(LEAST_ROWS, self.rows // 2), max(FIRST_BYTES // 8, self.raw_bytes // 2)

    def resume(self, pace: float) -> None:
        """Begin with the pace of an earlier run: a slow destination gets small rounds from the first one on."""
        if pace and not self.pace:
            self.pace = pace
            self.rows = max(min(LEAST_ROWS, self.rows), min(self.rows, round(pace * TARGET_S)))

    def wait(
        self, load_rate: Callable[[], Rate], stop: threading.Event, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until the rate allows the next batch, or until it is over. Another rate, set meanwhile, holds at
        once."""
        while self.rate.is_limited and not is_over():
            left_s = self.last.free_s(self.rate) - time.monotonic()
            if left_s <= 0 or stop.wait(min(left_s, _LOOK_S)):
                return
            self.rate = load_rate()


def _share_before(until: bytes | None, groups: Collection[GroupEnd]) -> float:
    """About the part of all rows up to a key: the rows of row groups that end there or before, and half of those of
    groups that reach beyond it."""
    if until is None:
        return 1.0
    begun = [group for group in groups if group.may_hold(b"", until)]
    rows = sum(group.rows / 2 if group.may_hold(until, None) else group.rows for group in begun)
    return rows / max(1, sum(group.rows for group in groups))


def _size_of(groups: Collection[GroupEnd], work: Work) -> RangeSize:
    """The size of these row groups; in files their rows have the size of the others of the work."""
    rows, raw_bytes = sum(group.rows for group in groups), sum(group.raw_bytes for group in groups)
    return RangeSize(0, rows, round(rows * work.extent.bytes / max(1, work.extent.rows)), raw_bytes)
