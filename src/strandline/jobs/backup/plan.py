"""What to copy: the state of each table, fixed at nearly one moment, less what the target has.

The catalog is looked at first, then of each table the baseline, the log and the refused rows. Planning writes nothing
but pins, which keep cleaning away from what is copied; after a crash they expire like any other.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

from strandline.errors import NotFound
from strandline.jobs.backup.part import CopiedCommit, CopiedLog, compare
from strandline.jobs.backup.refusal import corrupt
from strandline.jobs.backup.run import Run
from strandline.storage.open import Storage
from strandline.storage.snapshot import Snapshot
from strandline.tables.baseline import Baseline, BaselineState
from strandline.tables.catalog import Catalog, CatalogState, Entry
from strandline.tables.log import DROPPED, Log, LogState
from strandline.tables.pins import Pins, new_pin
from strandline.tables.rejects import Rejects

Step = CopiedCommit | CopiedLog
"""A commit file to put, or a part whose pointer is to be written."""


@dataclass(frozen=True)
class BackupPlan:
    """A table. `is_visible`: the target's catalog names it already, so that what is copied shows at once."""

    entry: Entry
    is_dropped: bool
    is_visible: bool
    log: CopiedLog
    baseline: CopiedLog
    rejects: CopiedLog | None

    @property
    def parts(self) -> list[CopiedLog]:
        return [self.log, self.baseline, *([self.rejects] if self.rejects else [])]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def in_order(self) -> tuple[list[Step], list[Step]]:
        """The commit files of log and baseline, each part's followed by the part, for its pointer: up to the end of
        the log, and the rest.

        Each of the baseline's comes as soon as the log has what it folds. So a commit that trims the log, or takes
        a purge's delete out of it, comes after the baseline's commit that the source made before it. Where commits
        are missing that is not known, and the baseline comes first: readers refuse one that is ahead of its log,
        while a log that is ahead could show purged rows."""
        changes, folds = self.log.commits, self.baseline.commits
        if not self.log.is_gapless or not self.baseline.is_gapless:
            return [*folds, self.baseline, *changes, self.log], []
        # Of one seq the log's comes first; the baseline's of one seq keep their order.
        early = [(change.version, change) for change in changes]
        early += [(fold.upto, fold) for fold in folds if fold.upto < self.log.version]
        late = [fold for fold in folds if fold.upto >= self.log.version]
        return [*(commit for _, commit in sorted(early, key=lambda pair: pair[0])), self.log], [*late, self.baseline]


def plans_of(
    run: Run, catalog: Catalog, visible: Collection[str], held: ExitStack
) -> tuple[CatalogState, list[BackupPlan]]:
    """The fixed state of the catalog and of each of its tables; their pins are held until `held` is closed."""
    while True:
        state = catalog.refresh()
        plans = [_plan(run, entry, entry.generation in visible, held) for entry in state.tables.values()]
        live = {entry.generation for entry in catalog.refresh().tables.values()}
        if all(plan.entry.generation in live for plan in plans if plan.is_dropped):
            return state, plans
        # Dropped since we read the catalog: the copy would name a table that no longer takes writes.


def _plan(run: Run, entry: Entry, is_visible: bool, held: ExitStack) -> BackupPlan:
    run.advance(0, entry.name)
    baseline, log, rejects = _fixed(run.source, entry)
    # While the copy runs, cleaning leaves alone every version that there is now.
    pin = new_pin("backup", log_version=0, baseline_version=0)
    held.enter_context(Pins(run.source, entry.generation).held(pin))
    # Listed after the state is fixed: whatever that state needs is there.
    here = {info.path: info for info in run.source.list(entry.folder)}
    there = {info.path: info for info in run.target.list(entry.folder)}

    def part(folder: str, snapshot: Snapshot) -> CopiedLog:
        return compare(run, entry.name, f"{entry.folder}/{folder}", snapshot, here, there)

    return BackupPlan(
        entry,
        DROPPED in log.snapshot.configuration,
        is_visible,
        part("log", log.snapshot),
        part("baseline", baseline.snapshot),
        None if rejects is None else part("rejects", rejects),
    )


def _fixed(source: Storage, entry: Entry) -> tuple[BaselineState, LogState, Snapshot | None]:
    """The baseline, then the log, then the refused rows: so none holds less than an earlier one rests on."""
    log = Log(source, f"{entry.folder}/log")
    try:
        baseline = Baseline(source, f"{entry.folder}/baseline", log.refresh().definition.vnodes)
        folded, changes = baseline.refresh(), log.refresh()
        while min(folded.marks) < changes.trimmed_to:
            # Folded and trimmed in between: there is a newer baseline.
            before, folded = folded, baseline.refresh()
            if folded.version == before.version:
                what = f"is trimmed to seq {changes.trimmed_to}, but the baseline holds only {min(folded.marks)}"
                raise corrupt(source, log.folder, entry.name, what)
            changes = log.refresh()
        if max(folded.marks) > changes.head:
            what = f"ends at seq {changes.head}, but the baseline is folded to {max(folded.marks)}"
            raise corrupt(source, log.folder, entry.name, what)
    except NotFound as error:
        raise corrupt(source, entry.folder, entry.name, f"is in the catalog, but: {error.message}") from error
    rejects = Rejects(source, entry).state()
    return folded, changes, None if rejects is None else rejects.snapshot
