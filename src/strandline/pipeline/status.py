"""What a lake holds and how far its consumers are: one value for every front end.

Everything comes from commit files and statistics; data files are read only for an exact count of rows.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from strandline.consumers import retention
from strandline.consumers.compaction import Compaction
from strandline.consumers.context import Context
from strandline.consumers.contract import Consumer
from strandline.consumers.feed import size_of
from strandline.consumers.plan import plan_marked, plan_own
from strandline.consumers.retention import Retention
from strandline.errors import StrandlineError
from strandline.model.scrub import scrub_text
from strandline.pipeline.backfill import BackfillStatus, backfill_of
from strandline.pipeline.lag import Lag, lag_of_plan
from strandline.sinks.definition import KINDS
from strandline.state.marks import ConsumerState
from strandline.state.receipts import SavedReceipt
from strandline.storage.snapshot import DataFile
from strandline.tables.broken import BrokenTable, try_table
from strandline.tables.count import bound_rows, count_rows
from strandline.tables.fold_problems import FoldProblems
from strandline.tables.horizon import horizon_for, micros, moment
from strandline.tables.merge import TableAt
from strandline.tables.rejects import Rejects
from strandline.tables.store import TableStore

_MESSAGE_CHARACTERS = 2000

Cause = Literal["state", "broken", "damaged", "rejects", "failed", "letters"]


@dataclass(frozen=True)
class TableStatus:
    """One table. Without `is_exact`, `rows` is an upper bound: each change of a key is counted.

    `hidden_rows` have expired since the table was made; their times lie before `hidden_before`. The next tick hides
    about `expiring_rows` more."""

    name: str
    key: tuple[str, ...]
    vnodes: int
    rows: int
    is_exact: bool
    head: int
    commits: int
    log_files: int
    log_bytes: int
    baseline_files: int
    baseline_bytes: int
    compacted_to: int
    lag_commits: int
    lag_rows: int
    last_commit_at: dt.datetime
    rejects: int
    oldest_seq: int
    pins: int
    degraded: tuple[str, ...]
    waits_for: str | None = None
    hidden_rows: int = 0
    hidden_before: dt.datetime | None = None
    expiring_rows: int = 0

    def to_dict(self) -> dict[str, Any]:
        before = None if self.hidden_before is None else self.hidden_before.isoformat()
        return {**asdict(self), "last_commit_at": self.last_commit_at.isoformat(), "hidden_before": before}


@dataclass(frozen=True)
class ConsumerStatus:
    """One consumer: its position and its last receipt. `error` is why its last attempt failed, or why it cannot be
    planned; `owner` works on it now; with `holds_log` the log is kept for it; a paused one does nothing until it is
    resumed. `backfill` is the history that it delivers, or has delivered, in rounds; None for one without."""

    name: str
    table: str
    kind: str
    destination: str
    marks: Mapping[int, int]
    lag: Lag
    error: str | None = None
    generation: str = ""
    life: int = 0
    is_retired: bool = False
    is_paused: bool = False
    is_declared: bool = True
    intents: int = 0
    letters: int = 0
    owner: str | None = None
    last: SavedReceipt | None = None
    holds_log: bool = False
    backfill: BackfillStatus | None = None

    def to_dict(self) -> dict[str, Any]:
        last = None if self.last is None else {"at_s": self.last.at_s, **self.last.body}
        backfill = None if self.backfill is None else self.backfill.to_dict()
        parts = {"lag": self.lag.to_dict(), "marks": dict(self.marks), "last": last, "backfill": backfill}
        return {**vars(self), **parts}


@dataclass(frozen=True)
class Attention:
    """One thing that needs a person: `what` it is, and the `command` (a verb and its words) that shows or solves it."""

    cause: Cause
    what: str
    command: str
    table: str | None = None
    consumer: str | None = None


@dataclass(frozen=True)
class Status:
    """A lake at one moment. `state_fault` says why its state may only be read."""

    uri: str
    lake_id: str
    format: int
    tables: tuple[TableStatus | BrokenTable, ...]
    consumers: tuple[ConsumerStatus, ...] = ()
    state_fault: str | None = None

    @property
    def sinks(self) -> tuple[ConsumerStatus, ...]:
        return tuple(each for each in self.consumers if each.kind in KINDS)

    @property
    def marked(self) -> tuple[ConsumerStatus, ...]:
        """The consumers with marks in the state, which a person can reset or retire."""
        return tuple(each for each in self.consumers if each.kind not in (Compaction.kind, Retention.kind))

    @property
    def is_healthy(self) -> bool:
        return not self.attention

    @property
    def attention(self) -> tuple[Attention, ...]:
        """What needs a person; nothing when all is well."""
        of_tables = [found for table in self.tables for found in _table_attention(table)]
        of_consumers = [found for each in self.marked for found in _consumer_attention(each)]
        of_own = [
            Attention("failed", f"{each.name} failed: {each.error}", "doctor", each.table, each.name)
            for each in self.consumers
            if each.kind == Retention.kind and each.error
        ]
        return (*self._state_attention(), *of_tables, *of_consumers, *of_own)

    def _state_attention(self) -> list[Attention]:
        if self.state_fault is None:
            return []
        return [Attention("state", self.state_fault.partition("\n")[0], "doctor")]

    def to_dict(self) -> dict[str, Any]:
        return {
            "lake": self.uri,
            "is_well": self.is_healthy,
            "attention": [asdict(each) for each in self.attention],
            "lake_id": self.lake_id,
            "format": self.format,
            "tables": [table.to_dict() for table in self.tables],
            "consumers": [each.to_dict() for each in self.consumers],
            "state_fault": self.state_fault,
        }


def _table_attention(table: TableStatus | BrokenTable) -> list[Attention]:
    name = table.name
    if isinstance(table, BrokenTable):
        return [Attention("broken", f"table {name}: {table.kind}: {table.message}", "doctor", name)]
    found = []
    if table.degraded:
        what = f"table {name}: a damaged file keeps compaction back"
        found.append(Attention("damaged", what, "doctor", name))
    if table.rejects:
        were = "row was" if table.rejects == 1 else "rows were"
        what = f"table {name}: {table.rejects:,} {were} refused by ingest"
        found.append(Attention("rejects", what, f"rejects show {name}", name))
    return found


def _consumer_attention(each: ConsumerStatus) -> list[Attention]:
    """A retired consumer needs nobody, unless a person has to say where it continues."""
    found = []
    if each.error is not None:
        what = f"{each.name} failed: {each.error}" if not each.is_retired else f"{each.name}: {each.error}"
        verb = "mark reset" if each.is_retired else "tick"
        found.append(Attention("failed", what, f"{verb} {each.name}", each.table, each.name))
    if each.letters and not each.is_retired:
        what = f"{each.name}: {each.letters:,} dead letter{'' if each.letters == 1 else 's'}"
        found.append(Attention("letters", what, f"deadletter list {each.name}", each.table, each.name))
    return found


def status_of(context: Context, *, exact: bool = False) -> Status:
    """The lake's status; `exact` reads the tables whose statistics do not give the number of rows."""
    catalog = context.catalog.refresh()
    tables = tuple(
        try_table(name, partial(_find_table_status, context, name, exact)) for name in sorted(catalog.tables)
    )
    good = [table for table in tables if isinstance(table, TableStatus)]
    found = [try_table(table.name, partial(_table_statuses, context, table)) for table in good]
    own = [each for consumers in found if not isinstance(consumers, BrokenTable) for each in consumers]
    fault = None
    try:
        if context.has_state:
            context.state.epoch.check()
        marked = _marked_statuses(context)
    except StrandlineError as error:
        marked, fault = (), str(error)
    return Status(context.storage.uri, catalog.lake_id, catalog.format, tables, (*marked, *own), fault)


