"""Checkpoints of a Delta table: a table's state at a version, so that a reader need not read every commit.

The `deltalake` library writes checkpoints without checksums. So each one is read back and compared with the state that
the commits give, and then a digest file beside it, `<20 digits>.checkpoint.digest`, records its digests. The digest
file is sealed like a commit file and names the digest of the commit at that version, where the chain of commits goes
on. Before older files are cleaned away, it is marked `alone`: so a lost commit can be told from a cleaned one.

After a crash: a checkpoint without its digest file is not used while the commits before it are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import Corrupt, Internal
from strandline.storage.commits import FIRST, RESTORE, CommitFile, read_sealed, seal_actions
from strandline.storage.contract import Storage
from strandline.storage.snapshot import FORGOTTEN_MS, Snapshot, data_file

# Tokens expire after 30 days: a checkpoint rewritten later may lack some of them.
_SURE_MS = 29 * 86_400_000
_EXPIRING = ("token/", "key/")
_ALONE = "alone"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's content. `is_verified`: it matches its digests. `is_alone`: older files may be cleaned away."""

    snapshot: Snapshot
    is_verified: bool
    is_alone: bool = False


@dataclass(frozen=True)
class Checkpoints:
    storage: Storage
    folder: str

    def path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.checkpoint.parquet"

    def digest_path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.checkpoint.digest"

    @property
    def pointer_path(self) -> str:
        return f"{self.folder}/_last_checkpoint"

    def pointed_version(self) -> int | None:
        """The version in the pointer to the last checkpoint; -1 without a pointer, None when it is unreadable."""
        try:
            return int(json.loads(self.storage.read(self.pointer_path))["version"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def pointer_bytes(self, version: int) -> bytes:
        """The content of a pointer to the checkpoint of a version."""
        with self.storage.input(self.path(version)) as file:
            return json.dumps({"version": version, "size": pq.read_metadata(file).num_rows}).encode()

    def read(self, version: int) -> Checkpoint | None:
        """The checkpoint of a version, None when there is none; `Corrupt` when it is damaged."""
        try:
            data = self.storage.read(self.path(version))
        except FileNotFoundError:
            return None
        said = self._read_digests(version)
        facts = said.actions[0] if said is not None else {}
        try:
            rows = _read_rows(data)
            snapshot = _build_snapshot(version, rows)
            # Another process may have rewritten the same facts in other bytes.
            is_verified = said is not None and (
                _hash_bytes(data) == facts["bytes"] or _hash_facts(snapshot, rows, facts["timestamp"]) == facts["facts"]
            )
        except Exception as error:
            # A decoder can fail on damaged bytes with any exception.
            raise self._damaged_error(version, f"it cannot be decoded: {type(error).__name__}: {error}") from error
        if said is None:
            return Checkpoint(snapshot, is_verified=False)
        if not is_verified:
            raise self._damaged_error(version, "its bytes do not match its digest")
        proved = replace(snapshot, timestamp_ms=facts["timestamp"], digest=said.previous)
        return Checkpoint(proved, is_verified=True, is_alone=bool(facts.get(_ALONE)))

    def write(self, at: Callable[[int], Snapshot]) -> None:
        """Write a checkpoint of the newest version; `at` gives the state at a version from its commits. `Internal` when
        the two disagree: then the checkpoint gets no digests, and our reads do not rely on it."""
        # Loaded late: Spark tasks use this module and need not have the library.
        from deltalake import DeltaTable

        pointed = self.pointed_version()
        if pointed is not None and pointed >= 0 and not self.storage.exists(self.path(pointed)):
            # The library cannot open a log whose pointer names a lost checkpoint. `at` proves that the version can be
            # read without it; otherwise the pointer stays, as the record of a loss.
            at(pointed)
            self.storage.delete([self.pointer_path])
        table = DeltaTable(
            self.storage.url(self.folder.rsplit("/", 1)[0]), storage_options=dict(self.storage.delta_options) or None
        )
        table.create_checkpoint()
        version = table.version()
        data = self.storage.read(self.path(version))
        snapshot = at(version)
        rows = _read_rows(data)
        found = _build_snapshot(version, rows)
        difference = describe_difference(found, snapshot)
        if difference:
            raise Internal(f"checkpoint {version} and the commits disagree: {difference}")
        facts = {
            "version": version,
            "timestamp": snapshot.timestamp_ms,
            "bytes": _hash_bytes(data),
            "facts": _hash_facts(found, rows, snapshot.timestamp_ms),
        }
        said = self._read_digests(version)
        if said is None or said.actions[0]["facts"] != facts["facts"]:
            alone = {_ALONE: True} if self.says_alone(version) else {}
            self._write_digests(version, {**facts, **alone}, snapshot.digest)

    def says_alone(self, version: int) -> bool | None:
        """Whether the digest file marks the checkpoint as alone; the checkpoint itself may be damaged. None when the
        digest file is missing or damaged."""
        said = self._read_digests(version)
        return None if said is None else bool(said.actions[0].get(_ALONE))

    def set_alone(self, version: int) -> None:
        """Mark a verified checkpoint as alone, unless it was cleaned away itself: older files may then go."""
        said = self._read_digests(version)
        if said is not None and not said.actions[0].get(_ALONE):
            facts = {name: said.actions[0][name] for name in ("version", "timestamp", "bytes", "facts")}
            self._write_digests(version, {**facts, _ALONE: True}, said.previous)

    def _write_digests(self, version: int, facts: Mapping[str, Any], previous: str) -> None:
        path = self.digest_path(version)
        with self.storage.output(path) as stream:
            stream.write(seal_actions(path, [dict(facts)], previous)[0])

    def _read_digests(self, version: int) -> CommitFile | None:
        path = self.digest_path(version)
        try:
            return read_sealed(path, self.storage.read(path))
        except (FileNotFoundError, ValueError):
            # A damaged digest file proves nothing about the checkpoint.
            return None

    def missing(self, version: int) -> Corrupt:
        return Corrupt(
            f"checkpoint {self.storage.url(self.path(version))} is missing, and so are commit files before it",
            hint=RESTORE,
            path=self.path(version),
        )

    def _damaged_error(self, version: int, what: str) -> Corrupt:
        return Corrupt(
            f"checkpoint {self.storage.url(self.path(version))} is damaged: {what.splitlines()[0]}",
            hint="Restore that file from a backup. Do not delete it: no other file holds its content.",
            path=self.path(version),
        )


def describe_difference(checkpoint: Snapshot, snapshot: Snapshot) -> str:
    """The difference between a checkpoint and the state by the commits; empty when they agree."""
    if checkpoint.version != snapshot.version:
        return f"versions {checkpoint.version} and {snapshot.version}"
    if checkpoint.files != snapshot.files:
        paths = [p for p in {**checkpoint.files, **snapshot.files} if checkpoint.files.get(p) != snapshot.files.get(p)]
        return f"{len(paths)} files, such as {paths[0]}"
    if checkpoint.metadata != _drop_nulls(snapshot.metadata):
        return "the table's columns or settings"
    known = {app: v for app, v in snapshot.txns.items() if app in checkpoint.txns or not app.startswith(_EXPIRING)}
    apps = [a for a in {**known, **checkpoint.txns} if known.get(a) != checkpoint.txns.get(a)]
    return f"{len(apps)} transactions, such as {apps[0]!r}" if apps else ""


def _drop_nulls(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in metadata.items() if value is not None}


def _read_rows(data: bytes) -> dict[str, list[dict[str, Any]]]:
    table = pq.read_table(pa.BufferReader(data), columns=["metaData", "add", "txn"])
    return {name: table.column(name).drop_null().to_pylist() for name in table.column_names}


def _build_snapshot(version: int, rows: dict[str, list[dict[str, Any]]]) -> Snapshot:
    (metadata,) = rows["metaData"]
    form = {**metadata["format"], "options": dict(metadata["format"]["options"] or ())}
    known = _drop_nulls({**metadata, "format": form, "configuration": dict(metadata["configuration"] or ())})
    files = [data_file(add) for add in rows["add"]]
    return Snapshot(
        version,
        max((file.modified_ms for file in files), default=0),
        known,
        {file.path: file for file in files},
        {txn["appId"]: txn["version"] for txn in rows["txn"] if txn.get("lastUpdated") != FORGOTTEN_MS},
        digest=FIRST,
    )


def _hash_bytes(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _hash_facts(snapshot: Snapshot, rows: dict[str, list[dict[str, Any]]], timestamp_ms: int) -> str:
    """A digest of a checkpoint's facts, whatever its bytes; tokens that are about to expire are left out."""
    sure = [t for t in rows["txn"] if t["lastUpdated"] is None or t["lastUpdated"] > timestamp_ms - _SURE_MS]
    said = [
        snapshot.metadata,
        [snapshot.files[path].add() for path in sorted(snapshot.files)],
        sorted((t["appId"], t["version"], t["lastUpdated"]) for t in sure),
    ]
    return _hash_bytes(json.dumps(said, sort_keys=True).encode())
