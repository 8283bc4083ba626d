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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow.parquet as pq

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt, NotFound
from strandline.storage.base import FileInfo, Storage
from strandline.storage.commits import Action, CommitLog

CHECKPOINT_EVERY = 50
RESTED_S = 10.0  # a younger commit file is never cleaned away …
_ASLEEP_S = 5.0  # … so a commit that took longer than this has to look whether its number was free
PURGE = "purge"  # the version of the last commit that erased rows from the table's past
_RAW_BYTES = "strandline.rawBytes"
_FORGOTTEN_MS = 0  # a txn last updated then has expired: readers here drop it, the next checkpoint too
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFile:
    """A live Parquet file of a Delta table. `path` is relative to the table; `modified_ms` is its commit's time;
    `raw_bytes` is what its rows take in memory, which the file's size does not tell."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    modified_ms: int
    stats_text: str
    raw_bytes: int

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        return json.loads(self.stats_text) if self.stats_text else {}

    @property
    def rows(self) -> int:
        return int(self.stats["numRecords"])

    def add(self) -> Action:
        return {
            "add": {
                "path": self.path,
                "partitionValues": dict(self.partition),
                "size": self.size,
                "modificationTime": self.modified_ms,
                "dataChange": True,
                "stats": self.stats_text,
                "tags": {_RAW_BYTES: str(self.raw_bytes)},
            }
        }

    def remove(self, at_ms: int) -> Action:
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": at_ms,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition),
                "size": self.size,
            }
        }


@dataclass(frozen=True)
class Snapshot:
    """A Delta table at one version. `doomed` are unclaimed files that commits read by this process have given up:
    they may be deleted at any moment, so none of them may be claimed any more."""

    version: int
    timestamp_ms: int
    metadata: Mapping[str, Any]
    files: Mapping[str, DataFile]
    txns: Mapping[str, int]
    doomed: frozenset[str] = frozenset()

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}


@dataclass(frozen=True)
class Draft:
    """What a commit wants to do, decided from the snapshot it is based on.

    `txns` stay for ever, `expiring_txns` as long as the table's configuration says, `forgotten_txns` not at all.
    `doomed` are files that no commit has claimed and none may from here on."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    expiring_txns: Mapping[str, int] = field(default_factory=dict)
    forgotten_txns: Mapping[str, int] = field(default_factory=dict)
    doomed: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None


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
                _check(draft, snapshot)
                if self._has_gap:
                    self._check_there(draft.add)
                actions = _actions(draft, operation, commit_id, now_ms, metrics or {})
                crash_point("delta.before_commit")
                if not self._commits.create(snapshot.version + 1, actions, commit_id):
                    continue
                crash_point("delta.committed")
                if _is_awake(looked_s) or self._is_current(snapshot.version + 1, draft):
                    break
            self._snapshot = landed = _apply(snapshot, snapshot.version + 1, actions)
        if landed.version % CHECKPOINT_EVERY == 0:
            self.checkpoint()
        return landed

    def _is_current(self, version: int, draft: Draft) -> bool:
        """Whether a commit that we created after a long sleep is one that readers see.

        Its number may have been taken and cleaned away while we slept: then the commit before it is gone as well, a
        checkpoint stands in their place, and what we wrote is taken back."""
        if self._is_chained(version - 1):
            return True
        self._snapshot, self._has_gap = None, True
        files = self.refresh().files
        if draft.add and all(file.path in files for file in draft.add):
            return True
        self.storage.delete([self._commits.path(version)])
        return False

    def _check_there(self, files: Iterable[DataFile]) -> None:
        """Commits that this process has not seen may have doomed its files."""
        for file in files:
            if not self.storage.exists(f"{self.folder}/{file.path}"):
                raise _given_up(file.path)

    @staticmethod
    def create(storage: Storage, folder: str, draft: Draft) -> DeltaLog:
        """Write version 0 of a new table; the folder must be a fresh one."""
        log = DeltaLog(storage, folder)
        commit_id = uuid.uuid4().hex
        actions = _actions(draft, "CREATE TABLE", commit_id, int(time.time() * 1000), {})
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
            _log.warning("no checkpoint of %s: %s", self.storage.url(self.folder), error)

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
            info = _commit_info(self._commits.read(version) or ())
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
            info = _commit_info(self._commits.read(middle) or ())
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
        return self._extend(_apply(Snapshot(-1, 0, {}, {}, {}), 0, actions), None)

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
            return _apply(Snapshot(-1, 0, {}, {}, {}), 0, actions)
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
            snapshot = _apply(snapshot, snapshot.version + 1, actions)
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
        files = [_data_file(add) for add in rows.column("add").drop_null().to_pylist()]
        return Snapshot(
            version,
            # A version without files has its time in its commit file alone.
            max(_committed_ms(self._commits.read(version) or ()), *(f.modified_ms for f in files), 0),
            metadata,
            {f.path: f for f in files},
            {
                txn["appId"]: txn["version"]
                for txn in rows.column("txn").drop_null().to_pylist()
                if txn.get("lastUpdated") != _FORGOTTEN_MS
            },
        )