def _table_statuses(context: Context, status: TableStatus) -> list[ConsumerStatus]:
    """The compaction of a table, and its retention if it has one."""
    table = context.table(status.name)
    merge = table.merge()
    folded = dict(enumerate(merge.baseline.marks))
    waiting_ms = [file.oldest_ms for _, file in _unfolded_files(merge, status.compacted_to)]
    waits_s = round(max(0.0, time.time() - min(waiting_ms) / 1000), 1) if waiting_ms else None
    lag = Lag(status.lag_commits, status.lag_rows, waits_s)
    own = [_own_status(Compaction(table), folded, lag, "; ".join(status.degraded) or None)]
    if table.definition.settings.retention is not None:
        plan = plan_own(Retention(table), context)
        error = None if plan.error is None else plan.error.message
        own.append(_own_status(Retention(table), {}, Lag(0, plan.rows, None), error))
    return own


def _own_status(consumer: Consumer, marks: Mapping[int, int], lag: Lag, error: str | None) -> ConsumerStatus:
    return ConsumerStatus(consumer.name, consumer.table, consumer.kind, consumer.destination, marks, lag, error)


def _marked_statuses(context: Context) -> tuple[ConsumerStatus, ...]:
    """The consumers with marks in the state."""
    all_known = context.consumer_states()
    records = [known.consumer for known in all_known.values() if known.consumer is not None]
    last = context.state.marks.last_receipts(records) if records else {}
    letters = context.state.letters.counts() if records else {}
    return tuple(_consumer_status(context, name, known, last, letters) for name, known in all_known.items())


