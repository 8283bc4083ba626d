"""What a lake holds and how far behind its folds are: one value, which every front end shows.

Everything here comes from commit files and statistics; no data file is read unless rows are to be counted exactly.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strandline.change import OP, UPSERT
from strandline.errors import StrandlineError
from strandline.expiry import expired_rows
from strandline.health import Health
from strandline.rejects import Rejects
from strandline.storage.snapshot import DataFile

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.table import Table


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

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "last_commit_at": self.last_commit_at.isoformat()}


@dataclass(frozen=True)
class BrokenTable:
    """A table that cannot be read; the others can."""

    name: str
    kind: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "error": {"kind": self.kind, "message": self.message}}


@dataclass(frozen=True)
class Status:
    """A lake at one moment."""

    uri: str
    lake_id: str
    format: int
    tables: tuple[TableStatus | BrokenTable, ...]

    @property
    def is_healthy(self) -> bool:
        return all(isinstance(table, TableStatus) and not table.degraded for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        return {
            "lake": self.uri,
            "lake_id": self.lake_id,
            "format": self.format,
            "tables": [table.to_dict() for table in self.tables],
        }


def status_of(lake: Lake, *, exact: bool = False) -> Status:
    """The lake's status; `exact` counts the rows of tables whose statistics do not tell."""
    catalog = lake.catalog.refresh()
    tables = tuple(_checked(lake, name, exact) for name in sorted(catalog.tables))
    return Status(lake.storage.uri, catalog.lake_id, catalog.format, tables)


def _checked(lake: Lake, name: str, exact: bool) -> TableStatus | BrokenTable:
    try:
        return table_status(lake.table(name), exact=exact)
    except StrandlineError as error:
        return BrokenTable(name, error.kind, error.message)
    except (OSError, ValueError, KeyError) as error:
        return BrokenTable(name, "Corrupt", str(error))


def table_status(table: Table, *, exact: bool = False) -> TableStatus:
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
    )


def _is_one_batch_of_upserts(unfolded: Sequence[tuple[int, DataFile]]) -> bool:
    """A commit holds a key once, so its upserts count rows, if statistics say that it holds nothing else."""
    ops = {file.stats.get(side, {}).get(OP) for _, file in unfolded for side in ("minValues", "maxValues")}
    return len({seq for seq, _ in unfolded}) == 1 and ops == {UPSERT}
