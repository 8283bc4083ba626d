"""The log of a Delta table: its snapshot, extended by new commits, and commits without automatic retry.

Commit files are written directly, as the Delta protocol describes: the content of a commit depends on its version
(`build` is called again for each number tried), and a commit must neither be replayed nor merged. Reading starts at the
last checkpoint and takes the commit files after it; a snapshot is then extended by new commit files only. Each commit
names the digest of the commit before it. A commit that does not follow, or is missing before later ones, is `Corrupt`.
Now and then a thread writes a checkpoint, so that no commit waits for it.

After a crash: a commit file is there whole or not at all; files that no commit claims are orphans that nothing
reads. A checkpoint that was under way is missing, and readers take the one before it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, NotFound, Unavailable
from strandline.model import secret
from strandline.model.scrub import first_line
from strandline.storage.commits import RESTORE, Action
from strandline.storage.contract import FileInfo, Storage
from strandline.storage.delta_files import CommitChain
from strandline.storage.os_errors import delete_if_refused, from_message, is_forbidden
from strandline.storage.snapshot import (
    NOTHING,
    PURGE,
    DataFile,
    Draft,
    Snapshot,
    actions_of,
    apply_commit,
    check_draft,
    commit_info,
    given_up,
)

CHECKPOINT_EVERY = 50
RESTED_S = 10.0  # a younger commit file is never cleaned away …
_ASLEEP_S = 5.0  # … so a commit that took longer than this must check that its number was free
_log = logging.getLogger("strandline.storage")


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
        self.chain = CommitChain(storage, folder)
        self._commits = self.chain.commits
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._looked_s = self._listed_s = _read_clocks()
        self._has_gap = False
        self._one_checkpoint = threading.Lock()
        self._beside: threading.Thread | None = None

    def refresh(self) -> Snapshot:
        """The newest snapshot. When nothing is new, it costs one look."""
        return self._refresh(by_list=not self.storage.is_local)

    def _refresh(self, *, by_list: bool) -> Snapshot:
        with self._lock:
            known = self._snapshot
            snapshot = self.chain.load() if known is None else self._read_later_commits(known, by_list)
            self._snapshot, self._looked_s = snapshot, _read_clocks()
            if known is None or by_list:
                self._listed_s = self._looked_s
            return snapshot

    def _read_later_commits(self, known: Snapshot, by_list: bool) -> Snapshot:
        """The newest snapshot, by the commits after a known one."""
        look = self._commits.lists_later if by_list else self.chain.sees_later
        if not self.storage.is_local and self._commits.is_last(known.version):
            return known
        try:
            snapshot = self.chain.catch_up(known, look)
            if snapshot.version > known.version or self._commits.exists(known.version):
                return snapshot
        except Corrupt:
            # A checkpoint may replace the damaged or missing commits.
            pass
        # The commit files after our version were cleaned away since our last look, or they are lost.
        try:
            snapshot = self.chain.load()
        except NotFound as error:
            raise Corrupt(
                f"the commit files in {self.storage.url(self.folder)} were there and are gone",
                hint="Restore that folder from a backup, unless the table was dropped meanwhile.",
                path=self.folder,
            ) from error
        if snapshot.version < known.version:
            raise Corrupt(
                f"commit file {self.storage.url(self._commits.path(known.version))} was there and is gone",
                hint=RESTORE,
                path=self._commits.path(known.version),
            )
        self._has_gap = True
        return snapshot

    def at(self, version: int) -> Snapshot:
        """The snapshot at an older version; `NotFound` when its commit files are gone."""
        current = self.refresh()
        if version == current.version:
            return current
        return self.chain.load(version)

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
                # Two looks do not see past several lost commits, and a writer would take the number of the first. So a
                # writer lists the folder now and then.
                snapshot = self._refresh(by_list=not self.storage.is_local or not _is_recent(self._listed_s))
                looked_s = self._looked_s
                # Commit times rise within a table even when writers' clocks disagree.
                now_ms = max(int(time.time() * 1000), snapshot.timestamp_ms + 1)
                draft = build(snapshot, now_ms)
                if draft is None:
                    return None
                check_draft(draft, snapshot)
                if self._has_gap:
                    self._check_files_exist(draft.add)
                actions = actions_of(draft, operation, commit_id, now_ms, metrics or {})
                crash_point("delta.before_commit")
                try:
                    landed = self._commits.create(snapshot.version + 1, actions, commit_id, snapshot.digest)
                except Unavailable as error:
                    delete_if_refused(error, self.storage, [f"{self.folder}/{file.path}" for file in draft.add])
                    raise
                if landed is None:
                    continue
                crash_point("delta.committed")
                if _is_recent(looked_s) or self._is_current(snapshot.version + 1, draft):
                    break
            self._snapshot = after = apply_commit(snapshot, landed)
            if after.version % CHECKPOINT_EVERY == 0:
                self._begin_checkpoint()
        return after

    def _begin_checkpoint(self) -> None:
        """Write a checkpoint beside the commits that follow; at most one at a time. The interpreter waits for it when
        it exits: ending a thread in the midst of a library's code could end the process by a signal."""
        if self._beside is not None and self._beside.is_alive():
            return
        thread = threading.Thread(target=self.checkpoint, name="strandline-checkpoint")
        try:
            thread.start()
        except RuntimeError:
            # No thread can be had, as while the interpreter exits: a later commit tries again.
            return
        self._beside = thread

    def await_checkpoint(self) -> None:
        """Wait until no checkpoint that a commit has begun is under way."""
        with self._lock:
            thread = self._beside
        if thread is not None:
            thread.join()

    def _is_current(self, version: int, draft: Draft) -> bool:
        """Whether readers see a commit that took long to create.

        Its number may have been used and cleaned away meanwhile. Then a checkpoint of that version or a later one is
        older than our commit file, and our file is deleted. `Unavailable` when the file is gone as well."""
        commits, checkpoints = self.chain.files()
        ours = commits.get(version)
        if ours is not None and all(i.modified_s > ours.modified_s for v, i in checkpoints.items() if v >= version):
            return True
        self._snapshot, self._has_gap = None, True
        files = self.refresh().files
        if draft.add and all(file.path in files for file in draft.add):
            return True
        if ours is None:
            raise Unavailable(
                f"commit {version} of {self.storage.url(self.folder)} took so long that it may not have landed",
                hint="Retry with the same token=…: it is applied once.",
            )
        self.storage.delete([self._commits.path(version)])
        return False

    def _check_files_exist(self, files: Iterable[DataFile]) -> None:
        """`Conflict` when a file is gone: commits that this process has not seen may have doomed it."""
        for file in files:
            if not self.storage.exists(f"{self.folder}/{file.path}"):
                raise given_up(file.path)

    @staticmethod
    def create(storage: Storage, folder: str, draft: Draft) -> DeltaLog:
        """Write version 0 of a new table; the folder must be a fresh one."""
        log = DeltaLog(storage, folder)
        commit_id = uuid.uuid4().hex
        actions = actions_of(draft, "CREATE TABLE", commit_id, int(time.time() * 1000), {})
        if log._commits.create(0, actions, commit_id, NOTHING.digest) is None:
            raise Conflict(f"a table exists at {storage.url(folder)}")
        return log

    def checkpoint(self, *, is_wanted: bool = False) -> None:
        """Write a checkpoint. A failure only costs later readers time, so it is logged, not raised; with `is_wanted`,
        `Unavailable` where this process may not write."""
        try:
            with self._one_checkpoint:
                self.chain.checkpoints.write(self.at)
        except Exception as error:
            said = first_line(error, secret.store_secrets(self.storage.delta_options))
            where = self.storage.url(self.folder)
            refused = from_message(said, where)
            if is_wanted and refused is not None and is_forbidden(refused):
                raise refused from error
            _log.warning("no checkpoint of %s this time: %s", where, said)

    def oldest(self) -> int:
        """The oldest version that can be loaded."""
        found = self.chain.oldest()
        return self.refresh().version if found is None else found

    def version_before(self, moment_s: float) -> int | None:
        """The newest version committed before a moment of the store's own clock; None when all commit files are
        younger."""
        return max((v for v, info in self.chain.files()[0].items() if info.modified_s < moment_s), default=None)

    def check_unbroken(self, after: int | None = None) -> None:
        """`Corrupt` when a commit file after `after` is missing before a later one: then it is not known which files
        the table claims."""
        commits, checkpoints = self.chain.files()
        head = self.refresh().version
        last = max([*commits, *checkpoints])
        first = head if after is None else after
        missing = next((v for v in range(first + 1, max(head, last) + 1) if v not in commits or v > head), None)
        # A commit that landed after the listing is not missing.
        if missing is not None and missing <= last:
            raise self._commits.missing(missing)

    def base_checkpoint(self, version: int, unread: int) -> int | None:
        """The checkpoint from which every version from `version` on can be loaded; None without a verified one.

        After a purge, a checkpoint behind it: older files hold statistics of purged rows. Versions before the purge are
        given up once nobody reads versions before `unread`."""
        checkpoints = self.chain.files()[1]
        base = max((v for v in checkpoints if v <= version), default=0)
        purged = self.refresh().txns.get(PURGE, 0)
        if base < purged:
            base = min((v for v in checkpoints if purged <= v <= unread), default=base)
        found, _ = self.chain.try_checkpoint(base) if base > 0 else (None, None)
        # An unverified checkpoint must not be the only record left.
        return base if found is not None and found.is_verified else None

    def files_before(self, base: int) -> list[FileInfo]:
        """The commit files and checkpoints before the checkpoint `base` that may be deleted."""
        commits, checkpoints = self.chain.files()
        # A writer that looked for the next number a moment ago must not find a used number free.
        rested_s = self.storage.now_s() - RESTED_S
        old = {v: [kind[v] for kind in (commits, checkpoints) if v in kind] for v in {*commits, *checkpoints}}
        stale: list[FileInfo] = []
        for version in sorted(v for v in old if v < base):
            if any(info.modified_s > rested_s for info in old[version]):
                break
            stale += old[version]
            if version in checkpoints:
                stale.append(replace(checkpoints[version], path=self.chain.checkpoints.digest_path(version), size=0))
        return stale

    def history(self, after: int = -1) -> list[CommitInfo]:
        """The commits after `after` whose commit files still exist, oldest first."""
        entries = []
        for version in sorted(self.chain.files()[0]):
            if version <= after:
                continue
            info = commit_info(self.actions(version) or ())
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
        """The newest version committed at or before a moment; None when there was none, or its commit file is gone.

        Commit times rise with versions, so halving finds it."""
        low, high = -1, self.refresh().version
        while low < high:
            middle = (low + high + 1) // 2
            info = commit_info(self.actions(middle) or ())
            if int(info.get("timestamp", 0)) <= moment_ms:
                low = middle
            else:
                high = middle - 1
        return low if low >= 0 and self._commits.read(low) is not None else None

    def actions(self, version: int) -> list[Action] | None:
        found = self._commits.read(version)
        return None if found is None else found.actions


def _read_clocks() -> tuple[float, float]:
    """Two clocks: one goes on while the machine sleeps, the other is never set back."""
    return time.time(), time.monotonic()


def _is_recent(since: tuple[float, float]) -> bool:
    """Whether so little time has passed that no commit made since can have been cleaned away."""
    return all(0 <= now - then < _ASLEEP_S for now, then in zip(_read_clocks(), since, strict=True))
