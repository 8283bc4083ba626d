"""Delta tables: the snapshot of one, kept by reading what is new, and commits without automatic retry.

Commit files are written directly as the Delta protocol describes, because a commit here decides its content from
the version that it gets (`build` is called again for each number tried) and must neither be replayed nor merged.
Checkpoints are written by the `deltalake` library. Reading takes the last checkpoint plus the commit files after
it; a snapshot once read is extended by new commit files only.

After a crash: a commit file is there whole or not at all; files that no commit claims are orphans that nothing
reads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from strandline import secret
from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, NotFound, Unavailable
from strandline.storage.base import FileInfo, Storage
from strandline.storage.commits import Action, CommitLog
from strandline.storage.faults import withdraw
from strandline.storage.snapshot import (
    FORGOTTEN_MS,
    PURGE,
    DataFile,
    Draft,
    Snapshot,
    actions_of,
    applied,
    check,
    commit_info,
    committed_ms,
    data_file,
    given_up,
)
from strandline.words import first_line

CHECKPOINT_EVERY = 50
RESTED_S = 10.0  # a younger commit file is never cleaned away …
_ASLEEP_S = 5.0  # … so a commit that took longer than this has to look whether its number was free
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommitInfo:
    """One entry of a table's history."""

    version: int
    timestamp_ms: int
    operation: str
    metrics: Mapping[str, Any]


