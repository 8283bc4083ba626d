"""A table's log: append a batch of changes, read the files between two seqs.

The log is a Delta table. The seq of a batch is the version of the commit that adds its files; it is assigned by that
commit and written into the add action (`_seq`), not into the file. So a reader that has seen seq n has seen every
change up to n: no seq is assigned first and committed later.

After a crash: files that no commit claims are orphans; a batch is in the log whole, at one seq, or not at all.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from strandline.crash import crash_point
from strandline.errors import Corrupt, Internal, NotFound, StrandlineError
from strandline.model import types as schemas
from strandline.model.change import DELETE, HASH, OP, ROW, SEQ, Commit, Op
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys, same_as_next
from strandline.storage.delta import DeltaLog
from strandline.storage.open import Storage
from strandline.storage.parquet import writer
from strandline.storage.snapshot import (
    PURGE,
    DataFile,
    Draft,
    Snapshot,
    new_file_name,
    new_metadata,
    protocol,
)
from strandline.tables.horizon import horizon_at, horizon_txn, horizons
from strandline.tables.log_state import EPOCH, HIDDEN, PACK, REDEFINED, TRIM, LogState, first_seq, scan_file
from strandline.tables.pins import Pins

__all__ = ["TRIM", "Amend", "Log", "LogState", "first_seq", "scan_file"]

Amend = Callable[[Snapshot, Draft], Draft]

DROPPED = "strandline.dropped"
DELETED = "strandline.deleted"
KEPT_PROPERTY = "strandline.fixpoint"
"""A property of the log that outlasts a change of the definition."""


def lost_table(storage: Storage, folder: str) -> Corrupt:
    """The error for a missing log or baseline of a table in the catalog."""
    return Corrupt(
        f"the commit files in {storage.url(folder)} are gone, and the catalog names that table",
        hint="Restore that folder from a backup, unless the table was dropped meanwhile.",
        path=folder,
    )


class Log:
    """The log in one folder. Safe to share between threads; other processes may write it at any time."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage = storage
        self.folder = folder
        self.delta = DeltaLog(storage, folder)
        self.pins = Pins(storage, folder.split("/")[-2])
        self._state: LogState | None = None

    @staticmethod
    def create(storage: Storage, folder: str, name: str, definition: TableDef) -> None:
        DeltaLog.create(storage, folder, _definition_draft(name, definition))

    def refresh(self) -> LogState:
        snapshot = self.delta.refresh()
        state = self._state
        if state is None or state.snapshot is not snapshot:
            fresh = LogState(snapshot, self.storage, self.folder)
            if state is not None and state.snapshot.metadata is snapshot.metadata:
                fresh.__dict__["definition"] = state.definition
            self._state = state = fresh
        return state

    def append(
        self,
        rows: pa.Table,
        definition: TableDef,
        op: Op,
        *,
        operation: str | None = None,
        tokens: Sequence[str] = (),
        amend: Amend | None = None,
    ) -> Commit:
        """Prepare rows, write them as files and commit these. `operation` names the commit, by default after `op`."""
        files = self.write(prepare(rows, definition, op), definition)
        return self.commit(files, operation=operation or op.upper(), tokens=tokens, amend=amend)

    def write(self, changes: pa.Table, definition: TableDef) -> list[DataFile]:
        """Write prepared changes as files, which no commit claims yet."""
        files = list(
            writer.write_files(
                self.storage,
                self.folder,
                lambda: new_file_name(definition.schema_id),
                changes.to_batches(),
                definition.log_schema(definition.schema_id),
            )
        )
        crash_point("log.file_written")
        return files

    def commit(
        self,
        files: Sequence[DataFile],
        *,
        operation: str,
        tokens: Sequence[str] = (),
        amend: Amend | None = None,
    ) -> Commit:
        """Give the files a seq. When a commit with one of `tokens` is in the log already, nothing is added.

        `amend` may extend the draft, with transactions for instance, or refuse it by raising: then the files are
        deleted."""
        rows = sum(file.rows for file in files)
        apps = _token_txns(tokens)
        replayed: list[int] = []

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            try:
                return draft_for(snapshot)
            except StrandlineError:
                self.discard(files)
                raise

        def draft_for(snapshot: Snapshot) -> Draft | None:
            _refuse_dropped(snapshot)
            earlier = [snapshot.txns[app] for app in apps if app in snapshot.txns]
            if earlier:
                replayed.append(earlier[0])
                return None
            seq = snapshot.version + 1
            draft = Draft(
                add=[replace(file, partition={SEQ: str(seq)}) for file in files],
                expiring_txns={app: seq for app in apps},
            )
            return draft if amend is None else amend(snapshot, draft)

        landed = self.delta.commit(operation, build, metrics={"rows": rows, "files": len(files)})
        if landed is None:
            self.discard(files)
            return self._replayed_commit(replayed[0])
        crash_point("log.committed")
        return Commit(landed.version, rows)

    def empty_commit(self, tokens: Sequence[str] = ()) -> Commit:
        """The answer to a batch without rows: no rows at the head. It makes no commit, so its tokens are not kept. When
        a commit with one of `tokens` is in the log already, the answer is that commit, as for every repeated call."""
        snapshot = self.delta.refresh()
        _refuse_dropped(snapshot)
        earlier = self.find_token(tokens)
        return Commit(snapshot.version, 0) if earlier is None else self._replayed_commit(earlier)

    def find_token(self, tokens: Sequence[str]) -> int | None:
        """The seq of the commit with one of these tokens; None when there is none."""
        txns = self.delta.refresh().txns if tokens else {}
        return next((txns[app] for app in _token_txns(tokens) if app in txns), None)

    def _replayed_commit(self, seq: int) -> Commit:
        return Commit(seq, self.refresh().rows_at(seq), is_replay=True)

    def discard(self, files: Iterable[DataFile]) -> None:
        """Delete files that no commit claims and none will."""
        self.storage.delete(f"{self.folder}/{file.path}" for file in files)

    def redefine(self, operation: str, change: Callable[[TableDef], TableDef]) -> TableDef:
        """Commit a changed definition. It comes before any data that needs it."""
        result: list[TableDef] = []

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            _refuse_dropped(snapshot)
            before = TableDef.from_configuration(snapshot.configuration, self.storage.url(self.folder))
            result[:] = [change(before)]
            return None if result[0] == before else _change_definition(snapshot, Draft(), before, result[0])

        self.delta.commit(operation, build)
        return result[0]

    def amend_definition(self, snapshot: Snapshot, draft: Draft, change: Callable[[TableDef], TableDef]) -> Draft:
        """The draft of a commit of rows, which also changes the definition."""
        before = TableDef.from_configuration(snapshot.configuration, self.storage.url(self.folder))
        after = change(before)
        return draft if after == before else _change_definition(snapshot, draft, before, after)

    def trim(self, upto: int, *, epoch: int = 0) -> None:
        """Remove the changes up to a seq from the log. Every vnode must be folded, and every consumer of the state with
        this epoch must have read, at least that far."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            if snapshot.txns.get(TRIM, 0) >= upto:
                return None
            gone = [file for file in snapshot.files.values() if int(file.partition[SEQ] or 0) <= upto]
            past = sorted(seq for seq in horizons(snapshot.txns) if seq <= upto)
            # The last horizon before the trim still holds.
            forgotten = {horizon_txn(seq): horizons(snapshot.txns)[seq] for seq in past[:-1]}
            newer = {EPOCH: epoch} if epoch > snapshot.txns.get(EPOCH, 0) else {}
            return Draft(remove=gone, txns={TRIM: upto, **newer}, forgotten_txns=forgotten)

        self.delta.commit("TRIM", build, metrics={"upto": upto})

    def expire(self, horizon: int, *, rows: int) -> int | None:
        """Hide rows whose time lies before a horizon, from the returned seq on; None when they are hidden already.
        The history shows their number, `rows`, and `hidden_rows` adds it up."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            _refuse_dropped(snapshot)
            seq = snapshot.version + 1
            before = horizon_at(snapshot.txns, seq)
            if before is not None and before >= horizon:
                return None
            return Draft(txns={horizon_txn(seq): horizon, HIDDEN: snapshot.txns.get(HIDDEN, 0) + rows})

        landed = self.delta.commit("EXPIRE", build, metrics={"before": horizon, "rows": rows})
        return None if landed is None else landed.version

    def rewrite(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> None:
        """Purge: replace files by files with fewer rows, at the same seqs. `Conflict` when a file was removed
        meanwhile."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft:
            _refuse_dropped(snapshot)
            return Draft(remove=removed, add=added, txns={PURGE: snapshot.version + 1})

        self.delta.commit("PURGE", build, metrics={"files": len(added)})

    def pack(self, removed: Sequence[DataFile], added: Sequence[DataFile]) -> None:
        """Replace files by packs with the same changes. `Conflict` when a file was removed meanwhile."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft:
            _refuse_dropped(snapshot)
            draft = Draft(remove=removed, add=added, txns={PACK: snapshot.version + 1}, is_change=False)
            return self.amend_definition(snapshot, draft, lambda known: replace(known, is_packed=True))

        self.delta.commit("PACK", build, metrics={"files": len(removed), "packs": len(added)})

    def mark_dropped(self) -> None:
        """End the log: later writes are refused, also those of processes that still have it open."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            if DROPPED in snapshot.configuration:
                return None
            configuration = {**snapshot.configuration, DROPPED: str(now_ms)}
            return Draft(metadata={**snapshot.metadata, "configuration": configuration})

        self.delta.commit("DROP TABLE", build)

    def mark_undropped(self) -> None:
        """Open a dropped log again; `NotFound` when a vacuum has begun to delete its files."""

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            if DELETED in snapshot.configuration:
                raise NotFound("a vacuum has deleted the files of this table")
            if DROPPED not in snapshot.configuration:
                return None
            configuration = {name: value for name, value in snapshot.configuration.items() if name != DROPPED}
            return Draft(metadata={**snapshot.metadata, "configuration": configuration})

        self.delta.commit("UNDROP TABLE", build)

    def mark_deleted(self) -> bool:
        """Say that the files of a dropped table are about to be deleted; False when it is not dropped any more."""
        is_dropped: list[bool] = []

        def build(snapshot: Snapshot, now_ms: int) -> Draft | None:
            is_dropped.append(DROPPED in snapshot.configuration)
            if not is_dropped[-1] or DELETED in snapshot.configuration:
                return None
            configuration = {**snapshot.configuration, DELETED: str(now_ms)}
            return Draft(metadata={**snapshot.metadata, "configuration": configuration})

        self.delta.commit("VACUUM", build)
        return is_dropped[-1]


def _token_txns(tokens: Sequence[str]) -> list[str]:
    """The transactions of tokens."""
    return [f"token/{token}" for token in tokens]


def _refuse_dropped(snapshot: Snapshot) -> None:
    if DROPPED in snapshot.configuration:
        raise NotFound("the table was dropped; nothing was written")


def _definition_draft(name: str, definition: TableDef) -> Draft:
    columns = definition.log_delta_schema()
    metadata = new_metadata(name, schemas.delta_json(columns), [SEQ], definition.to_configuration())
    return Draft(metadata=metadata, protocol=protocol(with_ntz=schemas.needs_ntz(columns)))


def _change_definition(snapshot: Snapshot, draft: Draft, before: TableDef, after: TableDef) -> Draft:
    new = _definition_draft(str(snapshot.metadata.get("name")), after)
    metadata = {**(new.metadata or {}), "id": snapshot.metadata["id"]}
    if KEPT_PROPERTY in snapshot.configuration:
        kept = {KEPT_PROPERTY: snapshot.configuration[KEPT_PROPERTY]}
        metadata["configuration"] = {**metadata["configuration"], **kept}
    txns = draft.txns if after.schemas == before.schemas else {**draft.txns, REDEFINED: snapshot.version + 1}
    return replace(draft, metadata=metadata, protocol=new.protocol, txns=txns)


def prepare(rows: pa.Table, definition: TableDef, op: Op | None) -> pa.Table:
    """Rows as a batch of changes: hashed, sorted by (`_hash`, key), with one change a key: the last of the highest
    version.

    Without `op`, each row has its own in `_op`. A delete has no version and sorts after the rows that have one, so the
    caller must not pass an upsert after a delete of the same key."""
    columns = definition.log_schema(definition.schema_id)
    count = rows.num_rows
    if definition.is_keyed:
        hashes = hash_keys([rows.column(name) for name in definition.key])
        rows = rows.append_column(HASH, hashes)
        names = [HASH, *definition.key, *([definition.version] if definition.version and op != DELETE else [])]
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
        rows = rows.take(order)
        kept = pc.invert(same_as_next(rows, [HASH, *definition.key]))
        if not pc.all(kept, min_count=0).as_py():
            rows = rows.filter(kept)
    else:
        # Rows of one append stay together and in order: they share one random hash.
        rows = rows.append_column(HASH, pa.array([zlib.crc32(uuid.uuid4().bytes)] * count, pa.int64()))
        rows = rows.append_column(ROW, pa.array(range(count), pa.int64()))
    if op is not None:
        rows = rows.append_column(OP, pa.array([op] * rows.num_rows, pa.string()))
    if rows.num_rows > count:
        raise Internal("a batch of changes grew while it was prepared")
    return schemas.conform(rows, columns)
