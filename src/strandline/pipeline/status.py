"""What a lake holds and how far behind its folds are: one value, which every front end shows.

Everything here comes from commit files and statistics; no data file is read unless rows are to be counted exactly.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strandline.consumers import retention
from strandline.consumers.context import Context
from strandline.errors import StrandlineError
from strandline.model.change import OP, UPSERT
from strandline.model.scrub import plain
from strandline.pipeline.lag import Lag, lag_of
from strandline.pipeline.plan import sink_plan
from strandline.pipeline.resolve import standings
from strandline.state.marks import ConsumerState, Receipt
from strandline.storage.snapshot import DataFile
from strandline.tables.broken import BrokenTable, guarded
from strandline.tables.fold_problems import Health
from strandline.tables.horizon import expired_rows, horizon_for, micros
from strandline.tables.rejects import Rejects
from strandline.tables.store import TableStore

_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True)
class TableStatus:
    """One table. Without `is_exact`, `rows` is an upper bound: changes of one key are counted each."""

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
    folded_to: int
    lag_commits: int
    lag_rows: int
    last_commit_at: dt.datetime
    rejects: int
    oldest_seq: int
    pins: int
    degraded: tuple[str, ...]
    waits_for: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "last_commit_at": self.last_commit_at.isoformat()}


@dataclass(frozen=True)
class SinkStatus:
    """One sink: how far it has come and what it did last. `error` is why its last attempt failed, or why nothing can be
    said of it; `owner` is who works on it now."""

    name: str
    table: str
    kind: str
    destination: str
    generation: str
    life: int
    is_retired: bool
    is_declared: bool
    marks: Mapping[int, int]
    lag: Lag
    intents: int
    letters: int
    owner: str | None
    last: Receipt | None
    error: str | None
    holds_log: bool

    def to_dict(self) -> dict[str, Any]:
        last = None if self.last is None else {"at_s": self.last.at_s, **self.last.body}
        return {**vars(self), "lag": self.lag.to_dict(), "marks": dict(self.marks), "last": last}


@dataclass(frozen=True)
class Status:
    """A lake at one moment. `state_fault` says why its state may only be read."""

    uri: str
    lake_id: str
    format: int
    tables: tuple[TableStatus | BrokenTable, ...]
    sinks: tuple[SinkStatus, ...] = ()
    state_fault: str | None = None

    @property
    def is_healthy(self) -> bool:
        is_whole = all(isinstance(table, TableStatus) and not table.degraded for table in self.tables)
        return is_whole and self.state_fault is None and not any(sink.error for sink in self.sinks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "lake": self.uri,
            "lake_id": self.lake_id,
            "format": self.format,
            "tables": [table.to_dict() for table in self.tables],
            "sinks": [sink.to_dict() for sink in self.sinks],
            "state_fault": self.state_fault,
        }


def status_of(context: Context, *, exact: bool = False) -> Status:
    """The lake's status; `exact` counts the rows of tables whose statistics do not tell."""
    catalog = context.catalog.refresh()
    tables = tuple(_checked(context, name, exact) for name in sorted(catalog.tables))
    fault = None
    try:
        if context.has_state:
            context.state.epoch.check()
        sinks = _sinks(context)
    except StrandlineError as error:
        sinks, fault = (), str(error)
    return Status(context.storage.uri, catalog.lake_id, catalog.format, tables, sinks, fault)


def _sinks(context: Context) -> tuple[SinkStatus, ...]:
    standing = standings(context)
    known = [found.consumer for found in standing.values() if found.consumer is not None]
    last = context.state.marks.last_receipts(known) if known else {}
    letters = context.state.letters.counts() if known else {}
    return tuple(_sink(context, name, found, last, letters) for name, found in standing.items())


def _said(receipt: Receipt) -> str:
    """Why a sink's last attempt failed; an earlier version may have kept the words of others as they were."""
    return plain(str(receipt.body["error"]["message"]), most=_MESSAGE_CHARACTERS)


