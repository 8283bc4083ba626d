"""Copy a lake while others write it: a backup, or, in the other direction, its restore.

A copy is a lake with the same layout, the same id and the same commit files, byte for byte. First the state to copy is
fixed (`plan`), then the files that the target lacks are copied (`copying`). Nothing in the target is deleted: it keeps
files longer than the source does, also files with rows that were purged since. To lose these rows, make a new backup.

After a crash: every file of the target is complete, and nothing names a file that is missing. A first copy is no lake
until it is complete. A repeated copy has the tables it had, each as it was or newer. Running the copy again completes
it.

One case is weaker. When the source has deleted the commit files that follow those of the target, the baseline and the
log of that table skip versions, one right after the other. After a crash between the two the table refuses reads
(`Corrupt`) until the copy is run again; it never shows wrong rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from strandline.consumers.context import Context
from strandline.errors import Invalid
from strandline.jobs.backup.checks import check_exists, open_side, refuse_overlap, visible_generations
from strandline.jobs.backup.copying import copy_catalog, copy_table, entries_to_copy
from strandline.jobs.backup.plan import plan_tables
from strandline.jobs.backup.run import CopyRun
from strandline.jobs.backup.saved_state import (
    RESTORING,
    SavedState,
    check_database,
    find_saved,
    read_state,
    restore_state,
    write_state,
)
from strandline.progress import Progress, silent
from strandline.storage.open import Storage
from strandline.tables.catalog import Catalog

__all__ = ["BackupReport", "backup", "copy_lake", "restore"]

_WORKERS = 8


@dataclass(frozen=True)
class BackupReport:
    """What a copy did: the seq of each table in the target, how much was new to the target, and what it took of the
    state."""

    uri: str
    tables: tuple[tuple[str, int], ...]
    files_copied: int
    bytes_copied: int
    files_skipped: int
    seconds: float
    state: SavedState = field(default_factory=SavedState)

    def to_dict(self) -> dict[str, Any]:
        tables = [{"name": name, "seq": seq} for name, seq in self.tables]
        return {**vars(self), "tables": tables, "state": asdict(self.state)}


def backup(
    lake: Context,
    to: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> BackupReport:
    """Copy a lake to `to`, a path or `s3://bucket/prefix` that is empty or has an earlier backup of this lake.

    `storage_options` are for an S3 target; the lake has its own. The state is taken along, as a file."""
    target = open_side(to, storage_options)
    state, facts = read_state(lake)
    report = copy_lake(lake.storage, target, progress=progress)
    if facts is not None:
        write_state(target, facts)
    return replace(report, state=state)


def restore(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> BackupReport:
    """Copy the backup at `source` to `root`, which must be empty or have an unfinished restore of that backup. Its
    state becomes one at `state`, by default a file in a local lake."""
    origin, target = open_side(source, storage_options), open_side(root, storage_options)
    check_exists(Catalog(origin).refresh(), origin)
    if Catalog(target).refresh().exists:
        raise Invalid(
            f"there is a lake at {target.uri}; nothing was restored",
            hint="Restore to an empty place.",
            path=target.uri,
        )
    facts = find_saved(origin)
    if facts is not None:
        check_database(target, state)
    found: list[SavedState] = []

    def finish() -> None:
        if facts is not None:
            found.append(restore_state(target, facts, state))

    report = copy_lake(origin, target, progress=progress, before_catalog=finish)
    target.delete([RESTORING])
    return replace(report, state=found[0] if found else SavedState())


def copy_lake(
    source: Storage,
    target: Storage,
    *,
    progress: Progress = silent,
    before_catalog: Callable[[], None] = lambda: None,
) -> BackupReport:
    """Bring the target to the state that the source has now.

    The target is empty, or an earlier copy of the same lake: another lake or other files are `Invalid`, and a copy
    that was written to is a `Conflict`. A file that the source itself lacks is `Corrupt`. All this is checked before
    anything is written. `progress` gets bytes; it is called from one thread at a time.
    `before_catalog` runs when all tables are there."""
    started_s = time.monotonic()
    refuse_overlap(source, target)
    catalog = Catalog(source)
    state = check_exists(catalog.refresh(), source)
    # A copy of a lake that has lost a table would look complete.
    catalog.check_whole()
    with ExitStack() as held, ThreadPoolExecutor(_WORKERS) as pool:
        run = CopyRun(source, target, pool, progress)
        visible = visible_generations(run, state)
        state, plans = plan_tables(run, catalog, visible, held)
        entries = entries_to_copy(run, state.version)
        run.whole_bytes = sum(plan.bytes for plan in plans) + sum(len(data) for _, data in entries)
        target.check_put_new()
        for plan in plans:
            copy_table(run, plan)
        before_catalog()
        copy_catalog(run, entries)
    return BackupReport(
        target.uri,
        tuple(sorted((plan.entry.name, plan.log.version) for plan in plans)),
        run.files_copied,
        run.bytes_copied,
        sum(part.skipped for plan in plans for part in plan.parts) + state.version + 1 - len(entries),
        round(time.monotonic() - started_s, 3),
    )
