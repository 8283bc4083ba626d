"""The baseline, the folded part of a table: sorted files per vnode, and the seq up to which each vnode is folded.

`txn("fold/<v>", f)` in the baseline's own log says that vnode v holds the fold of all changes up to f. Files and marks
change in the same commits, so they cannot disagree. A commit that replaces a vnode's files checks that nobody else has
folded that vnode since.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from strandline.engines.scan import ScanFile
from strandline.errors import Conflict, Corrupt, NotFound, NotRetained
from strandline.model import types as schemas
from strandline.model.change import VNODE
from strandline.model.definition import TableDef
from strandline.storage.delta import DeltaLog
from strandline.storage.open import Storage
from strandline.storage.snapshot import PURGE, DataFile, Draft, Snapshot, new_metadata, protocol
from strandline.tables.log import lost_table, scan_file

_SCHEMA_ID = "strandline.schema_id"
KEPT_FROM = "kept_from"


@dataclass(frozen=True)
class BaselineState:
    """The baseline at one version."""

    snapshot: Snapshot
    storage: Storage
    folder: str
    vnodes: int
    counted: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def version(self) -> int:
        return self.snapshot.version

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """For each vnode, the seq up to which it is folded."""
        return marks_of(self.snapshot.txns, self.vnodes)

    @property
    def kept_from(self) -> int:
        """The oldest version that can be read."""
        return self.snapshot.txns.get(KEPT_FROM, 0)

    def files(self, vnode: int | None = None) -> list[DataFile]:
        wanted = None if vnode is None else str(vnode)
        return [f for f in self.snapshot.files.values() if wanted is None or f.partition[VNODE] == wanted]

    def scans(self, files: Iterable[DataFile]) -> list[ScanFile]:
        return [scan_file(self.storage, self.folder, f, int(f.partition[VNODE] or 0)) for f in files]


def marks_of(txns: Mapping[str, int], vnodes: int) -> tuple[int, ...]:
    return tuple(txns.get(f"fold/{vnode}", 0) for vnode in range(vnodes))


class Baseline:
    """The baseline in one folder. Safe to share between threads; other processes may fold it at any time."""

    def __init__(self, storage: Storage, folder: str, vnodes: int) -> None:
        self.storage = storage
        self.folder = folder
        self.vnodes = vnodes
        self.delta = DeltaLog(storage, folder)
        self._state: BaselineState | None = None
        self._history: list[tuple[int, tuple[int, ...]]] = []
        self._history_lock = threading.Lock()

    @staticmethod
    def create(storage: Storage, folder: str, name: str, definition: TableDef) -> None:
        DeltaLog.create(storage, folder, _schema_draft(name, definition))

    def refresh(self) -> BaselineState:
        try:
            snapshot = self.delta.refresh()
        except NotFound as error:
            raise lost_table(self.storage, self.folder) from error
        if self._state is None or self._state.snapshot is not snapshot:
            self._state = BaselineState(snapshot, self.storage, self.folder, self.vnodes)
        return self._state

    def at_seq(self, seq: int, trimmed_to: int) -> BaselineState:
        """The newest version that holds nothing after `seq`; the log must still reach back to it."""
        state = self.refresh()
        if max(state.marks) <= seq:
            return state
        kept = [
            (version, marks)
            for version, marks in self.versions(state)
            if version >= state.kept_from and min(marks) >= trimmed_to
        ]
        oldest = min((max(marks) for _, marks in kept), default=max(state.marks))
        found = max((version for version, marks in kept if max(marks) <= seq), default=None)
        if found is None:
            if seq >= trimmed_to:
                self.check_kept()
            raise NotRetained(f"seq {seq} can no longer be read; the oldest is {oldest}", seq=seq, oldest=oldest)
        try:
            return self.at(found)
        except NotFound as error:
            raise NotRetained(f"seq {seq} can no longer be read", seq=seq, oldest=max(state.marks)) from error

    def check_kept(self) -> None:
        """`Corrupt` when a kept version cannot be loaded: a vacuum gives a version up before it deletes its files."""
        oldest = self.delta.oldest()
        kept_from = self.refresh().kept_from
        if oldest > kept_from:
            path = self.delta.chain.commits.path(oldest - 1)
            raise Corrupt(
                f"commit files up to {self.storage.url(path)} are missing, and versions from {kept_from} on are kept",
                hint="Restore them from a backup.",
                path=path,
            )

    def at(self, version: int) -> BaselineState:
        return BaselineState(self.delta.at(version), self.storage, self.folder, self.vnodes)

    def versions(self, state: BaselineState) -> Sequence[tuple[int, tuple[int, ...]]]:
        """(version, marks) of every version that can be loaded, up to that of `state`."""
        with self._history_lock:
            self._extend_history(state.version)
            # The last one always stays: reading on starts from it.
            self._history = [h for h in self._history[:-1] if h[0] >= state.kept_from] + self._history[-1:]
            return list(self._history)

    def _extend_history(self, upto: int) -> None:
        start = self._history[-1][0] + 1 if self._history else self.delta.oldest()
        txns = {f"fold/{v}": seq for v, seq in enumerate(self._history[-1][1])} if self._history else None
        for version in range(start, upto + 1):
            actions = self.delta.actions(version)
            if actions is None:
                # Cleaned away since the last look: go on behind the gap.
                txns = None
                continue
            if txns is None:
                try:
                    txns = dict(self.delta.at(version).txns)
                except NotFound:
                    continue
            txns.update({a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a})
            self._history.append((version, marks_of(txns, self.vnodes)))

    def commit_fold(
        self,
        base: BaselineState,
        definition: TableDef,
        *,
        upto: int,
        vnodes: Collection[int],
        idle: Collection[int],
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
    ) -> int:
        """Replace `removed` by `added` and move the marks of `vnodes` to `upto`, in one commit. `idle` vnodes have no
        changes up to there: their marks move too, unless somebody else has moved them.

        `Conflict` when one of `vnodes` was folded, or the table purged, since `base`."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft:
            now = marks_of(snapshot.txns, self.vnodes)
            live, known = (_paths_by_vnode(s) for s in (snapshot, base.snapshot))
            # A mark that moved while the files stayed means that there was nothing to fold.
            if any(live.get(v) != known.get(v) or now[v] > upto for v in vnodes):
                raise Conflict("another process compacted this table meanwhile; nothing was changed")
            moved = [*vnodes, *(vnode for vnode in idle if now[vnode] == base.marks[vnode])]
            if snapshot.txns.get(PURGE) != base.snapshot.txns.get(PURGE):
                raise Conflict("rows of this table were purged meanwhile; nothing was changed")
            return self._with_schema(
                snapshot,
                definition,
                Draft(add=added, remove=removed, txns={f"fold/{vnode}": upto for vnode in moved}),
            )

        metrics = {"vnodes": len(vnodes), "rows": sum(f.rows for f in added), "files": len(added)}
        landed = self.delta.commit("FOLD", build, metrics=metrics)
        assert landed is not None
        return landed.version

    def commit_purge(
        self,
        base: BaselineState,
        definition: TableDef,
        *,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
    ) -> int:
        """Replace files by files without the purged rows; earlier versions can no longer be read."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft:
            if snapshot.files.keys() != base.snapshot.files.keys():
                raise Conflict("the table was compacted meanwhile; nothing was changed")
            draft = Draft(add=added, remove=removed, txns=dict.fromkeys((PURGE, KEPT_FROM), snapshot.version + 1))
            return self._with_schema(snapshot, definition, draft)

        landed = self.delta.commit("PURGE", build, metrics={"files": len(added)})
        assert landed is not None
        return landed.version

    def keep_from(self, decide: Callable[[BaselineState], int]) -> None:
        """Give up the versions before the one that `decide` returns. `decide` is called again when another commit comes
        first, so its decision still holds when the commit lands."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            version = decide(BaselineState(snapshot, self.storage, self.folder, self.vnodes))
            return Draft(txns={KEPT_FROM: version}) if snapshot.txns.get(KEPT_FROM, 0) < version else None

        self.delta.commit("VACUUM", build)

    def note_pin(self) -> None:
        """Make an empty commit, so that a vacuum that is about to give versions up must read the pins again."""
        self.delta.commit("PIN", lambda snapshot, now_ms: Draft())

    def _with_schema(self, snapshot: Snapshot, definition: TableDef, draft: Draft) -> Draft:
        """The draft, with the table's schema when it is newer than the baseline's."""
        if int(snapshot.configuration.get(_SCHEMA_ID, -1)) >= definition.schema_id:
            return draft
        newer = _schema_draft(str(snapshot.metadata.get("name")), definition)
        return replace(
            draft, metadata={**(newer.metadata or {}), "id": snapshot.metadata["id"]}, protocol=newer.protocol
        )


def _paths_by_vnode(snapshot: Snapshot) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for file in snapshot.files.values():
        found[int(file.partition[VNODE] or 0)].add(file.path)
    return found


def _schema_draft(name: str, definition: TableDef) -> Draft:
    columns = definition.baseline_delta_schema()
    configuration = {
        _SCHEMA_ID: str(definition.schema_id),
        "strandline.key": ",".join(definition.key),
        "delta.enableExpiredLogCleanup": "false",
    }
    metadata = new_metadata(name, schemas.delta_json(columns), [VNODE], configuration)
    return Draft(metadata=metadata, protocol=protocol(with_ntz=schemas.needs_ntz(columns)))
