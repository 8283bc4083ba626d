"""The ranges that a sink has to deliver to reach the head of a log, planned from marks and commit files alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from strandline.consumers.feed import RangeSize, extent_of, files_of
from strandline.engines.choice import DELIVERY
from strandline.errors import Conflict, Invalid
from strandline.sinks.definition import BACKFILL, HEAD, SinkDef
from strandline.state.intents import Intent
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import DataFile
from strandline.tables.log import LogState
from strandline.tables.merge import TableAt

BATCH_ROWS = 1_000_000
BATCH_BYTES = 512 << 20
LANE_ROWS = 5_000
LANE_VNODES = 256

SNAPSHOT, LOG, NOTHING = "snapshot", "log", "nothing"


@dataclass(frozen=True)
class Work:
    """One range of a sink. `source` is where its rows come from: the table as it is at `upto`, the log, or nowhere when
    the sink only takes its place. `lanes` are vnodes that are delivered, and fail, together. `replay` are the intents
    of an earlier run that it repeats."""

    after: int
    upto: int
    source: str
    lanes: tuple[tuple[int, ...], ...]
    extent: RangeSize
    schema_id: int
    replay: tuple[Intent, ...] = ()

    @property
    def vnodes(self) -> tuple[int, ...]:
        return tuple(sorted(vnode for lane in self.lanes for vnode in lane))

    @property
    def engine(self) -> str:
        is_small = DELIVERY.holds(rows=self.extent.rows, raw_bytes=self.extent.raw_bytes)
        return "driver" if is_small or self.source == NOTHING else "spark"

    def to_dict(self) -> dict[str, Any]:
        return {
            "after": self.after,
            "upto": self.upto,
            "source": self.source,
            "rows": self.extent.rows,
            "bytes": self.extent.bytes,
            "commits": self.extent.commits,
            "engine": self.engine,
            "lanes": len(self.lanes),
            "is_replay": bool(self.replay),
        }


def works_of(definition: SinkDef, standing: ConsumerState, merge: TableAt) -> tuple[Work, ...]:
    """What a sink has to do to reach the head of `merge`: what it has begun, and what is new for the other vnodes. What
    is new for those that it has begun something for is planned when that is done."""
    log, vnodes = merge.log, merge.definition.vnodes
    marks = {vnode: standing.marks.get(vnode, 0) for vnode in range(vnodes)}
    if max(marks.values()) > log.head:
        raise Conflict(
            f"sink {definition.name!r} has delivered up to seq {max(marks.values())}, but the log of table"
            f" {definition.table!r} ends at {log.head}: the lake was restored from an older copy",
            hint=f"Nothing was sent. Start the sink again: strandline mark reset {definition.name}",
            consumer=definition.name,
            expected=max(marks.values()),
            found=log.head,
        )
    works = list(_replays(standing.intents, merge))
    begun = {vnode for work in works for vnode in work.vnodes}
    by_mark: dict[int, list[int]] = defaultdict(list)
    for vnode, seq in marks.items():
        if vnode not in begun:
            by_mark[seq].append(vnode)
    groups = [(mark, group, list(_new(definition, mark, group, merge))) for mark, group in sorted(by_mark.items())]
    ends = [work.upto for _, _, new in groups for work in new]
    for mark, group, new in groups:
        works += _levelled(definition, mark, group, new, max([*marks.values(), *ends]), merge)
    return tuple(works)


def _new(definition: SinkDef, mark: int, group: Sequence[int], merge: TableAt) -> Iterator[Work]:
    """What is new for vnodes that stand at one mark."""
    if mark == 0 and merge.log.head and _source(definition.start) != LOG:
        first = _first(definition, group, merge)
        yield first
        mark = first.upto
    yield from _ranges(definition, merge.log, mark, group)


def _levelled(
    definition: SinkDef, mark: int, group: Sequence[int], new: Sequence[Work], upto: int, merge: TableAt
) -> Sequence[Work]:
    """The works of some vnodes, extended to `upto`, the highest seq of all. Vnodes without changes move there too:
    their marks would otherwise stay behind and keep the log from being trimmed."""
    if new and new[-1].source != SNAPSHOT:
        return [*new[:-1], replace(new[-1], upto=max(upto, new[-1].upto))]
    if new or not 0 < mark < upto:
        return new
    nothing = RangeSize(0, 0, 0, 0)
    return [Work(mark, upto, NOTHING, _lanes(definition, group, nothing), nothing, merge.definition.schema_id)]


def _replays(intents: Sequence[Intent], merge: TableAt) -> Iterator[Work]:
    def place(intent: Intent) -> tuple[int, int, int, str]:
        return intent.after, intent.upto, intent.schema_id, repr(intent.definition)

    for _, group in groupby(sorted(intents, key=place), key=place):
        same = tuple(group)
        first = same[0]
        source = _source(first.definition.get("start", BACKFILL)) if first.after == 0 else LOG
        lanes = tuple(intent.vnodes for intent in same)
        vnodes = [vnode for lane in lanes for vnode in lane]
        extent = _extent(merge, source, first.after, first.upto, vnodes)
        yield Work(first.after, first.upto, source, lanes, extent, first.schema_id, same)


def _source(start: object) -> str:
    """Where the first range of a sink comes from. After seq 0 there is no place to take: it begins with the log."""
    return SNAPSHOT if start == BACKFILL else LOG if start == 0 else NOTHING


def _first(definition: SinkDef, group: Sequence[int], merge: TableAt) -> Work:
    """How a sink begins: with the table as it is, or by taking its place in the log."""
    start, head = definition.start, merge.log.head
    upto = head if start in (BACKFILL, HEAD) else int(start)
    if upto > head:
        raise Invalid(
            f"sink {definition.name!r} starts after seq {upto}, but table {definition.table!r} is at {head}",
            hint="Start it at 'head', or at a seq that the table has.",
            consumer=definition.name,
            seq=upto,
        )
    source = _source(start)
    extent = _extent(merge, source, 0, upto, group)
    return Work(0, upto, source, _lanes(definition, group, extent), extent, merge.definition.schema_id)


def _extent(merge: TableAt, source: str, after: int, upto: int, vnodes: Sequence[int]) -> RangeSize:
    if source == LOG:
        return extent_of(files_of(merge.log, after, upto, vnodes, merge.definition.vnodes))
    if source == NOTHING:
        return RangeSize(0, 0, 0, 0)
    part = merge if len(vnodes) == merge.definition.vnodes else merge.part(vnodes)
    log = part.log_files()
    return replace(extent_of([*((0, file) for file in part.base_files()), *log]), commits=len({seq for seq, _ in log}))


def _ranges(definition: SinkDef, log: LogState, mark: int, group: Sequence[int]) -> Iterator[Work]:
    """The range from a mark to the head, in parts that end with a commit."""
    part: list[tuple[int, DataFile]] = []
    after, rows, size = mark, 0, 0
    files = files_of(log, mark, log.head, group, log.definition.vnodes) if mark < log.head else []
    for _, commit in groupby(files, key=lambda pair: pair[0]):
        new = list(commit)
        more = extent_of(new)
        rows, size = rows + more.rows, size + more.raw_bytes
        if part and (rows > BATCH_ROWS or size > BATCH_BYTES):
            yield _range(definition, log, after, part, group)
            after, part, rows, size = part[-1][0], [], more.rows, more.raw_bytes
        part += new
    if part:
        yield _range(definition, log, after, part, group)


def _range(
    definition: SinkDef, log: LogState, after: int, files: Sequence[tuple[int, DataFile]], group: Sequence[int]
) -> Work:
    extent = extent_of(files)
    return Work(after, files[-1][0], LOG, _lanes(definition, group, extent), extent, log.definition.schema_id)


def _lanes(definition: SinkDef, vnodes: Sequence[int], extent: RangeSize) -> tuple[tuple[int, ...], ...]:
    """Few rows go in one lane; more are spread, each lane over neighbouring vnodes."""
    if definition.to.lanes == 1:
        return (tuple(vnodes),)
    wanted = min(definition.to.lanes, -(-extent.rows // LANE_ROWS) or 1)
    count = max(1, min(len(vnodes), max(wanted, -(-len(vnodes) // LANE_VNODES))))
    bounds = [len(vnodes) * at // count for at in range(count + 1)]
    return tuple(tuple(vnodes[low:high]) for low, high in pairwise(bounds))