def _sink(
    context: Context, name: str, found: ConsumerState, last: Mapping[str, Receipt], letters: Mapping[str, int]
) -> SinkStatus:
    declared, consumer = context.declared.get(name), found.consumer
    generation = "" if consumer is None else consumer.generation
    receipt = last.get(generation)
    error = None if receipt is None or not receipt.body.get("error") else _said(receipt)
    lag, is_retired = Lag(0, 0, None), consumer is not None and consumer.is_retired
    plan = sink_plan(context, name, found)
    if plan.error is not None:
        error = plan.error.message
    elif not is_retired:
        lag = lag_of({} if plan.is_new else found.marks, plan.start, context.table(plan.table).merge(), time.time())
    lease = None if consumer is None else context.state.leases.find(consumer.lease)
    return SinkStatus(
        name=name,
        table=plan.table,
        kind=plan.kind,
        destination=plan.destination,
        generation=generation,
        life=0 if consumer is None else consumer.life,
        is_retired=is_retired,
        is_declared=declared is not None,
        marks=found.marks,
        lag=lag,
        intents=len(found.intents),
        letters=letters.get(generation, 0),
        owner=None if lease is None else lease.owner,
        last=receipt,
        error=None if plan.is_retired else error,
        holds_log=consumer is not None and not is_retired,
    )


def _checked(context: Context, name: str, exact: bool) -> TableStatus | BrokenTable:
    return guarded(name, lambda: table_status(context.table(name), exact=exact))


def table_status(table: TableStore, *, exact: bool = False) -> TableStatus:
    merge = table.merge()
    log, baseline, definition = merge.log, merge.baseline, merge.definition
    folded_to = min(baseline.marks)
    unfolded = [(seq, file) for seq, file in log.by_seq if seq > folded_to]
    lag_rows = sum(file.rows for _, file in unfolded)
    rows = sum(file.rows for file in baseline.files()) + lag_rows
    is_settled = not any(expired_rows(file, definition, merge.horizon) for file in baseline.files())
    is_plain = not unfolded or not definition.is_keyed or (rows == lag_rows and _is_one_batch_of_upserts(unfolded))
    is_exact = is_plain and (merge.horizon is None or (is_settled and not unfolded))
    if exact and not is_exact:
        rows, is_exact = table.to_arrow(columns=list(definition.key) or definition.schema.names[:1]).num_rows, True
    return TableStatus(
        name=table.name,
        key=definition.key,
        vnodes=definition.vnodes,
        rows=rows,
        is_exact=is_exact,
        head=log.head,
        commits=len({seq for seq, _ in log.by_seq}),
        log_files=len(log.by_seq),
        log_bytes=sum(file.size for _, file in log.by_seq),
        baseline_files=len(baseline.files()),
        baseline_bytes=sum(file.size for file in baseline.files()),
        folded_to=folded_to,
        lag_commits=len({seq for seq, _ in unfolded}),
        lag_rows=lag_rows,
        last_commit_at=dt.datetime.fromtimestamp(log.snapshot.timestamp_ms / 1000, dt.UTC),
        rejects=Rejects(log.storage, table.entry).count(),
        oldest_seq=table.oldest,
        pins=sum(pin.expires_s > time.time() for pin in table.pins.all(is_strict=False)),
        degraded=tuple(
            f"vnode {vnode}: {found['message']}: {found['path']}"
            for vnode, found in Health(log.storage, table.entry.folder).read().items()
        ),
        waits_for=_waits_for(table),
    )


def _waits_for(table: TableStore) -> str | None:
    """What keeps rows that are past their retention."""
    retention_s = table.definition.settings.retention
    if retention_s is None:
        return None
    try:
        held = retention.waiting(table)
    except StrandlineError as error:
        return error.message
    horizon = micros(horizon_for(retention_s, dt.datetime.now(dt.UTC)))
    if held is None or held.before >= horizon:
        return None
    return f"sink {held.consumer!r}, which has not acknowledged what came after seq {held.seq}"


def _is_one_batch_of_upserts(unfolded: Sequence[tuple[int, DataFile]]) -> bool:
    """A commit holds a key once, so its upserts count rows, if statistics say that it holds nothing else."""
    ops = {file.stats.get(side, {}).get(OP) for _, file in unfolded for side in ("minValues", "maxValues")}
    return len({seq for seq, _ in unfolded}) == 1 and ops == {UPSERT}
