"""Let rows go when they are past their time, and never before every consumer has them.

A table with the setting `retention` gets a new horizon when there are rows before it. A change that some consumer has
not acknowledged holds the horizon back to its own time: a row that arrives late, with a time long past, is delivered
first. What consumers have acknowledged is known from their marks, the times of changes from file statistics.
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
    """Who holds a horizon back, at which mark, and the time of the oldest change that it has not acknowledged."""

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
        """A new horizon, when it would hide a row."""
        horizon = due(self._table)
        if horizon is None:
            return ()
        before = expiry.moment(horizon)
        head, definition = self._table.head, self._table.definition
        extent = RangeSize(0, plan(self._table, before).rows, 0, 0)
        vnodes = (tuple(range(definition.vnodes)),)
        why = f"rows from before {before.isoformat(sep=' ', timespec='seconds')}"
        return [Work(self._table, head, head, NOTHING, vnodes, extent, definition.schema_id, "driver", why=why)]

    def run(self, work: Work) -> Receipt:
        seq = expire(self._table)
        return Receipt(facts={} if seq is None else {"seq": seq, "upto": seq})


@dataclass(frozen=True)
class ExpiryPlan:
    """The rows that an expiry would hide: those whose time lies `before` a moment; `rows` is an estimate."""

    before: dt.datetime
    rows: int


def plan(table: TableStore, before: dt.datetime | None = None) -> ExpiryPlan:
    """What an expiry would hide, from statistics alone; by default as the setting `retention` says."""
    merge = table.merge()
    now = dt.datetime.now(dt.UTC)
    until = before or expiry.horizon_for(merge.definition.settings.retention or 0.0, now)
    files = [*merge.baseline.files(), *(file for _, file in merge.log_files())]
    rows = sum(expiry.expired_rows(file, merge.definition, expiry.micros(until)) for file in files)
    return ExpiryPlan(until, rows)


def waiting(table: TableStore) -> ExpiryBlocker | None:
    """The consumer that keeps rows of a table from expiring, by the oldest time that it has not acknowledged."""
    time = table.definition.time
    if time is None:
        return None
    merge = table.merge()
    found = []
    for seq, who in table.readers.marks():
        files = [file for number, file in merge.log.by_seq if number > seq]
        # One that has not begun has nothing yet, also of what is folded.
        files += merge.base_files() if not seq else []
        times = [at for at in (_earliest(file, time) for file in files) if at is not None]
        if times:
            found.append(ExpiryBlocker(who, seq, min(times)))
    return min(found, key=lambda each: each.before, default=None)


def due(table: TableStore) -> int | None:
    """The horizon that the table's retention asks for now, in microseconds, when it would hide a row."""
    merge = table.merge()
    definition = merge.definition
    if definition.settings.retention is None or definition.time is None:
        return None
    horizon = expiry.micros(expiry.horizon_for(definition.settings.retention, dt.datetime.now(dt.UTC)))
    if merge.horizon is not None and horizon <= merge.horizon:
        return None
    held = waiting(table)
    horizon = horizon if held is None else min(horizon, held.before)
    if merge.horizon is not None and horizon <= merge.horizon:
        return None
    files = [*merge.base_files(), *(file for _, file in merge.log_files())]
    hides = any(
        expiry.expired_rows(file, definition, horizon) > expiry.expired_rows(file, definition, merge.horizon)
        for file in files
    )
    return horizon if hides else None


def check(table: TableStore, horizon: int) -> None:
    """`Conflict` when a change that lies before the horizon has not reached every consumer."""
    held = waiting(table)
    if held is not None and held.before < horizon:
        raise Conflict(
            f"sink {held.consumer!r} has not acknowledged changes of table {table.name!r} after seq {held.seq}, with"
            f" times from {expiry.moment(held.before).isoformat(sep=' ')} on",
            hint=f"Nothing was hidden. Send them first: strandline tick {held.consumer}",
            table=table.name,
            consumer=held.consumer,
            seq=held.seq,
        )


def expire(table: TableStore, before: dt.datetime | dt.date | None = None) -> int | None:
    """Hide the rows whose time lies before a moment, by default as the setting `retention` says; the seq from which it
    holds, None when there is nothing to hide."""
    definition = table.definition
    definition.check_expires()
    if before is None:
        if definition.settings.retention is None:
            raise Invalid(
                f"table {table.name!r} keeps its rows for ever",
                hint="Say before when, or set it: configure(retention='90d').",
                table=table.name,
            )
        horizon = due(table)
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
    # A horizon that cannot be said in the column's type would make every read fail.
    expiry.expiry(definition, horizon)
    check(table, horizon)
    return table.log.expire(horizon)


def _earliest(file: DataFile, time: str) -> int | None:
    low = file.stats.get("minValues", {}).get(time)
    return None if low is None else expiry.micros(dt.datetime.fromisoformat(low))