def _last_error(receipt: SavedReceipt | None) -> str | None:
    """Why a consumer's last attempt failed; cleaned, since older versions kept messages of others unchanged."""
    if receipt is None or not receipt.body.get("error"):
        return None
    return scrub_text(str(receipt.body["error"]["message"]), most=_MESSAGE_CHARACTERS)


def _consumer_status(
    context: Context, name: str, known: ConsumerState, last: Mapping[str, SavedReceipt], letters: Mapping[str, int]
) -> ConsumerStatus:
    record = known.consumer
    generation = "" if record is None else record.generation
    is_retired = record is not None and record.is_retired
    plan = plan_marked(context, name, known)
    # A failure is over when nothing is left to do: no tick would come to say so.
    error = _last_error(last.get(generation)) if plan.is_due else None
    if plan.error is not None:
        error = plan.error.message
    lag = Lag(0, 0, None) if is_retired else lag_of_plan(context, plan)
    lease = None if record is None else context.state.leases.find(record.lease)
    owner = None if lease is None else lease.owner
    return ConsumerStatus(
        name=name,
        table=plan.table,
        kind=plan.kind,
        destination=plan.destination,
        generation=generation,
        life=0 if record is None else record.life,
        is_retired=is_retired,
        is_paused=known.is_paused and not is_retired,
        is_declared=name in context.declared or name in context.consumers,
        marks=known.marks,
        lag=lag,
        intents=len(known.intents),
        letters=letters.get(generation, 0),
        owner=owner,
        last=last.get(generation),
        error=error,
        holds_log=record is not None and not is_retired,
        backfill=backfill_of(context, plan, lag, owner),
    )


def _find_table_status(context: Context, name: str, exact: bool) -> TableStatus:
    return table_status(context.table(name), exact=exact)


def table_status(table: TableStore, *, exact: bool = False) -> TableStatus:
    merge = table.merge()
    log, baseline, definition = merge.log, merge.baseline, merge.definition
    compacted_to = min(baseline.marks)
    unfolded = size_of(_unfolded_files(merge, compacted_to))
    rows, is_exact = bound_rows(merge)
    if exact and not is_exact:
        rows, is_exact = count_rows(table, merge), True
    return TableStatus(
        name=table.name,
        key=definition.key,
        vnodes=definition.vnodes,
        rows=rows,
        is_exact=is_exact,
        head=log.head,
        commits=size_of(log.by_seq).commits,
        log_files=len(log.by_seq),
        log_bytes=sum(file.size for _, file in log.by_seq),
        baseline_files=len(baseline.files()),
        baseline_bytes=sum(file.size for file in baseline.files()),
        compacted_to=compacted_to,
        lag_commits=unfolded.commits,
        lag_rows=unfolded.rows,
        last_commit_at=dt.datetime.fromtimestamp(log.snapshot.timestamp_ms / 1000, dt.UTC),
        rejects=Rejects(log.storage, table.entry).count(),
        oldest_seq=table.oldest,
        pins=sum(pin.expires_s > time.time() for pin in table.pins.all(is_strict=False)),
        degraded=_list_degraded(table),
        waits_for=_expiry_blocker(table),
        hidden_rows=log.hidden_rows,
        hidden_before=None if merge.horizon is None else moment(merge.horizon).replace(tzinfo=dt.UTC),
        expiring_rows=_count_expiring(table),
    )


def _unfolded_files(merge: TableAt, compacted_to: int) -> list[tuple[int, DataFile]]:
    return merge.log.files(max(compacted_to, merge.log.trimmed_to), merge.log.head)


def _count_expiring(table: TableStore) -> int:
    """About how many rows the next tick hides."""
    if table.definition.settings.retention is None:
        return 0
    try:
        horizon = retention.due_horizon(table)
        return 0 if horizon is None else retention.plan_expiry(table, moment(horizon), is_counted=False).rows
    except StrandlineError:
        return 0


def _list_degraded(table: TableStore) -> tuple[str, ...]:
    """The vnodes that the last compaction could not fold, and why."""
    found = FoldProblems(table.log.storage, table.entry.folder).read()
    return tuple(f"vnode {vnode}: {each['message']}: {each['path']}" for vnode, each in found.items())


def _expiry_blocker(table: TableStore) -> str | None:
    """The consumer that keeps rows beyond their retention, in words."""
    retention_s = table.definition.settings.retention
    if retention_s is None:
        return None
    try:
        held = retention.find_blocker(table)
    except StrandlineError as error:
        return f"this: {error.message}"
    horizon = micros(horizon_for(retention_s, dt.datetime.now(dt.UTC)))
    if held is None or held.before >= horizon:
        return None
    return f"consumer {held.consumer!r}, which has not acknowledged the changes after seq {held.seq}"
