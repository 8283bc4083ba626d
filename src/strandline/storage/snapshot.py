"""Plain values: the state of a Delta table at a version, the draft of a commit, and the actions of both.

`DeltaLog` reads and writes them; nothing here touches a file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from strandline.errors import Conflict
from strandline.storage.commits import FIRST, Action, CommitFile
from strandline.storage.contract import check_inside

PURGE = "purge"  # the version of the last commit that erased rows from the table's past
FORGOTTEN_MS = 0  # a txn last updated then has expired: readers here drop it, the next checkpoint too
_RAW_BYTES = "strandline.rawBytes"
_CRC = "strandline.crc32"
_PACK = "strandline.pack"


@dataclass(frozen=True)
class Pack:
    """What a log file holds that has the changes of several commits: those of `commits` commits from the seq `first` to
    `last`, made from `since_ms` to `until_ms`. `tier` counts how often its rows have been packed, at most."""

    first: int
    last: int
    commits: int
    tier: int
    since_ms: int
    until_ms: int

    def share(self, after: int, upto: int) -> float:
        """About which part of its changes lies in `(after, upto]`, as if they were evenly spread."""
        both = min(self.last, upto) - max(self.first - 1, after)
        return max(0, both) / (self.last - self.first + 1)

    def time_ms(self, seq: int) -> int:
        """About when the commit `seq` was made."""
        part = (max(self.first, seq) - self.first) / max(1, self.last - self.first)
        return self.since_ms + round((self.until_ms - self.since_ms) * min(1.0, part))


@dataclass(frozen=True)
class DataFile:
    """A live Parquet file of a Delta table. `path` is relative to the table; `modified_ms` is the time of its commit;
    `raw_bytes` is the size of its rows in memory; `crc` is the crc32 of its bytes, None in files of older versions.

    `pack` is set for a log file with the changes of several commits. `within` limits it to the changes in
    `(after, upto]` for a reader; it is not stored."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    modified_ms: int
    stats_text: str
    raw_bytes: int
    crc: int | None = None
    pack: Pack | None = None
    within: tuple[int, int] | None = None

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        return json.loads(self.stats_text) if self.stats_text else {}

    @property
    def rows(self) -> int:
        return int(self.stats["numRecords"])

    @property
    def share(self) -> float:
        """About which part of the file a reader wants: all of it, except of a pack that is not all `within` a range."""
        return 1.0 if self.pack is None or self.within is None else self.pack.share(*self.within)

    @property
    def oldest_ms(self) -> int:
        """About when the oldest change that a reader wants was committed."""
        if self.pack is None:
            return self.modified_ms
        return self.pack.time_ms(self.pack.first if self.within is None else self.within[0] + 1)

    def add(self, *, is_change: bool = True) -> Action:
        return {
            "add": {
                "path": self.path,
                "partitionValues": dict(self.partition),
                "size": self.size,
                "modificationTime": self.modified_ms,
                "dataChange": is_change,
                "stats": self.stats_text,
                "tags": {
                    _RAW_BYTES: str(self.raw_bytes),
                    **({} if self.crc is None else {_CRC: f"{self.crc:08x}"}),
                    **({} if self.pack is None else {_PACK: json.dumps(asdict(self.pack), separators=(",", ":"))}),
                },
            }
        }

    def remove(self, at_ms: int, *, is_change: bool = True) -> Action:
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": at_ms,
                "dataChange": is_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition),
                "size": self.size,
            }
        }


@dataclass(frozen=True)
class Snapshot:
    """A Delta table at one version. `digest` is the digest of its commit. `doomed` are unclaimed files that commits, as
    far as this process has read them, gave up: they may be deleted at any moment, so no commit may claim them."""

    version: int
    timestamp_ms: int
    metadata: Mapping[str, Any]
    files: Mapping[str, DataFile]
    txns: Mapping[str, int]
    doomed: frozenset[str] = frozenset()
    digest: str = FIRST

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}


