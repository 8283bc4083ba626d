"""Hide rows that are past their retention, and never before every consumer has them.

A table with the setting `retention` gets a new horizon when it would hide rows. An unacknowledged change holds the
horizon back to its own time: a late row with an old time is delivered first. Marks say what consumers have
acknowledged; file statistics give the times of changes.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.consumers.contract import Receipt
from strandline.consumers.feed import RangeSize
from strandline.consumers.work import NOTHING, Work
from strandline.engines.choice import BULK
from strandline.errors import Conflict, Invalid, StrandlineError
from strandline.model.definition import TableDef
from strandline.state.marks import ConsumerState
from strandline.storage.snapshot import DataFile
from strandline.tables import horizon as expiry
from strandline.tables.collection import Tables
from strandline.tables.merge import TableAt
from strandline.tables.store import TableStore

_log = logging.getLogger("strandline.consumers")


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
        done = expire(self._table)
        if done is None:
            return Receipt()
        facts = {"seq": done.seq, "before": done.before.isoformat()}
        return Receipt(
            upto=done.seq, facts={**facts, "hidden_rows": done.hidden_rows, "is_hidden_exact": done.is_exact}
        )


@dataclass(frozen=True)
class ExpiryPlan:
    """The rows that an expiry would hide: `rows` of the `total` visible rows have a time that lies `before` a moment.
    Without `is_exact` both numbers come from statistics, and count a row again for each of its changes."""

    before: dt.datetime
    rows: int
    total: int
    is_exact: bool


@dataclass(frozen=True)
class Expired:
    """An expiry: from `seq` on the rows from `before` a moment are hidden, `hidden_rows` more than earlier."""

    seq: int
    before: dt.datetime
    hidden_rows: int
    is_exact: bool


def plan_expiry(
    table: TableStore,
    before: dt.datetime | dt.date | None = None,
    *,
    definition: TableDef | None = None,
    is_counted: bool = True,
) -> ExpiryPlan:
    """What an expiry would hide; by default by the setting `retention`, or by that of another `definition` that the
    table may get. Rows of a table of up to 2,000,000 are counted; without `is_counted`, and for a larger table,
    statistics alone tell."""
    merge = table.merge()
    wanted = definition or merge.definition
    now = dt.datetime.now(dt.UTC)
    given = None if before is None else _check_moment(table, before)
    until = given or expiry.horizon_for(wanted.settings.retention or 0.0, now)
    if before is None and definition is None and (held := find_blocker(table)) is not None:
        until = min(until, expiry.moment(held.before))
    horizon = expiry.micros(until)
    until = until if until.tzinfo else until.replace(tzinfo=dt.UTC)
    if wanted.time is None:
        return ExpiryPlan(until, 0, _stored_rows(merge), is_exact=False)
    guess = _guess_hidden(merge, wanted, horizon)
    if not is_counted or not BULK.holds(rows=_stored_rows(merge)):
        return ExpiryPlan(until, guess, _stored_rows(merge), is_exact=False)
    try:
        rows, total = count_hidden(table, merge, wanted, horizon)
    except StrandlineError:
        # A damaged file must not keep rows from expiring.
        return ExpiryPlan(until, guess, _stored_rows(merge), is_exact=False)
    return ExpiryPlan(until, rows, total, is_exact=True)


def _stored_rows(merge: TableAt) -> int:
    return sum(file.rows for file in _files(merge))


def _files(merge: TableAt) -> list[DataFile]:
    return [*merge.base_files(), *(file for _, file in merge.log_files())]


def _guess_hidden(merge: TableAt, definition: TableDef, horizon: int) -> int:
    """How many more rows a horizon hides than the present one, from statistics."""
    return sum(
        max(0, expiry.expired_rows(file, definition, horizon) - expiry.expired_rows(file, definition, merge.horizon))
        for file in _files(merge)
    )


def count_hidden(table: TableStore, merge: TableAt, definition: TableDef, horizon: int) -> tuple[int, int]:
    """How many visible rows a horizon hides, and how many there are."""
    alive = expiry.expiry(definition, horizon)
    assert alive is not None and definition.time is not None
    with table.reading(merge, [definition.time], None) as relation:
        found = relation.aggregate(f"count(*) FILTER (WHERE NOT {alive.duckdb}), count(*)").fetchall()[0]
    return int(found[0]), int(found[1])


def warn_of_retention(table: TableStore) -> None:
    """Log how many rows the next tick hides by the table's retention, if any."""
    if due_horizon(table) is None:
        return
    plan = plan_expiry(table, is_counted=False)
    _log.warning(
        "table %s: the next tick hides about %s of %s rows, whose %s lies before %s UTC, for good",
        table.name,
        f"{plan.rows:,}",
        f"{plan.total:,}",
        table.definition.time,
        plan.before.isoformat(sep=" ", timespec="seconds"),
    )


def find_blocker(table: TableStore) -> ExpiryBlocker | None:
    """The consumer with the oldest unacknowledged change, which keeps rows of a table from expiring."""
    time = table.definition.time
    if time is None:
        return None
    merge = table.merge()
    found = []
    in_history = table.readers.in_history()
    for seq, who in table.readers.marks():
        is_whole = seq > 0 and who not in in_history
        files = [file for number, file in merge.log.by_seq if number > seq or not is_whole]
        # A consumer that has not begun, or has a part of the history, lacks the folded rows too.
        files += [] if is_whole else merge.base_files()
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
    return horizon if _guess_hidden(merge, definition, horizon) else None


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


def expire(table: TableStore, before: dt.datetime | dt.date | None = None) -> Expired | None:
    """Hide the rows whose time lies before a moment, by default by the setting `retention`; None when there is nothing
    to hide."""
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
        return None if horizon is None else _hide_rows(table, horizon)
    horizon = expiry.micros(_check_moment(table, before))
    # A horizon that does not fit the column's type would make every read fail.
    expiry.expiry(definition, horizon)
    check_horizon(table, horizon)
    return _hide_rows(table, horizon)


def _check_moment(table: TableStore, before: object) -> dt.datetime:
    """The moment that a caller gave; `Invalid` when it lies in the future."""
    if isinstance(before, dt.datetime):
        moment = before
    elif isinstance(before, dt.date):
        moment = dt.datetime.combine(before, dt.time())
    else:
        raise Invalid(f"before is {before!r}; expected a datetime or a date", table=table.name)
    if expiry.micros(moment) > expiry.micros(dt.datetime.now(dt.UTC)):
        raise Invalid(
            f"before is {moment.isoformat()}, in the future: rows that arrive until then would never show",
            hint="Give a time that has passed.",
            table=table.name,
        )
    return moment


def _hide_rows(table: TableStore, horizon: int) -> Expired | None:
    """Commit a horizon. The rows are counted just before."""
    plan = plan_expiry(table, expiry.moment(horizon))
    seq = table.log.expire(horizon, rows=plan.rows)
    return None if seq is None else Expired(seq, plan.before, plan.rows, plan.is_exact)


def _earliest_time(file: DataFile, time: str) -> int | None:
    low = file.stats.get("minValues", {}).get(time)
    return None if low is None else expiry.micros(dt.datetime.fromisoformat(low))
