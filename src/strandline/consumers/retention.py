"""Hide rows that are past their retention, and never before every consumer has them.

A table with the setting `retention` gets a new horizon when it would hide rows. An unacknowledged change holds the
horizon back to its own time: a late row with an old time is delivered first. Marks say what consumers have
acknowledged; file statistics give the times of changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.consumers.contract import Receipt
from strandline.consumers.feed import RangeSize
from strandline.consumers.work import NOTHING, Work
from strandline.errors import Conflict, Invalid
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import DataFile
from strandline.tables import horizon as expiry
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class ExpiryBlocker:
    """A consumer that holds the horizon back, its mark, and the time of its oldest unacknowledged change."""

    consumer: str
    seq: int
    before: int


class Retention:
    """The expiry of one table as a consumer: its mark is the horizon, which a commit of the log carries."""

    kind = "retention"
    destination = "log"

    def __init__(self, table: TableStore) -> None:
        self.name = f"{self.kind}/{table.name}"
        self.table = table.name
        self._table = table

    def plan(self, tables: Tables, known: ConsumerState) -> Sequence[Work]:
        """One work for a new horizon, if it would hide a row."""
        horizon = due_horizon(self._table)
        if horizon is None:
            return ()
        before = expiry.moment(horizon)
        head, definition = self._table.head, self._table.definition
        extent = RangeSize(0, plan_expiry(self._table, before).rows, 0, 0)
        vnodes = (tuple(range(definition.vnodes)),)
        why = f"rows from before {before.isoformat(sep=' ', timespec='seconds')}"
        return [Work(self._table, head, head, NOTHING, vnodes, extent, definition.schema_id, "driver", why=why)]

    def run(self, work: Work) -> Receipt:
        seq = expire(self._table)
        return Receipt(upto=seq, facts={} if seq is None else {"seq": seq})


@dataclass(frozen=True)
class ExpiryPlan:
    """The rows that an expiry would hide: those whose time lies `before` a moment; `rows` is an estimate."""

    before: dt.datetime
    rows: int


def plan_expiry(table: TableStore, before: dt.datetime | None = None) -> ExpiryPlan:
    """What an expiry would hide, from statistics alone; by default by the setting `retention`."""
    merge = table.merge()
    now = dt.datetime.now(dt.UTC)
    until = before or expiry.horizon_for(merge.definition.settings.retention or 0.0, now)
    files = [*merge.baseline.files(), *(file for _, file in merge.log_files())]
    rows = sum(expiry.expired_rows(file, merge.definition, expiry.micros(until)) for file in files)
    return ExpiryPlan(until, rows)


def find_blocker(table: TableStore) -> ExpiryBlocker | None:
    """The consumer with the oldest unacknowledged change, which keeps rows of a table from expiring."""
    time = table.definition.time
    if time is None:
        return None
    merge = table.merge()
    found = []
    for seq, who in table.readers.marks():
        files = [file for number, file in merge.log.by_seq if number > seq]
        # A consumer that has not begun lacks the folded rows too.
        files += merge.base_files() if not seq else []
        times = [at for at in (_earliest_time(file, time) for file in files) if at is not None]
        if times:
            found.append(ExpiryBlocker(who, seq, min(times)))
    return min(found, key=lambda each: each.before, default=None)


def due_horizon(table: TableStore) -> int | None:
    """The horizon that the table's retention asks for now, in microseconds, when it would hide a row."""
    merge = table.merge()
    definition = merge.definition
    if definition.settings.retention is None or definition.time is None:
        return None
    horizon = expiry.micros(expiry.horizon_for(definition.settings.retention, dt.datetime.now(dt.UTC)))
    if merge.horizon is not None and horizon <= merge.horizon:
        return None
    held = find_blocker(table)
    horizon = horizon if held is None else min(horizon, held.before)
    if merge.horizon is not None and horizon <= merge.horizon:
        return None
    files = [*merge.base_files(), *(file for _, file in merge.log_files())]
    hides = any(
        expiry.expired_rows(file, definition, horizon) > expiry.expired_rows(file, definition, merge.horizon)
        for file in files
    )
    return horizon if hides else None


def check_horizon(table: TableStore, horizon: int) -> None:
    """`Conflict` when a consumer has not acknowledged a change before the horizon."""
    held = find_blocker(table)
    if held is not None and held.before < horizon:
        raise Conflict(
            f"consumer {held.consumer!r} has not acknowledged changes of table {table.name!r} after seq {held.seq},"
            f" with times from {expiry.moment(held.before).isoformat(sep=' ')} on",
            hint=f"Nothing was hidden. Send them first: strandline tick {held.consumer}",
            table=table.name,
            consumer=held.consumer,
            seq=held.seq,
        )


def expire(table: TableStore, before: dt.datetime | dt.date | None = None) -> int | None:
    """Hide the rows whose time lies before a moment, by default by the setting `retention`; returns the seq from which
    it holds, None when there is nothing to hide."""
    definition = table.definition
    definition.check_expires()
    if before is None:
        if definition.settings.retention is None:
            raise Invalid(
                f"table {table.name!r} keeps its rows for ever",
                hint="Say before when, or set it: configure(retention='90d').",
                table=table.name,
            )
        horizon = due_horizon(table)
        return None if horizon is None else table.log.expire(horizon)
    if isinstance(before, dt.datetime):
        moment = before
    elif isinstance(before, dt.date):
        moment = dt.datetime.combine(before, dt.time())
    else:
        raise Invalid(f"before is {before!r}; expected a datetime or a date", table=table.name)
    horizon = expiry.micros(moment)
    if horizon > expiry.micros(dt.datetime.now(dt.UTC)):
        raise Invalid(
            f"before is {moment.isoformat()}, in the future: rows that arrive until then would never show",
            hint="Give a time that has passed.",
            table=table.name,
        )
    # A horizon that does not fit the column's type would make every read fail.
    expiry.expiry(definition, horizon)
    check_horizon(table, horizon)
    return table.log.expire(horizon)


def _earliest_time(file: DataFile, time: str) -> int | None:
    low = file.stats.get("minValues", {}).get(time)
    return None if low is None else expiry.micros(dt.datetime.fromisoformat(low))