@dataclass(frozen=True)
class Draft:
    """The content of a commit, decided from the snapshot before it.

    `txns` stay for ever, `expiring_txns` as long as the table's configuration says; `forgotten_txns` are removed.
    `doomed` are unclaimed files that no commit may claim from here on. Without `is_change`, the commit only arranges
    rows anew: other engines that follow the table skip it."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    expiring_txns: Mapping[str, int] = field(default_factory=dict)
    forgotten_txns: Mapping[str, int] = field(default_factory=dict)
    doomed: Sequence[str] = ()
    is_change: bool = True
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None


def data_file(add: Mapping[str, Any]) -> DataFile:
    tags = dict(add.get("tags") or ())
    return DataFile(
        check_inside(add["path"]),
        add["size"],
        dict(add["partitionValues"]),
        add["modificationTime"],
        add.get("stats") or "",
        int(tags.get(_RAW_BYTES) or add["size"]),
        int(tags[_CRC], 16) if tags.get(_CRC) else None,
        Pack(**json.loads(tags[_PACK])) if tags.get(_PACK) else None,
    )


def commit_info(actions: Iterable[Action]) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if "commitInfo" in a), {})


NOTHING = Snapshot(-1, 0, {}, {}, {})


def apply_commit(snapshot: Snapshot, commit: CommitFile) -> Snapshot:
    """The table after the next commit."""
    files, txns, metadata, timestamp_ms = None, None, snapshot.metadata, snapshot.timestamp_ms
    doomed = snapshot.doomed
    for action in commit.actions:
        if "add" in action:
            files = dict(snapshot.files) if files is None else files
            files[action["add"]["path"]] = data_file(action["add"])
        elif "remove" in action:
            files = dict(snapshot.files) if files is None else files
            files.pop(action["remove"]["path"], None)
        elif "txn" in action:
            txns = dict(snapshot.txns) if txns is None else txns
            if action["txn"].get("lastUpdated") == FORGOTTEN_MS:
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
        version=snapshot.version + 1,
        timestamp_ms=timestamp_ms,
        metadata=metadata,
        files=snapshot.files if files is None else files,
        txns=snapshot.txns if txns is None else txns,
        doomed=doomed,
        digest=commit.digest,
    )


def check_draft(draft: Draft, snapshot: Snapshot) -> None:
    """`Conflict` when a draft removes a file that is not live, claims a doomed one, or moves a txn backward."""
    for file in draft.remove:
        if file.path not in snapshot.files:
            raise Conflict(f"file {file.path} was removed by another commit", path=file.path)
    for file in draft.add:
        if file.path in snapshot.doomed:
            raise given_up(file.path)
    for app, value in {**draft.txns, **draft.expiring_txns}.items():
        if app in snapshot.txns and snapshot.txns[app] > value:
            raise Conflict(f"transaction {app!r} is at {snapshot.txns[app]}, past {value}", txn=app)


def given_up(path: str) -> Conflict:
    return Conflict(
        f"{path} was cleared away as a leftover before it was committed; nothing was written",
        hint="Write again. A vacuum's --grace should be longer than your longest write.",
        path=path,
    )


def actions_of(draft: Draft, operation: str, commit_id: str, now_ms: int, metrics: Mapping[str, Any]) -> list[Action]:
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
        {"txn": {"appId": app, "version": version, "lastUpdated": FORGOTTEN_MS}}
        for app, version in draft.forgotten_txns.items()
    ]
    actions += [file.remove(now_ms, is_change=draft.is_change) for file in draft.remove]
    actions += [replace(file, modified_ms=now_ms).add(is_change=draft.is_change) for file in draft.add]
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


def new_file_name(schema_id: int) -> str:
    """A unique name; its first part is the id of the file's schema."""
    return f"{schema_id:04d}-{uuid.uuid4().hex}.parquet"


def schema_id_of(file: DataFile) -> int:
    return int(file.path.split("-", 1)[0])
