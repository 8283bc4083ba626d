"""How far a consumer is behind: the distance from its marks to the head in data commits, rows and seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strandline.consumers.context import Context
from strandline.consumers.feed import files_of, size_of
from strandline.consumers.plan import ConsumerPlan
from strandline.consumers.registration import table_of
from strandline.errors import StrandlineError
from strandline.sinks.definition import BACKFILL, HEAD, Start
from strandline.tables.merge import TableAt


@dataclass(frozen=True)
class Lag:
    """`seconds` is the age of the oldest missing change, None when there is none. `rows` counts whole files, so it may
    include rows of vnodes that are further."""

    commits: int
    rows: int
    seconds: float | None

    @property
    def is_none(self) -> bool:
        return not self.commits and not self.rows

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lag_of(marks: Mapping[int, int], start: Start, merge: TableAt, now_s: float) -> Lag:
    """The lag of marks by vnode; a vnode without a mark stands at the sink's start. At the beginning, the lag is the
    whole table."""
    log, vnodes = merge.log, merge.definition.vnodes
    first = 0 if start == BACKFILL else log.head if start == HEAD else int(start)
    marks = {vnode: marks.get(vnode) or first for vnode in range(vnodes)}
    if not min(marks.values()):
        rows = sum(file.rows for file in [*merge.base_files(), *(file for _, file in merge.log_files())])
        files = log.by_seq
    else:
        low = max(min(marks.values()), log.trimmed_to)
        behind = [vnode for vnode in range(vnodes) if marks[vnode] < log.head]
        files = files_of(log, low, log.head, behind, vnodes) if behind else []
        rows = size_of(files).rows
    if not files and not rows:
        return Lag(0, 0, None)
    oldest_ms = min((file.oldest_ms for _, file in files), default=None)
    seconds = None if oldest_ms is None else round(max(0.0, now_s - oldest_ms / 1000), 1)
    return Lag(size_of(files).commits, rows, seconds)


def lag_of_plan(context: Context, plan: ConsumerPlan) -> Lag:
    """How far a consumer is behind, also when it cannot be planned, as long as its table is there."""
    known = plan.known
    try:
        if plan.resolved is not None:
            table, start = plan.resolved.table, plan.start
        else:
            table = table_of(context, None if known.consumer else plan.table, known.consumer)
            start = known.consumer.definition["start"] if known.consumer else plan.start
        return lag_of({} if plan.is_new else known.marks, start, table.merge(), time.time())
    except StrandlineError:
        return Lag(0, 0, None)
