"""Dropped tables: what a drop takes away, which tables can be brought back, and how.

A dropped table keeps its folder until a vacuum an hour or more after the drop. To bring it back, a commit opens its log
again, and an entry of the catalog registers the same generation. So its seqs, its history and the marks of its sinks
are what they were.

After a crash: see `Tables.undrop_table`. A vacuum claims the log before it deletes a file, so a table is never brought
back in part.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass, replace
from typing import Any

from strandline.consumers.context import Context
from strandline.engines.choice import BULK
from strandline.errors import Invalid, NotFound, StrandlineError
from strandline.model.definition import check_name
from strandline.model.settings import TableSettings
from strandline.tables.catalog import DroppedEntry, Entry
from strandline.tables.count import bound_rows, count_rows
from strandline.tables.log import DELETED
from strandline.tables.store import TableStore


@dataclass(frozen=True)
class DropReport:
    """A table that is dropped, or would be: its rows (None when it cannot be read), without `is_exact` at most so many,
    and its sinks and other consumers. Its files stay at least until `until`, None before it is dropped."""

    table: str
    generation: str
    rows: int | None
    is_exact: bool
    sinks: tuple[str, ...]
    until: dt.datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DroppedTable:
    """A dropped table whose files are there: its last name, when it was dropped, its rows. After `until` a vacuum
    deletes its files."""

    table: str
    generation: str
    at: dt.datetime
    rows: int
    is_exact: bool
    until: dt.datetime

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _plan_drop(context: Context, name: str) -> DropReport:
    entry = context.catalog.refresh().get(check_name(name))
    try:
        rows, is_exact = _count(context.open_table(entry))
    except StrandlineError:
        return DropReport(entry.name, entry.generation, None, False, _find_consumers(context, entry))
    return DropReport(entry.name, entry.generation, rows, is_exact, _find_consumers(context, entry))


def drop(context: Context, name: str, *, dry_run: bool = False) -> DropReport:
    """Drop a table; with `dry_run` only say what that would take away."""
    plan = _plan_drop(context, name)
    if dry_run:
        return plan
    context.drop_table(name)
    return replace(plan, until=_stays_until(dt.datetime.now(dt.UTC)))


def list_dropped(context: Context) -> list[DroppedTable]:
    """The dropped tables that can be brought back, the latest first."""
    found = []
    for each in context.catalog.generations().dropped.values():
        if not any(True for _ in context.storage.list(f"{each.entry.folder}/log/_delta_log")):
            continue
        try:
            table = TableStore(each.entry, context.storage, context.duck)
            if DELETED in table.log.refresh().snapshot.configuration:
                continue
            rows, is_exact = _count(table)
        except StrandlineError:
            # Its files are going, or damaged.
            continue
        at = dt.datetime.fromtimestamp(each.at_ms / 1000, dt.UTC)
        found.append(
            DroppedTable(each.entry.name, each.entry.generation, at, rows, is_exact, _stays_until(at)),
        )
    return sorted(found, key=lambda table: table.at, reverse=True)


def undrop(context: Context, name: str, *, to: str | None = None, generation: str | None = None) -> Entry:
    """Bring a dropped table back; returns its entry."""
    check_name(name)
    entry = _find_dropped(context, name, generation).entry
    entry = replace(entry, name=name if to is None else check_name(to))
    taken = [each for each in context.catalog.refresh().tables if each.lower() == entry.name.lower()]
    if taken:
        raise _taken_error(name, taken[0])
    context.undrop_table(entry)
    return entry


def _find_dropped(context: Context, name: str, generation: str | None) -> DroppedEntry:
    known = list(context.catalog.generations().dropped.values())
    fitting = [
        each
        for each in known
        if each.entry.name == name and (generation is None or each.entry.generation.startswith(generation))
    ]
    if not fitting:
        back = ", ".join(dict.fromkeys(table.table for table in list_dropped(context))) or "none"
        raise NotFound(
            f"no dropped table {name!r} in this lake", hint=f"Tables that can be brought back: {back}", table=name
        )
    return max(fitting, key=lambda each: each.at_ms)


def _taken_error(name: str, taken: str) -> Invalid:
    return Invalid(
        f"table {taken!r} exists",
        hint=f"Bring the dropped one back under another name: strandline table undrop {name} --as NEW",
        table=taken,
    )


def _count(table: TableStore) -> tuple[int, bool]:
    """The rows of now; for a large table at most so many."""
    merge = table.merge()
    rows, is_exact = bound_rows(merge)
    return (rows, is_exact) if is_exact or not BULK.holds(rows=rows) else (count_rows(table, merge), True)


def _find_consumers(context: Context, entry: Entry) -> tuple[str, ...]:
    """The consumers of a table that are not retired; none when the state cannot be read."""
    try:
        known = context.consumer_states()
    except StrandlineError:
        known = {}
    mine = {name for name, sink in context.declared.items() if sink.table == entry.name}
    mine |= {name for name, consumer in context.consumers.items() if consumer.table == entry.name}
    for name, state in known.items():
        record = state.consumer
        if record is not None and record.table_generation == entry.generation and not record.is_retired:
            mine.add(name)
    return tuple(sorted(mine))


def _stays_until(dropped: dt.datetime) -> dt.datetime:
    return dropped + dt.timedelta(seconds=TableSettings().grace)
