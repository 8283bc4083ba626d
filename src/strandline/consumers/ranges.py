"""The ranges between a consumer's marks and the head of the log, planned from commit files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from strandline.consumers.feed import RangeSize, files_of, size_of
from strandline.consumers.work import LOG, NOTHING, SNAPSHOT, Work, engine_for
from strandline.errors import Conflict, Invalid
from strandline.sinks.definition import BACKFILL, HEAD, Start
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import DataFile
from strandline.tables.horizon import horizon_at
from strandline.tables.store import TableStore

BATCH_ROWS = 1_000_000
BATCH_BYTES = 512 << 20
LANE_ROWS = 5_000
LANE_VNODES = 256


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
        by_mark: dict[int, list[int]] = defaultdict(list)
        for vnode, seq in marks.items():
            if vnode not in begun:
                by_mark[seq].append(vnode)
        groups = [(mark, group, list(self._new_works(mark, group))) for mark, group in sorted(by_mark.items())]
        highest = max([*marks.values(), *(work.upto for _, _, new in groups for work in new)])
        for mark, group, new in groups:
            works += self._extend_works(mark, group, new, highest)
        return tuple(works)

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
        intents = sorted(known.intents, key=lambda each: (each.after, each.upto, each.schema_id, repr(each.definition)))
        for (after, upto, schema_id, _), group in groupby(
            intents, key=lambda each: (each.after, each.upto, each.schema_id, repr(each.definition))
        ):
            same = tuple(group)
            source = _first_source(same[0].definition.get("start", BACKFILL)) if after == 0 else LOG
            lanes = tuple(intent.vnodes for intent in same)
            work = self._make_work(after, upto, source, [vnode for lane in lanes for vnode in lane])
            yield replace(work, lanes=lanes, schema_id=schema_id, intents=same, is_replay=True)

    def _new_works(self, mark: int, vnodes: Sequence[int]) -> Iterator[Work]:
        """The new works of vnodes at one mark: the first range of a new consumer, then parts of the log that end with a
        commit."""
        log = self._merge.log
        if mark == 0 and log.head and _first_source(self._start) != LOG:
            mark = self._first_upto()
            yield self._make_work(0, mark, _first_source(self._start), vnodes)
        part: list[tuple[int, DataFile]] = []
        after, rows, size = mark, 0, 0
        files = files_of(log, mark, log.head, vnodes, self._merge.definition.vnodes) if mark < log.head else []
        for _, commit in groupby(files, key=lambda pair: pair[0]):
            new = list(commit)
            more = size_of(new)
            rows, size = rows + more.rows, size + more.raw_bytes
            if part and (rows > BATCH_ROWS or size > BATCH_BYTES):
                yield self._make_work(after, part[-1][0], LOG, vnodes, size_of(part))
                after, part, rows, size = part[-1][0], [], more.rows, more.raw_bytes
            part += new
        if part:
            upto = max(part[-1][0], log.redefined if self._is_copy else 0)
            yield self._make_work(after, upto, LOG, vnodes, size_of(part))
            after = upto
        if self._is_copy and after and self._is_outdated(after):
            yield self._make_work(after, log.head, NOTHING, vnodes)

    def _is_outdated(self, after: int) -> bool:
        """Whether a copy of the table at a seq has other rows or columns than the table, although no change came."""
        log = self._merge.log
        return after < log.redefined or horizon_at(log.snapshot.txns, after) != self._merge.horizon

    def _extend_works(self, mark: int, vnodes: Sequence[int], new: Sequence[Work], highest: int) -> Sequence[Work]:
        """The new works of some vnodes, extended to the highest seq of all works. Vnodes without changes move there
        too: otherwise their marks would keep the log from being trimmed."""
        if new and new[-1].source != SNAPSHOT:
            return [*new[:-1], replace(new[-1], upto=max(highest, new[-1].upto))]
        if new or not 0 < mark < highest:
            return new
        return [self._make_work(mark, highest, NOTHING, vnodes)]

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


def _first_source(start: object) -> str:
    """The source of a consumer's first range. With start 0 there is nothing to skip: it begins with the log."""
    return SNAPSHOT if start == BACKFILL else LOG if start == 0 else NOTHING
