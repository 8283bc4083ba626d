"""The files below `_delta_log/` of one Delta table: commits, each of which follows the one before it, and checkpoints.

Reading starts at the last checkpoint that its digests verify, and goes on commit by commit. A damaged checkpoint is no
loss while commits lead to its version without a gap, from an older checkpoint or from commit 0. A commit that is
damaged, does not follow, or is missing before later ones is `Corrupt`.

Nothing here writes, so a crash changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

from strandline.errors import Corrupt, NotFound
from strandline.storage.checkpoints import Checkpoint, Checkpoints
from strandline.storage.commits import Action, CommitLog
from strandline.storage.contract import FileInfo, Storage
from strandline.storage.snapshot import NOTHING, Snapshot, apply_commit, commit_info

_NUMBERED = re.compile(r"/(\d{20})\.(json|checkpoint\.parquet)\Z")
_DIGEST = re.compile(r"/(\d{20})\.checkpoint\.digest\Z")
_READERS = 8


@dataclass(frozen=True)
class CommitChain:
    """The commits and checkpoints of the Delta table in `folder`."""

    storage: Storage
    folder: str

    @cached_property
    def commits(self) -> CommitLog:
        return CommitLog(self.storage, f"{self.folder}/_delta_log")

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.storage, f"{self.folder}/_delta_log")

    def files(self) -> tuple[dict[int, FileInfo], dict[int, FileInfo]]:
        """The commit files and the checkpoints that exist, by version."""
        commits: dict[int, FileInfo] = {}
        checkpoints: dict[int, FileInfo] = {}
        for info in self.storage.list(self.commits.folder):
            if found := _NUMBERED.search(info.path):
                (commits if found.group(2) == "json" else checkpoints)[int(found.group(1))] = info
        return commits, checkpoints

    def has_gap(self) -> bool:
        """Whether a commit file is missing between others."""
        commits = self.files()[0]
        return len(commits) <= max(commits, default=0) - min(commits, default=0)

    def oldest(self) -> int | None:
        """The oldest version that can be loaded."""
        return 0 if self.commits.exists(0) else min(self.files()[1], default=None)

    def load(self, version: int | None = None) -> Snapshot:
        """The snapshot at a version, by default the newest; `NotFound` when the version does not exist or is gone."""
        pointed = self.checkpoints.pointed_version()
        is_usable = pointed is not None and (version is None or pointed <= version)
        base = pointed if pointed is not None and is_usable else self._newest_checkpoint(version)
        while True:
            try:
                return self._load_from(base, version)
            except (Corrupt, NotFound):
                # The pointer is wrong or was written late, or commits were cleaned away: another checkpoint may work.
                newest = self._newest_checkpoint(version)
                if newest == base:
                    raise
                base = newest

    def extend(self, snapshot: Snapshot, upto: int | None = None) -> Snapshot:
        """The snapshot with the commits after it, as far as there are any, up to `upto`."""
        while upto is None or snapshot.version < upto:
            commit = self.commits.read_next(snapshot.version, snapshot.digest)
            if commit is None:
                break
            snapshot = apply_commit(snapshot, commit)
        return snapshot

    def catch_up(self, snapshot: Snapshot, has_later: Callable[[int], bool]) -> Snapshot:
        """The newest snapshot; `Corrupt` when the next commit is missing and there are later ones."""
        snapshot = self.extend(snapshot)
        while has_later(snapshot.version):
            # The next commit and later ones may have landed a moment ago.
            newer = self.extend(snapshot)
            if newer.version == snapshot.version:
                raise self.commits.missing(snapshot.version + 1)
            snapshot = newer
        return snapshot

    def sees_later(self, version: int) -> bool:
        """Whether there are commits after the next one, by two looks, which are cheap in a folder. When several
        commits in a row are missing, only a checkpoint after them or a listing shows it."""
        return self.commits.exists(version + 2) or (self.checkpoints.pointed_version() or -1) > version

    def read_all(self, head: int) -> dict[int, list[Action]]:
        """The actions of every commit file up to `head`; `Corrupt` unless each follows the one before it."""
        versions = sorted(version for version in self.files()[0] if version <= head)
        with ThreadPoolExecutor(_READERS) as pool:
            found = {v: c for v, c in zip(versions, pool.map(self.commits.read, versions), strict=True) if c}
        # Files before the oldest version that can be loaded are left over from a clean-up.
        oldest = self.oldest()
        for version, commit in found.items():
            if oldest is not None and version > oldest and version - 1 in found:
                self.commits.check_follows(version, commit, found[version - 1].digest)
        return {version: commit.actions for version, commit in found.items()}

    def _load_from(self, base: int, version: int | None) -> Snapshot:
        start = self._start_snapshot(base, version)
        if version is None:
            return self.catch_up(start, self.commits.lists_later)
        snapshot = self.extend(start, version)
        if snapshot.version != version:
            raise NotFound(
                f"version {version} of {self.storage.url(self.folder)} is gone", path=self.folder, version=version
            )
        return snapshot

    def _start_snapshot(self, base: int, version: int | None) -> Snapshot:
        """The snapshot to start from: the checkpoint `base`, or an older state from where commits lead to it.

        `Corrupt` when that checkpoint is damaged and no commits lead to it."""
        checkpoint, damage = self.try_checkpoint(base)
        if checkpoint is not None and checkpoint.is_verified:
            return checkpoint.snapshot
        if base < 0 and self.commits.exists(0):
            return NOTHING
        if checkpoint is None and damage is None:
            commits = self.files()[0]
            if commits and version is None:
                lost = self.lost_checkpoint(min(commits), max(commits))
                raise self.commits.missing(0) if lost is None else self.checkpoints.missing(lost)
            what = "no Delta table at" if version is None else f"version {version} is gone from"
            raise NotFound(f"{what} {self.storage.url(self.folder)}", path=self.folder, version=version)
        before = self._snapshot_before(base)
        if before is not None:
            return before
        if damage is not None:
            raise damage
        # A checkpoint without digests is trusted when there is nothing to compare it with.
        commit = self.commits.read(base)
        if checkpoint is None or commit is None:
            raise self.commits.missing(base)
        timestamp_ms = int(commit_info(commit.actions)["timestamp"])
        return replace(checkpoint.snapshot, timestamp_ms=timestamp_ms, digest=commit.digest)

    def _snapshot_before(self, base: int) -> Snapshot | None:
        """An older snapshot from which commits lead to the checkpoint `base` without a gap."""
        commits, checkpoints = self.files()
        first = base + 1
        while first - 1 in commits:
            first -= 1
        for older in sorted((v for v in checkpoints if first - 1 <= v < base), reverse=True):
            found, _ = self.try_checkpoint(older)
            if found is not None and found.is_verified:
                return found.snapshot
        return NOTHING if first == 0 else None

    def lost_checkpoint(self, first: int, last: int) -> int | None:
        """The version of a lost checkpoint from which the commit files `first` to `last` go on: by its digest file, or
        else by the pointer."""
        names = [info.path for info in self.storage.list(self.commits.folder)]
        digests = {int(found.group(1)) for found in map(_DIGEST.search, names) if found}
        for versions in (digests, {self.checkpoints.pointed_version() or -1}):
            if found := [
                v for v in versions if max(first - 1, 0) <= v <= last and self.checkpoints.path(v) not in names
            ]:
                return max(found)
        return None

    def leads_to(self, version: int) -> bool:
        """Whether commits alone give the state of that checkpoint, from an older checkpoint or from commit 0."""
        return self._snapshot_before(version) is not None

    def try_checkpoint(self, version: int) -> tuple[Checkpoint | None, Corrupt | None]:
        """The checkpoint of a version, or its damage, or neither when there is none."""
        try:
            return (self.checkpoints.read(version) if version >= 0 else None), None
        except Corrupt as error:
            return None, error

    def _newest_checkpoint(self, version: int | None) -> int:
        return max((v for v in self.files()[1] if version is None or v <= version), default=-1)
