"""What a tick will do, as data: for every sink the ranges it will deliver, how much that is, and by which engine.

A plan is made from commit files and the state alone; no data file is read. A dry run prints it, `tick` carries it out;
after a crash it is what was begun, and what comes after that is planned when it is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from strandline.consumers import retention
from strandline.consumers.feed import Extent, extent_of, files_of
from strandline.errors import Conflict, Internal, Invalid, NotFound, StrandlineError
from strandline.pipeline.resolve import declared_sink, registration, standings, table_of
from strandline.sinks.definition import BACKFILL, HEAD, SinkDef, Start
from strandline.state.consumers import Consumer
from strandline.state.intents import Intent
from strandline.state.marks import Standing
from strandline.storage.snapshot import DataFile
from strandline.tables.broken import BrokenTable, guarded
from strandline.tables.log import LogState
from strandline.tables.merge import Merge

if TYPE_CHECKING:
    from strandline.lake import Lake

DRIVER_ROWS = 200_000
DRIVER_BYTES = 64 << 20
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
    extent: Extent
    schema_id: int
    replay: tuple[Intent, ...] = ()

    @property
    def vnodes(self) -> tuple[int, ...]:
        return tuple(sorted(vnode for lane in self.lanes for vnode in lane))

    @property
    def engine(self) -> str:
        is_small = self.extent.rows <= DRIVER_ROWS and self.extent.raw_bytes <= DRIVER_BYTES
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


@dataclass(frozen=True)
class SinkPlan:
    """What a tick will do for one sink. `rows` and `bytes` are upper bounds where only some vnodes are due; `why` says
    what is not as it was; `start` is where it begins, or began; `lost` are columns that its condition names and
    the table has no more: nothing leaves; `epoch` is what the table's log knows of the state; with `error` nothing will
    be done."""

    name: str
    table: str
    kind: str
    destination: str
    works: tuple[Work, ...] = ()
    is_new: bool = False
    is_retired: bool = False
    why: str = ""
    start: Start = BACKFILL
    lost: tuple[str, ...] = ()
    epoch: int = 0
    error: StrandlineError | None = None

    @property
    def rows(self) -> int:
        return sum(work.extent.rows for work in self.works)

    @property
    def bytes(self) -> int:
        return sum(work.extent.bytes for work in self.works)

    def to_dict(self) -> dict[str, Any]:
        error = None if self.error is None else self.error.to_dict()
        return {
            "name": self.name,
            "table": self.table,
            "kind": self.kind,
            "destination": self.destination,
            "rows": self.rows,
            "bytes": self.bytes,
            "works": [work.to_dict() for work in self.works],
            "is_new": self.is_new,
            "is_retired": self.is_retired,
            "why": self.why,
            "lost": list(self.lost),
            "error": error,
        }


@dataclass(frozen=True)
class Plan:
    """What a tick will do: sinks first, then tables to fold and tables with rows to expire; nothing for broken ones."""

    sinks: tuple[SinkPlan, ...]
    compact: tuple[str, ...] = ()
    expire: tuple[str, ...] = ()
    broken: tuple[BrokenTable, ...] = ()

    @property
    def is_idle(self) -> bool:
        is_cared_for = not self.compact and not self.expire and not self.broken
        return is_cared_for and not any(sink.works or sink.error for sink in self.sinks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sinks": [sink.to_dict() for sink in self.sinks],
            "compact": list(self.compact),
            "expire": list(self.expire),
            "broken": [each.to_dict() for each in self.broken],
        }


def plan_of(lake: Lake) -> Plan:
    """What a tick of the lake would do now."""
    return Plan(tuple(sink_plans(lake)), *cares(lake))


def sink_plans(lake: Lake, names: Sequence[str] | None = None) -> list[SinkPlan]:
    """What a tick would do for these sinks, each once, or for all."""
    known = standings(lake)
    for name in names or ():
        if name not in known:
            raise NotFound(f"there is no sink {name!r}", hint=f"Sinks: {', '.join(known) or 'none'}", consumer=name)
    return [sink_plan(lake, name, known[name]) for name in (known if names is None else dict.fromkeys(names))]


def sink_plan(lake: Lake, name: str, found: Standing) -> SinkPlan:
    """What a tick would do for a sink that the state has so."""
    declared, consumer = declared_sink(lake, name, found.consumer), found.consumer
    known = declared or consumer
    assert known is not None
    kind = declared.to.kind if declared else consumer.kind if consumer else ""
    destination = declared.to.destination if declared else consumer.destination if consumer else ""
    plan = SinkPlan(name, known.table, kind, destination)
    if consumer is not None and consumer.undecided is not None:
        return replace(plan, error=_waits(consumer))
    if consumer is not None and consumer.is_retired:
        return replace(plan, is_retired=True)
    try:
        table = table_of(lake, declared, consumer)
        registered, sink = registration(table, declared, found)
        epoch = table.log.refresh().epoch
        plan = replace(
            plan, table=table.name, is_new=registered.is_new, why=registered.why, start=sink.start, epoch=epoch
        )
        shape = sink.shape(table.definition, is_new=registered.is_new, with_salt=False)
        plan = replace(plan, lost=shape.lost)
        standing = Standing(registered.consumer) if registered.is_new else found
        return replace(plan, works=works_of(sink, standing, table.merge()))
    except StrandlineError as error:
        return replace(plan, error=error)
    except Exception as error:
        # Damage has no end of forms; whichever it is, the other sinks go on.
        return replace(plan, error=Internal(f"sink {name!r} cannot be planned: {type(error).__name__}: {error}"))


def _waits(consumer: Consumer) -> Conflict:
    name = consumer.name
    return Conflict(
        f"sink {name!r} waits for you to say where it goes on: its marks were lost, and {consumer.undecided}",
        hint=f"Nothing is sent. To send the table again: strandline mark reset {name} (only changes from a seq on:"
        f" --to SEQ, --head). To give it up: strandline mark retire {name}",
        consumer=name,
    )


def cares(lake: Lake) -> tuple[tuple[str, ...], tuple[str, ...], tuple[BrokenTable, ...]]:
    """The tables with something to fold, those with rows to expire, and those of which that cannot be said."""

    def due(name: str) -> tuple[bool, bool]:
        table = lake.table(name)
        return bool(table.plan_compaction().due), retention.due(table) is not None

    found = {name: guarded(name, partial(due, name)) for name in lake.tables()}
    broken = tuple(each for each in found.values() if isinstance(each, BrokenTable))
    known = {name: each for name, each in found.items() if not isinstance(each, BrokenTable)}
    return tuple(n for n, each in known.items() if each[0]), tuple(n for n, each in known.items() if each[1]), broken


def works_of(definition: SinkDef, standing: Standing, merge: Merge) -> tuple[Work, ...]:
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


def _new(definition: SinkDef, mark: int, group: Sequence[int], merge: Merge) -> Iterator[Work]:
    """What is new for vnodes that stand at one mark."""
    if mark == 0 and merge.log.head and _source(definition.start) != LOG:
        first = _first(definition, group, merge)
        yield first
        mark = first.upto
    yield from _ranges(definition, merge.log, mark, group)


def _levelled(
    definition: SinkDef, mark: int, group: Sequence[int], new: Sequence[Work], upto: int, merge: Merge
) -> Sequence[Work]:
    """The same, up to where the others come: vnodes that have nothing more until there must not stay behind, where they
    would hold the log."""
    if new and new[-1].source != SNAPSHOT:
        return [*new[:-1], replace(new[-1], upto=max(upto, new[-1].upto))]
    if new or not 0 < mark < upto:
        return new
    nothing = Extent(0, 0, 0, 0)
    return [Work(mark, upto, NOTHING, _lanes(definition, group, nothing), nothing, merge.definition.schema_id)]


def _replays(intents: Sequence[Intent], merge: Merge) -> Iterator[Work]:
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


def _first(definition: SinkDef, group: Sequence[int], merge: Merge) -> Work:
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


def _extent(merge: Merge, source: str, after: int, upto: int, vnodes: Sequence[int]) -> Extent:
    if source == LOG:
        return extent_of(files_of(merge.log, after, upto, vnodes, merge.definition.vnodes))
    if source == NOTHING:
        return Extent(0, 0, 0, 0)
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


def _lanes(definition: SinkDef, vnodes: Sequence[int], extent: Extent) -> tuple[tuple[int, ...], ...]:
    """Few rows go in one lane; more are spread, each lane over neighbouring vnodes."""
    if definition.to.lanes == 1:
        return (tuple(vnodes),)
    wanted = min(definition.to.lanes, -(-extent.rows // LANE_ROWS) or 1)
    count = max(1, min(len(vnodes), max(wanted, -(-len(vnodes) // LANE_VNODES))))
    bounds = [len(vnodes) * at // count for at in range(count + 1)]
    return tuple(tuple(vnodes[low:high]) for low, high in pairwise(bounds))