def _clocks() -> tuple[float, float]:
    """Two clocks: one goes on while the machine sleeps, the other is never set back."""
    return time.time(), time.monotonic()


def _is_awake(since: tuple[float, float]) -> bool:
    """Whether so little time has passed that no commit made since can have been cleaned away."""
    return all(0 <= now - then < _ASLEEP_S for now, then in zip(_clocks(), since, strict=True))


def _data_file(add: Mapping[str, Any]) -> DataFile:
    return DataFile(
        add["path"],
        add["size"],
        dict(add["partitionValues"]),
        add["modificationTime"],
        add.get("stats") or "",
        int(dict(add.get("tags") or ()).get(_RAW_BYTES) or add["size"]),
    )


def _commit_info(actions: Iterable[Action]) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if "commitInfo" in a), {})


def _committed_ms(actions: Iterable[Action]) -> int:
    return int(_commit_info(actions).get("timestamp", 0))


def _apply(snapshot: Snapshot, version: int, actions: Iterable[Action]) -> Snapshot:
    files, txns, metadata, timestamp_ms = None, None, snapshot.metadata, snapshot.timestamp_ms
    doomed = snapshot.doomed
    for action in actions:
        if "add" in action:
            files = dict(snapshot.files) if files is None else files
            files[action["add"]["path"]] = _data_file(action["add"])
        elif "remove" in action:
            files = dict(snapshot.files) if files is None else files
            files.pop(action["remove"]["path"], None)
        elif "txn" in action:
            txns = dict(snapshot.txns) if txns is None else txns
            if action["txn"].get("lastUpdated") == _FORGOTTEN_MS:
                txns.pop(action["txn"]["appId"], None)
            else:
                txns[action["txn"]["appId"]] = action["txn"]["version"]
        elif "metaData" in action:
            metadata = action["metaData"]
        elif "commitInfo" in action:
            timestamp_ms = max(timestamp_ms, int(action["commitInfo"].get("timestamp", 0)))
            doomed |= frozenset(action["commitInfo"].get("doomed", ()))
    return replace(
        snapshot,
        version=version,
        timestamp_ms=timestamp_ms,
        metadata=metadata,
        files=snapshot.files if files is None else files,
        txns=snapshot.txns if txns is None else txns,
        doomed=doomed,
    )


def _check(draft: Draft, snapshot: Snapshot) -> None:
    """A commit removes only files that are live and moves a txn only forward."""
    for file in draft.remove:
        if file.path not in snapshot.files:
            raise Conflict(f"file {file.path} was removed by another commit", path=file.path)
    for file in draft.add:
        if file.path in snapshot.doomed:
            raise _given_up(file.path)
    for app, value in {**draft.txns, **draft.expiring_txns}.items():
        if app in snapshot.txns and snapshot.txns[app] > value:
            raise Conflict(f"transaction {app!r} is at {snapshot.txns[app]}, past {value}", txn=app)


def _given_up(path: str) -> Conflict:
    return Conflict(
        f"{path} was cleared away as a leftover before it was committed; nothing was written",
        hint="Write again. A vacuum's --grace should be longer than your longest write.",
        path=path,
    )


def _actions(draft: Draft, operation: str, commit_id: str, now_ms: int, metrics: Mapping[str, Any]) -> list[Action]:
    info: dict[str, Any] = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "operationMetrics": {name: str(value) for name, value in metrics.items()},
        "engineInfo": "strandline",
        "commitId": commit_id,
    }
    if draft.doomed:
        info["doomed"] = list(draft.doomed)
    actions: list[Action] = [{"commitInfo": info}]
    if draft.protocol is not None:
        actions.append({"protocol": dict(draft.protocol)})
    if draft.metadata is not None:
        actions.append({"metaData": dict(draft.metadata)})
    actions += [{"txn": {"appId": app, "version": version}} for app, version in draft.txns.items()]
    actions += [
        {"txn": {"appId": app, "version": version, "lastUpdated": now_ms}}
        for app, version in draft.expiring_txns.items()
    ]
    actions += [
        {"txn": {"appId": app, "version": version, "lastUpdated": _FORGOTTEN_MS}}
        for app, version in draft.forgotten_txns.items()
    ]
    actions += [file.remove(now_ms) for file in draft.remove]
    actions += [replace(file, modified_ms=now_ms).add() for file in draft.add]
    return actions


def new_metadata(
    name: str, schema_json: str, partition_by: Sequence[str], configuration: Mapping[str, str]
) -> Mapping[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json,
        "partitionColumns": list(partition_by),
        "configuration": dict(configuration),
        "createdTime": int(time.time() * 1000),
    }


def protocol(*, with_ntz: bool) -> Mapping[str, Any]:
    if not with_ntz:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": ["timestampNtz"],
    }