class DeltaLog:
    """The transaction log of the Delta table in one folder. Safe to share between threads."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage = storage
        self.folder = folder
        self._commits = CommitLog(storage, f"{folder}/_delta_log")
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._looked_s = _clocks()
        self._has_gap = False

    def refresh(self) -> Snapshot:
        """The newest snapshot. Costs one look when nothing is new."""
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None:
                snapshot = self._load(None)
            else:
                known = snapshot.version
                snapshot = self._extend(snapshot, None)
                if self._last_checkpoint() > snapshot.version or (
                    snapshot.version == known and not _is_awake(self._looked_s) and not self._is_chained(known)
                ):
                    # The commit files after our version were cleaned away while nobody looked here.
                    snapshot = self._load(None)
                    self._has_gap = True
            self._snapshot, self._looked_s = snapshot, _clocks()
            return snapshot

    def _is_chained(self, version: int) -> bool:
        """Whether the commit file of a version is still there; if not, later ones may have been cleaned away too."""
        return self.storage.exists(self._commits.path(version))

    def at(self, version: int) -> Snapshot:
        """The snapshot at an older version; `NotFound` when its commit files are gone."""
        current = self.refresh()
        if version == current.version:
            return current
        return self._load(version)

    def commit(
        self,
        operation: str,
        build: Callable[[Snapshot, int], Draft | None],
        *,
        metrics: Mapping[str, Any] | None = None,
    ) -> Snapshot | None:
        """Commit what `build(snapshot, now_ms)` drafts for the version after `snapshot`; None when it drafts
        nothing.

        `build` is called again, on a fresh snapshot, whenever another writer took the number; it raises to give
        up."""
        commit_id = uuid.uuid4().hex
        with self._lock:
            while True:
                snapshot = self.refresh()
                looked_s = self._looked_s
                # Commit times rise within a table even when writers' clocks disagree.
                now_ms = max(int(time.time() * 1000), snapshot.timestamp_ms + 1)
                draft = build(snapshot, now_ms)
                if draft is None:
                    return None
                check(draft, snapshot)
                if self._has_gap:
                    self._check_there(draft.add)
                actions = actions_of(draft, operation, commit_id, now_ms, metrics or {})
                crash_point("delta.before_commit")
                try:
                    if not self._commits.create(snapshot.version + 1, actions, commit_id):
                        continue
                except Unavailable as error:
                    withdraw(error, self.storage, [f"{self.folder}/{file.path}" for file in draft.add])
                    raise
                crash_point("delta.committed")
                if _is_awake(looked_s) or self._is_current(snapshot.version + 1, draft):
                    break
            self._snapshot = landed = applied(snapshot, snapshot.version + 1, actions)
        if landed.version % CHECKPOINT_EVERY == 0:
            self.checkpoint()
        return landed

    def _is_current(self, version: int, draft: Draft) -> bool:
        """Whether a commit that took long to create is one that readers see.

        Its number may have been taken and cleaned away meanwhile. Then a checkpoint of that version or a later one is
        older than our commit file, and what we wrote is taken back. `Unavailable` when the file is gone as well."""
        commits, checkpoints = self.log_files()
        ours = commits.get(version)
        if ours is not None and all(i.modified_s > ours.modified_s for v, i in checkpoints.items() if v >= version):
            return True
        self._snapshot, self._has_gap = None, True
        files = self.refresh().files
        if draft.add and all(file.path in files for file in draft.add):
            return True
        if ours is None:
            raise Unavailable(
                f"commit {version} of {self.storage.url(self.folder)} took so long that it may or may not have landed",
                hint="Retry with the same token=…: it is applied once.",
            )
        self.storage.delete([self._commits.path(version)])
        return False

    def _check_there(self, files: Iterable[DataFile]) -> None:
        """Commits that this process has not seen may have doomed its files."""
        for file in files:
            if not self.storage.exists(f"{self.folder}/{file.path}"):
                raise given_up(file.path)

    @staticmethod
    def create(storage: Storage, folder: str, draft: Draft) -> DeltaLog:
        """Write version 0 of a new table; the folder must be a fresh one."""
        log = DeltaLog(storage, folder)
        commit_id = uuid.uuid4().hex
        actions = actions_of(draft, "CREATE TABLE", commit_id, int(time.time() * 1000), {})
        if not log._commits.create(0, actions, commit_id):
            raise Conflict(f"a table exists at {storage.url(folder)}")
        return log

    def checkpoint(self) -> None:
        """Write a checkpoint; a failure costs later readers time and nothing else, so it is logged, not raised."""
        # Loaded late: Spark tasks use this module and need not have the library.
        from deltalake import DeltaTable

        try:
            DeltaTable(
                self.storage.url(self.folder), storage_options=dict(self.storage.delta_options) or None
            ).create_checkpoint()
        except Exception as error:
            said = first_line(error, secret.of_store(self.storage.delta_options))
            _log.warning("no checkpoint of %s this time: %s", self.storage.url(self.folder), said)

    def log_files(self) -> tuple[dict[int, FileInfo], dict[int, FileInfo]]:
        """The commit files and the checkpoints that exist, by version."""
        commits: dict[int, FileInfo] = {}
        checkpoints: dict[int, FileInfo] = {}
        for info in self.storage.list(f"{self.folder}/_delta_log/"):
            stem, _, kind = info.path.rsplit("/", 1)[1].partition(".")
            if stem.isdigit() and len(stem) == 20 and kind in ("json", "checkpoint.parquet"):
                (commits if kind == "json" else checkpoints)[int(stem)] = info
        return commits, checkpoints

    def version_before(self, moment_s: float) -> int | None:
        """The newest version committed before a moment of the store's own clock; None when no record goes back so
        far."""
        return max((v for v, info in self.log_files()[0].items() if info.modified_s < moment_s), default=None)

    def oldest(self) -> int:
        """The oldest version that can be loaded."""
        if self.storage.exists(self._commits.path(0)):
            return 0
        return min(self.log_files()[1], default=self.refresh().version)

    def check_unbroken(self, after: int | None = None) -> None:
        """No commit file is missing before another, from the one after `after` on; `Corrupt` when one is, because
        what the table claims is then not known."""
        commits, checkpoints = self.log_files()
        head = self.refresh().version
        last = max([*commits, *checkpoints])
        first = head if after is None else after
        missing = next((v for v in range(first + 1, max(head, last) + 1) if v not in commits or v > head), None)
        # A commit that landed after the listing is not missing.
        if missing is not None and missing <= last:
            raise Corrupt(
                f"commit {missing} of {self.storage.url(self.folder)} is missing before others",
                hint="Restore that file from a backup. Nothing was deleted.",
                path=self._commits.path(missing),
            )

    def before(self, version: int, unread: int) -> list[FileInfo]:
        """Commit files and checkpoints without which every version from `version` on can still be loaded.

        After a purge also those that tell of purged rows in their statistics: versions before the purge are then
        given up, once nobody reads versions before `unread` any more."""
        commits, checkpoints = self.log_files()
        base = max((v for v in checkpoints if v <= version), default=0)
        purged = self.refresh().txns.get(PURGE, 0)
        if base < purged:
            base = min((v for v in checkpoints if purged <= v <= unread), default=base)
        if base == 0 or self._read_checkpoint(base) is None:
            return []
        # A writer that looked for the next number a moment ago must not find a used one free.
        rested_s = self.storage.now_s() - RESTED_S
        found = {v: [kind[v] for kind in (commits, checkpoints) if v in kind] for v in {*commits, *checkpoints}}
        stale: list[FileInfo] = []
        for version in sorted(v for v in found if v < base):
            if any(info.modified_s > rested_s for info in found[version]):
                break
            stale += found[version]
        return stale

    def history(self, after: int = -1) -> list[CommitInfo]:
        """The commits after `after` whose commit files still exist, oldest first."""
        entries = []
        for version in sorted(self.log_files()[0]):
            if version <= after:
                continue
            info = commit_info(self._commits.read(version) or ())
            entries.append(
                CommitInfo(
                    version,
                    int(info.get("timestamp", 0)),
                    str(info.get("operation", "")),
                    info.get("operationMetrics") or {},
                )
            )
        return entries

    def version_at(self, moment_ms: float) -> int | None:
        """The newest version committed at or before a moment; None when there was none, or its record is gone.

        Commit times rise with versions, so a few records tell."""
        low, high = -1, self.refresh().version
        while low < high:
            middle = (low + high + 1) // 2
            info = commit_info(self._commits.read(middle) or ())
            if int(info.get("timestamp", 0)) <= moment_ms:
                low = middle
            else:
                high = middle - 1
        return low if low >= 0 and self._commits.read(low) is not None else None

    def actions(self, version: int) -> list[Action] | None:
        return self._commits.read(version)

    def replay(self) -> Snapshot:
        """The newest snapshot from commit files alone, from the first on; `NotFound` when that one is gone."""
        actions = self._commits.read(0)
        if actions is None:
            raise NotFound(f"no commit 0 at {self.storage.url(self.folder)}", path=self.folder, version=0)
        return self._extend(applied(Snapshot(-1, 0, {}, {}, {}), 0, actions), None)

    def checkpoint_at(self, version: int) -> Snapshot | None:
        """What the checkpoint of a version says; None when there is none, `Corrupt` when it is unreadable."""
        return self._read_checkpoint(version)

    def _load(self, version: int | None) -> Snapshot:
        base = self._checkpoint_before(version)
        snapshot = self._read_checkpoint(base) if base >= 0 else None
        if snapshot is None:
            snapshot = self._first(version)
        snapshot = self._extend(snapshot, version)
        if version is None and snapshot.version == base and not self._is_chained(base):
            # A pointer that was written late, or commits that were cleaned away while we read: a newer checkpoint
            # stands for them.
            newest = self._checkpoint_by_listing(None)
            if newest > base:
                snapshot = self._extend(self._read_checkpoint(newest) or snapshot, None)
        if version is not None and snapshot.version != version:
            raise NotFound(
                f"version {version} of {self.storage.url(self.folder)} is gone",
                path=self.folder,
                version=version,
            )
        return snapshot

    def _first(self, version: int | None) -> Snapshot:
        """Where reading starts without a pointer to a checkpoint: commit 0, or the checkpoint that took its place."""
        actions = self._commits.read(0)
        if actions is not None:
            return applied(Snapshot(-1, 0, {}, {}, {}), 0, actions)
        snapshot = self._read_checkpoint(self._checkpoint_by_listing(version))
        if snapshot is None:
            what = "no Delta table at" if version is None else f"version {version} is gone from"
            raise NotFound(f"{what} {self.storage.url(self.folder)}", path=self.folder, version=version)
        return snapshot

    def _extend(self, snapshot: Snapshot, upto: int | None) -> Snapshot:
        while upto is None or snapshot.version < upto:
            actions = self._commits.read(snapshot.version + 1)
            if actions is None:
                break
            snapshot = applied(snapshot, snapshot.version + 1, actions)
        return snapshot

    def _last_checkpoint(self) -> int:
        try:
            return int(json.loads(self.storage.read(f"{self.folder}/_delta_log/_last_checkpoint"))["version"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError):
            # The hint is advice only: a torn one sends the reader to the listing.
            return self._checkpoint_by_listing(None)

    def _checkpoint_before(self, version: int | None) -> int:
        last = self._last_checkpoint()
        if version is None or last <= version:
            return last
        return self._checkpoint_by_listing(version)

    def _checkpoint_by_listing(self, version: int | None) -> int:
        return max((v for v in self.log_files()[1] if version is None or v <= version), default=-1)

    def _read_checkpoint(self, version: int) -> Snapshot | None:
        path = f"{self.folder}/_delta_log/{version:020d}.checkpoint.parquet"
        try:
            rows = pq.read_table(self.storage.input(path), columns=["metaData", "add", "txn"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Corrupt(
                f"checkpoint {self.storage.url(path)} is unreadable: {error}",
                hint="Delete that file: the commit files beside it hold the same facts.",
                path=path,
            ) from error
        metadata = next(m for m in rows.column("metaData").drop_null().to_pylist())
        metadata["configuration"] = dict(metadata["configuration"] or ())
        metadata["format"]["options"] = dict(metadata["format"]["options"] or ())
        files = [data_file(add) for add in rows.column("add").drop_null().to_pylist()]
        return Snapshot(
            version,
            # A version without files has its time in its commit file alone.
            max(committed_ms(self._commits.read(version) or ()), *(f.modified_ms for f in files), 0),
            metadata,
            {f.path: f for f in files},
            {
                txn["appId"]: txn["version"]
                for txn in rows.column("txn").drop_null().to_pylist()
                if txn.get("lastUpdated") != FORGOTTEN_MS
            },
        )


def _clocks() -> tuple[float, float]:
    """Two clocks: one goes on while the machine sleeps, the other is never set back."""
    return time.time(), time.monotonic()


def _is_awake(since: tuple[float, float]) -> bool:
    """Whether so little time has passed that no commit made since can have been cleaned away."""
    return all(0 <= now - then < _ASLEEP_S for now, then in zip(_clocks(), since, strict=True))
