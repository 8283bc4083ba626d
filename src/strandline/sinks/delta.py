"""A Delta table that mirrors a table or collects its changes, through the `deltalake` library.

Lanes write files below `data/` of the table, where no reader sees them. `finish` claims them in one commit, which also
records the producer's seq (`txn` of `strandline/<generation>`), and the round of a backfill. The library does not
reject a repeated `txn`. So each commit is based on a freshly loaded table and may only become that table's next
version: of two finishers one wins, and the other one loads again and finds the batch delivered. The commits of a mirror
are those of `DeltaMirror`; its lanes write the rows themselves when the whole table is sent, or the changes, which
`finish` applies.

After a crash: the `txn` says what is delivered. Unclaimed files are left to the table's own vacuum, because a commit
that names them may still land.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.change import OP, SEQ
from strandline.model.scrub import first_line
from strandline.retry import ATTEMPTS
from strandline.sinks import contract, mirror
from strandline.sinks.contract import WHOLE, Batch, Held, Producer, Result
from strandline.sinks.delta_mirror import DeltaMirror, lacks_columns, mirrored_schema, write_checkpoint
from strandline.sinks.delta_types import fit_columns, missing_columns, stored_schema
from strandline.sinks.files import FileLane, FileSink, clear_unfinished, collect_files, translate_errors
from strandline.storage.contract import cleared_away
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Loading a table takes longer with every commit since its last checkpoint.
_CHECKPOINT_EVERY = 20
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0


@dataclass(frozen=True)
class DeltaSink(FileSink):
    """The Delta table at `uri`, a folder or `s3://bucket/prefix`; a missing table is created.

    `mode="mirror"` keeps it equal to the table; it belongs to the sink. `mode="changes"` appends every change with its
    `_op` and `_seq`. Without a mode a new sink is a mirror if it can be one; a sink on record keeps its mode."""

    kind: ClassVar[str] = "delta"

    mode: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mode", contract.check_mode(self.mode))

    @property
    def keeps_rows(self) -> bool:
        return self.mode == contract.MIRROR

    @property
    def destination(self) -> str:
        return self.uri + contract.MIRROR_NOTE if self.keeps_rows else self.uri

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "mode": self.mode}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """A definition without a mode is from before there were mirrors."""
        return cls(facts["uri"], options=facts.get("options"), mode=facts.get("mode", contract.CHANGES))

    def open(self, producer: Producer) -> DeltaDelivery:
        return DeltaDelivery(self.storage(), producer, is_mirror=self.keeps_rows)


@dataclass(frozen=True)
class DeltaDelivery:
    storage: Storage
    producer: Producer
    is_mirror: bool = False

    def is_delivered(self, batch: Batch) -> bool:
        return self._is_delivered(self._load_table(), batch)

    def cuts(self) -> None:
        return None

    def lane(self, batch: Batch) -> FileLane:
        """A lane that writes files with the table's columns. The table is created, or gets missing columns, first."""
        if batch.is_first:
            with translate_errors(self.storage):
                self.storage.check_put_new()
        wanted = mirrored_schema(batch) if self.is_mirror else stored_schema(batch)
        table = self._load_table()
        if self._lacks_columns(table, batch):
            self._land_commit(
                lambda table: not self._lacks_columns(table, batch), lambda table: self._prepare_table(table, wanted)
            )
            table = self._load_table()
        if table is None:
            raise self._replaced_conflict()
        if not self.is_mirror:
            columns = fit_columns(table, wanted, self.storage.uri)
            return FileLane(self.storage, batch, _folder(batch), "part", is_staged=False, schema=columns)
        self._mirror.check_owner(table, batch)
        columns = self._mirror.columns_for(table, batch)
        if batch.is_rows or not batch.key:
            return FileLane(
                self.storage,
                batch,
                _folder(batch),
                "part",
                is_staged=False,
                schema=columns,
                budget=mirror.budget_for(batch.size),
            )
        changed = [batch.file_schema.field(OP), batch.file_schema.field(SEQ), *columns]
        folder = f"{_folder(batch)}/{mirror.CHANGED_BELOW}"
        return FileLane(self.storage, batch, folder, "part", is_staged=False, schema=pa.schema(changed))

    def _lacks_columns(self, table: DeltaTable | None, batch: Batch) -> bool:
        if self.is_mirror:
            return lacks_columns(table, batch)
        return table is None or len(missing_columns(table, stored_schema(batch))) > 0

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        files = [file for file, _ in collect_files(results)]
        crash_point("sink.files_written")
        claim = self._commit_mirror if self.is_mirror else self._claim_files
        self._land_commit(lambda table: self._is_delivered(table, batch), lambda table: claim(table, batch, files))
        crash_point("sink.committed")
        if self.is_mirror:
            write_checkpoint(self._load_table(), _CHECKPOINT_EVERY)
            self._delete_changes(batch)
        if batch.is_replay:
            clear_unfinished(self.storage, _folder(batch))

    def position(self, vnodes: int) -> Mapping[int, int]:
        return contract.spread_position(self._held(self._load_table()), vnodes, self.producer, self.storage.uri)

    def close(self) -> None:
        pass

    def _load_table(self) -> DeltaTable | None:
        """The table at its newest version; None when there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self.storage.uri, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise self._translate_error(error) from error

    @property
    def _mirror(self) -> DeltaMirror:
        return DeltaMirror(self.storage, self.producer)

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage.delta_options) or None

    def _held(self, table: DeltaTable | None) -> Held | None:
        if table is None or (seq := table.transaction_version(self._mirror.seq_id)) is None:
            return None
        found = table.transaction_version(self._mirror.round_id)
        return Held(seq, WHOLE if found is None else found)

    def _is_delivered(self, table: DeltaTable | None, batch: Batch) -> bool:
        return contract.is_delivered(self._held(table), batch, self.producer, self.storage.uri)

    def _land_commit(
        self, has_landed: Callable[[DeltaTable | None], bool], commit: Callable[[DeltaTable | None], None]
    ) -> None:
        """Commit unless `has_landed`. A failed commit may have landed too, so the table is checked again."""
        from deltalake.exceptions import DeltaError

        for attempt in range(ATTEMPTS):
            table = self._load_table()
            if has_landed(table):
                return
            try:
                commit(table)
                return
            except (DeltaError, OSError) as error:
                failure = self._translate_error(error)
                failure.__cause__ = error
            except Unavailable as error:
                failure = error
            except (Conflict, NotFound):
                # Another finisher may have landed it and cleared its files away.
                if has_landed(self._load_table()):
                    return
                raise
            if isinstance(failure, Invalid):
                raise failure
            time.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**attempt))
        if not has_landed(self._load_table()):
            raise failure

    def _prepare_table(self, table: DeltaTable | None, wanted: pa.Schema) -> None:
        from deltalake import CommitProperties, DeltaTable, Schema

        if table is None:
            configuration = {"delta.checkpointInterval": str(_CHECKPOINT_EVERY)}
            DeltaTable.create(
                self.storage.uri,
                wanted,
                mode="error",
                name=self.producer.table,
                configuration=configuration,
                storage_options=self._options,
            )
            return
        fit_columns(table, wanted, self.storage.uri)
        more = Schema.from_arrow(missing_columns(table, wanted)).fields
        table.alter.add_columns(more, commit_properties=CommitProperties(max_commit_retries=0))

    def _claim_files(self, table: DeltaTable | None, batch: Batch, files: Sequence[DataFile]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        wanted = stored_schema(batch)
        if table is None or missing_columns(table, wanted):
            raise self._replaced_conflict()
        fit_columns(table, wanted, self.storage.uri)
        self._check_files_exist(batch, files)
        now_ms = int(time.time() * 1000)
        adds = [AddAction(file.path, file.size, {}, now_ms, True, file.stats_text) for file in files]
        marks = [Transaction(id_, at) for id_, at in self._mirror.list_marks(batch).items()]
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=marks, max_commit_retries=0),
        )

    def _commit_mirror(self, table: DeltaTable | None, batch: Batch, files: Sequence[DataFile]) -> None:
        from deltalake.exceptions import CommitFailedError

        if table is None or self._lacks_columns(table, batch):
            raise self._replaced_conflict()
        self._check_files_exist(batch, files)
        with translate_errors(self.storage):
            if not self._mirror.commit(table, batch, files, _folder(batch)):
                raise CommitFailedError(f"version {table.version() + 1} is taken")

    def _delete_changes(self, batch: Batch) -> None:
        """Delete the change files of a delivered batch, also those of failed attempts."""
        # The batch counts, even if they cannot be deleted.
        with suppress(StrandlineError, OSError):
            below = self.storage.list(f"{_folder(batch)}/{mirror.CHANGED_BELOW}")
            self.storage.delete([file.path for file in below])

    def _check_files_exist(self, batch: Batch, files: Sequence[DataFile]) -> None:
        """Fail when a file is gone: a vacuum without a grace time may have deleted unclaimed files."""
        with translate_errors(self.storage):
            there = {info.path for info in self.storage.list(_folder(batch))} if files else set()
        for file in files:
            if file.path not in there:
                raise cleared_away(file.path)

    def _replaced_conflict(self) -> Conflict:
        return Conflict(
            f"the Delta table at {self.storage.uri} was replaced while the sink {self.producer.consumer!r} wrote files",
            hint="Nothing was added to it. The next tick looks again: strandline tick",
            consumer=self.producer.consumer,
        )

    def _translate_error(self, error: Exception) -> StrandlineError:
        from deltalake.exceptions import CommitFailedError, DeltaProtocolError

        said = first_line(error, secret.store_secrets(self.storage.delta_options))
        what = f"the Delta table at {self.storage.uri}"
        if isinstance(error, DeltaProtocolError) or "Unsupported table features" in said:
            return Invalid(f"{what} cannot be written: {said}", hint="Send to another table.", path=self.storage.uri)
        if isinstance(error, CommitFailedError):
            return Conflict(
                f"{what}: other writers were first, {ATTEMPTS} times in a row ({said})",
                hint="Nothing was added to it. The next tick tries again: strandline tick",
                consumer=self.producer.consumer,
            )
        return Unavailable(f"{what} cannot be written or read: {said}", path=self.storage.uri)


def _folder(batch: Batch) -> str:
    return f"data/{batch.id}"
