"""The ranges between a consumer's marks and the head of the log, planned from commit files.

A new consumer gets the table as one batch when it is small. A larger table is its history: it is delivered in rounds,
key by key (see `state/key_positions`). Before each round, the vnodes catch up with the changes of the keys that were
delivered. A plan has one round of a vnode; how far it goes is decided when it runs (see `rounds`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from strandline.consumers.feed import KeySpan, RangeSize, files_of, size_of
from strandline.consumers.work import LOG, NOTHING, ROUND, SNAPSHOT, Work, engine_for
from strandline.engines.choice import DELIVERY
from strandline.errors import Conflict, Invalid
from strandline.sinks.definition import BACKFILL, HEAD, Start
from strandline.state.intents import Intent
from strandline.state.key_positions import Position
from strandline.state.marks import ConsumerState
from strandline.state.rates import Rate
from strandline.storage.snapshot import DataFile
from strandline.tables.horizon import horizon_at
from strandline.tables.store import TableStore

BATCH_ROWS = 1_000_000
BATCH_BYTES = 512 << 20
LANE_ROWS = 5_000
LANE_VNODES = 256
ROUND_S = 2.0
"""How long a batch takes at most when a rate holds it back."""
SMALL = DELIVERY
"""A table within this limit is no history: a new consumer gets it as one batch."""
Positions = Mapping[int, Position | None]


class Ranges:
    """The ranges of one consumer of a table. `title` is its name in messages, `start` where it begins when it has never
    run, `lanes` into how many lanes a large range may be cut. For a copy of the table (`is_copy`), an expiry of rows
    and a change of its columns are work too."""

    def __init__(
        self, table: TableStore, *, name: str, title: str, start: Start, lanes: int, is_copy: bool = False
    ) -> None:
        self._table = table
        self._merge = table.merge()
        self._name = name
        self._title = title
        self._start = start
        self._lanes = lanes
        self._is_copy = is_copy

    def works(self, known: ConsumerState) -> tuple[Work, ...]:
        """The unfinished works, and new works for the other vnodes. Vnodes of unfinished works get new ones in a later
        plan."""
        vnodes = self._merge.definition.vnodes
        marks = {vnode: known.marks.get(vnode, 0) for vnode in range(vnodes)}
        self._check_head(max(marks.values()))
        works = list(self._begun_works(known))
        begun = {vnode for work in works for vnode in work.vnodes}
        groups: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        histories = self._histories(known)
        for vnode, seq in marks.items():
            if vnode not in begun:
                at = histories.get(vnode, _WHOLE) or Position()
                groups[seq, at.key].append(vnode)
        planned = []
        for (mark, _), group in sorted(groups.items()):
            positions = {vnode: histories[vnode] for vnode in group if vnode in histories}
            planned.append((mark, group, positions, list(self._new_works(mark, group, positions, known.rate))))
        highest = max([*marks.values(), *(work.upto for _, _, _, new in planned for work in new)])
        rounds: list[Work] = []
        for mark, group, positions, new in planned:
            more = self._extend_works(mark, group, positions, new, highest)
            works += more
            if positions and not known.rate.is_stopped:
                rounds += self._rounds(more[-1].upto if more else mark, mark, group, positions)
        # Vnodes that fell behind come last, because they go as far as the others at most: then all go on together.
        works += sorted(rounds, key=_start_of, reverse=True)
        return tuple(works)

    def _histories(self, known: ConsumerState) -> dict[int, Position | None]:
        """The positions of the vnodes whose history is not delivered yet; None for one that has not begun."""
        found: dict[int, Position | None] = {v: each for v, each in known.positions.items() if not each.is_done}
        new = [
            vnode
            for vnode in range(self._merge.definition.vnodes)
            if not known.marks.get(vnode) and vnode not in known.positions
        ]
        if new and self._start == BACKFILL and self._merge.log.head and self._is_history(known):
            found |= dict.fromkeys(new)
        return found

    def _is_history(self, known: ConsumerState) -> bool:
        """Whether the table is too much for one batch."""
        if known.positions or known.rate.is_stopped:
            return True
        size = self._measure_range(0, self._merge.log.head, SNAPSHOT, range(self._merge.definition.vnodes))
        is_small = SMALL.holds(rows=size.rows, raw_bytes=size.raw_bytes)
        return not is_small or known.rate.owed_s(size.rows, size.bytes) > ROUND_S

    def _rounds(self, upto: int, mark: int, vnodes: Sequence[int], positions: Positions) -> Iterator[Work]:
        """The next round of these vnodes, planned with everything that they still lack."""
        upto = upto or self._merge.log.head
        at = next(iter(positions.values())) or Position()
        size = self._measure_range(mark, upto, SNAPSHOT, vnodes)
        size = replace(_part_of(size, 1 - _mean_share(positions.values())), commits=0)
        work = self._make_work(upto if mark else 0, upto, ROUND, vnodes, size)
        yield replace(work, span=KeySpan(at.key), positions=positions)

    def _check_head(self, mark: int) -> None:
        head = self._merge.log.head
        if mark > head:
            raise Conflict(
                f"{self._title} has delivered up to seq {mark}, but the log of table"
                f" {self._table.name!r} ends at {head}: the lake was restored from an older copy",
                hint=f"Nothing was sent. Start it again: strandline mark reset {self._name}",
                consumer=self._name,
                expected=mark,
                found=head,
            )

    def _begun_works(self, known: ConsumerState) -> Iterator[Work]:

        def likeness(each: Intent) -> tuple[int, int, int, str, str]:
            """What intents of one work have in common."""
            at = known.positions.get(each.vnodes[0])
            history = None if at is None or at.is_done else (at.key, at.is_begun, at.until)
            return each.after, each.upto, each.schema_id, repr(each.definition), repr(history)

        for (after, upto, schema_id, _, _), group in groupby(sorted(known.intents, key=likeness), key=likeness):
            same = tuple(group)
            lanes = tuple(intent.vnodes for intent in same)
            vnodes = [vnode for lane in lanes for vnode in lane]
            at = known.positions.get(vnodes[0])
            source, span, extent, positions = LOG, None, None, {}
            if at is not None and not at.is_done:
                source, span = (ROUND, KeySpan(at.key, at.until)) if at.is_begun else (LOG, KeySpan(end=at.key))
                positions = {vnode: known.positions[vnode] for vnode in vnodes}
                extent = self._measure_begun(after, upto, source, known.positions, vnodes)
            elif after == 0:
                source = _first_source(same[0].definition.get("start", BACKFILL))
            work = self._make_work(after, upto, source, vnodes, extent)
            work = replace(work, lanes=lanes, schema_id=schema_id, intents=same, is_replay=True)
            yield replace(work, span=span, positions=positions)

    def _measure_begun(
        self, after: int, upto: int, source: str, positions: Mapping[int, Position], vnodes: Sequence[int]
    ) -> RangeSize:
        """About the size of a round or of a catch-up that was begun."""
        size = self._measure_range(after, upto, source, vnodes)
        if source == ROUND:
            return _part_of(size, sum(positions[vnode].planned[0] for vnode in vnodes) / max(1, size.rows))
        return _part_of(size, _mean_share(positions[vnode] for vnode in vnodes))

    def _new_works(self, mark: int, vnodes: Sequence[int], positions: Positions, rate: Rate) -> Iterator[Work]:
        """The new works of vnodes at one mark, without rounds: the first range of a new consumer, then parts of the log
        that end with a commit. While the history is delivered, they have the changes of the keys that were."""
        log = self._merge.log
        if positions and (mark == 0 or not self._merge.definition.is_keyed):
            # Rows of a table without a key are added behind all others: the rounds bring them.
            return
        if mark == 0 and log.head and _first_source(self._start) != LOG:
            mark = self._first_upto()
            yield self._make_work(0, mark, _first_source(self._start), vnodes)
        part: list[tuple[int, DataFile]] = []
        after, rows, size, stored = mark, 0, 0, 0
        files = files_of(log, mark, log.head, vnodes, self._merge.definition.vnodes) if mark < log.head else []
        for _, commit in groupby(files, key=lambda pair: pair[0]):
            new = list(commit)
            more = size_of(new)
            rows, size, stored = rows + more.rows, size + more.raw_bytes, stored + more.bytes
            if part and (rows > BATCH_ROWS or size > BATCH_BYTES or rate.owed_s(rows, stored) > ROUND_S):
                yield self._log_work(after, part[-1][0], part, vnodes, positions)
                after, part, rows, size, stored = part[-1][0], [], more.rows, more.raw_bytes, more.bytes
            part += new
        if part:
            upto = max(part[-1][0], log.redefined if self._is_copy else 0)
            yield self._log_work(after, upto, part, vnodes, positions)
            after = upto
        if self._is_copy and after and self._is_outdated(after):
            yield replace(self._make_work(after, log.head, NOTHING, vnodes), positions=positions)

    def _is_outdated(self, after: int) -> bool:
        """Whether a copy of the table at a seq has other rows or columns than the table, although no change came."""
        log = self._merge.log
        return after < log.redefined or horizon_at(log.snapshot.txns, after) != self._merge.horizon

    def _log_work(
        self, after: int, upto: int, part: Sequence[tuple[int, DataFile]], vnodes: Sequence[int], positions: Positions
    ) -> Work:
        """The changes of these files; while the history is delivered, those of the keys that were."""
        size = size_of(part)
        if not positions:
            return self._make_work(after, upto, LOG, vnodes, size)
        size = _part_of(size, _mean_share(positions.values()))
        at = next(iter(positions.values())) or Position()
        work = self._make_work(after, upto, LOG, vnodes, size)
        return replace(work, span=KeySpan(end=at.key), positions=positions)

    def _extend_works(
        self, mark: int, vnodes: Sequence[int], positions: Positions, new: Sequence[Work], highest: int
    ) -> list[Work]:
        """The new works of some vnodes, extended to the highest seq of all works. Vnodes without changes move there
        too: otherwise their marks would keep the log from being trimmed."""
        if new and new[-1].source != SNAPSHOT:
            return [*new[:-1], replace(new[-1], upto=max(highest, new[-1].upto))]
        highest = max(highest, self._merge.log.head if positions else 0)
        if new or not 0 < mark < highest:
            return list(new)
        return [replace(self._make_work(mark, highest, NOTHING, vnodes), positions=positions)]

    def _first_upto(self) -> int:
        """Where the first range of a new consumer ends."""
        head = self._merge.log.head
        upto = head if self._start in (BACKFILL, HEAD) else int(self._start)
        if upto > head:
            raise Invalid(
                f"{self._title} starts after seq {upto}, but table {self._table.name!r} is at {head}",
                hint="Start it at 'head', or at a seq that the table has.",
                consumer=self._name,
                seq=upto,
            )
        return upto

    def _make_work(
        self, after: int, upto: int, source: str, vnodes: Sequence[int], extent: RangeSize | None = None
    ) -> Work:
        extent = extent or self._measure_range(after, upto, source, vnodes)
        return Work(
            self._table,
            after,
            upto,
            source,
            self._spread_lanes(vnodes, extent.rows),
            extent,
            self._merge.definition.schema_id,
            engine_for(extent),
        )

    def _measure_range(self, after: int, upto: int, source: str, vnodes: Sequence[int]) -> RangeSize:
        merge = self._merge
        if source == LOG:
            return size_of(files_of(merge.log, after, upto, vnodes, merge.definition.vnodes))
        if source == NOTHING:
            return RangeSize(0, 0, 0, 0)
        part = merge if len(vnodes) == merge.definition.vnodes else merge.part(vnodes)
        log = part.log_files()
        whole = size_of([*((0, file) for file in part.base_files()), *log])
        return replace(whole, commits=len({seq for seq, _ in log}))

    def _spread_lanes(self, vnodes: Sequence[int], rows: int) -> tuple[tuple[int, ...], ...]:
        """The lanes of a range: one for few rows, else several, each of neighbouring vnodes."""
        if self._lanes == 1:
            return (tuple(vnodes),)
        wanted = min(self._lanes, -(-rows // LANE_ROWS) or 1)
        count = max(1, min(len(vnodes), max(wanted, -(-len(vnodes) // LANE_VNODES))))
        bounds = [len(vnodes) * at // count for at in range(count + 1)]
        return tuple(tuple(vnodes[low:high]) for low, high in pairwise(bounds))


_WHOLE = Position(is_done=True)


def _mean_share(positions: Iterable[Position | None]) -> float:
    shares = [0.0 if each is None else each.share for each in positions]
    return sum(shares) / max(1, len(shares))


def _part_of(size: RangeSize, part: float) -> RangeSize:
    """About the size of a part of a range."""
    part = min(1.0, part)
    return RangeSize(size.commits, *(round(each * part) for each in (size.rows, size.bytes, size.raw_bytes)))


def _start_of(work: Work) -> bytes:
    return work.span.start if work.span else b""


def _first_source(start: object) -> str:
    """The source of a consumer's first range. With start 0 there is nothing to skip: it begins with the log."""
    return SNAPSHOT if start == BACKFILL else LOG if start == 0 else NOTHING
