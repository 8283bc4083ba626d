"""What to copy: the state of each table, fixed at nearly one moment, without the files that the target has.

The catalog is read first, then the baseline, the log and the refused rows of each table. Planning writes only pins,
which keep the files from being deleted during the copy; after a crash the pins expire.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

from strandline.errors import NotFound
from strandline.jobs.backup.part import CommitToCopy, DeltaToCopy, compare
from strandline.jobs.backup.refusal import corrupt
from strandline.jobs.backup.run import CopyRun
from strandline.storage.open import Storage
from strandline.storage.snapshot import Snapshot
from strandline.tables.baseline import Baseline, BaselineState
from strandline.tables.catalog import Catalog, CatalogState, Entry
from strandline.tables.log import DROPPED, Log, LogState
from strandline.tables.pins import Pins, new_pin
from strandline.tables.rejects import Rejects

Step = CommitToCopy | DeltaToCopy
"""A commit file to create, or a Delta table whose pointer is to be written."""


@dataclass(frozen=True)
class BackupPlan:
    """The copy of one table. `is_visible`: the target's catalog has the table, so readers see each copied commit."""

    entry: Entry
    is_dropped: bool
    is_visible: bool
    log: DeltaToCopy
    baseline: DeltaToCopy
    rejects: DeltaToCopy | None

    @property
    def parts(self) -> list[DeltaToCopy]:
        return [self.log, self.baseline, *([self.rejects] if self.rejects else [])]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def in_order(self) -> tuple[list[Step], list[Step]]:
        """The commit files of log and baseline, and after each of the two its pointer: those up to the end of the log,
        and the rest.

        A commit of the baseline comes as soon as the log has the changes that it folds. So a commit that trims the
        log, or removes the delete of a purge, comes after the baseline commit that the source made before it. When
        commits are missing, this order is not known. Then the baseline comes first: readers refuse a baseline that is
        ahead of its log, while a log that is ahead could show purged rows."""
        changes, folds = self.log.commits, self.baseline.commits
        if not self.log.is_gapless or not self.baseline.is_gapless:
            return [*folds, self.baseline, *changes, self.log], []
        # At the same seq the log comes first; commits of the baseline at the same seq keep their order.
        early = [(change.version, change) for change in changes]
        early += [(fold.upto, fold) for fold in folds if fold.upto < self.log.version]
        late = [fold for fold in folds if fold.upto >= self.log.version]
        return [*(commit for _, commit in sorted(early, key=lambda pair: pair[0])), self.log], [*late, self.baseline]


def plan_tables(
    run: CopyRun, catalog: Catalog, visible: Collection[str], held: ExitStack
) -> tuple[CatalogState, list[BackupPlan]]:
    """The fixed state of the catalog and of each of its tables; their pins are held until `held` is closed."""
    while True:
        state = catalog.refresh()
        plans = [_plan_table(run, entry, entry.generation in visible, held) for entry in state.tables.values()]
        live = {entry.generation for entry in catalog.refresh().tables.values()}
        if all(plan.entry.generation in live for plan in plans if plan.is_dropped):
            return state, plans
        # A table was dropped after the catalog was read: the copy would have a table that takes no writes.


def _plan_table(run: CopyRun, entry: Entry, is_visible: bool, held: ExitStack) -> BackupPlan:
    run.advance(0, entry.name)
    baseline, log, rejects = _fix_state(run.source, entry)
    # While the copy runs, no vacuum deletes a version that exists now.
    pin = new_pin("backup", log_version=0, baseline_version=0)
    held.enter_context(Pins(run.source, entry.generation).held(pin))
    # Listed after the state is fixed: all files of that state exist.
    here = {info.path: info for info in run.source.list(entry.folder)}
    there = {info.path: info for info in run.target.list(entry.folder)}

    def part(folder: str, snapshot: Snapshot) -> DeltaToCopy:
        return compare(run, entry.name, f"{entry.folder}/{folder}", snapshot, here, there)

    return BackupPlan(
        entry,
        DROPPED in log.snapshot.configuration,
        is_visible,
        part("log", log.snapshot),
        part("baseline", baseline.snapshot),
        None if rejects is None else part("rejects", rejects),
    )


def _fix_state(source: Storage, entry: Entry) -> tuple[BaselineState, LogState, Snapshot | None]:
    """Read the baseline, then the log, then the refused rows, so that each has all that the one before it needs."""
    log = Log(source, f"{entry.folder}/log")
    try:
        baseline = Baseline(source, f"{entry.folder}/baseline", log.refresh().definition.vnodes)
        folded, changes = baseline.refresh(), log.refresh()
        while min(folded.marks) < changes.trimmed_to:
            # The log was folded and trimmed in between, so there is a newer baseline.
            before, folded = folded, baseline.refresh()
            if folded.version == before.version:
                what = (
                    f"is trimmed to seq {changes.trimmed_to}, but the baseline is compacted only to {min(folded.marks)}"
                )
                raise corrupt(source, log.folder, entry.name, what)
            changes = log.refresh()
        if max(folded.marks) > changes.head:
            what = f"ends at seq {changes.head}, but the baseline is compacted to {max(folded.marks)}"
            raise corrupt(source, log.folder, entry.name, what)
    except NotFound as error:
        raise corrupt(source, entry.folder, entry.name, f"is in the catalog, but: {error.message}") from error
    rejects = Rejects(source, entry).state()
    return folded, changes, None if rejects is None else rejects.snapshot
