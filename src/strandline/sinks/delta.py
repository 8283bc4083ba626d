"""A Delta table that collects a table's changes, through the `deltalake` library.

Lanes write files below `data/` of the table, where no reader sees them. `finish` claims them in one commit, which also
records the producer's seq (`txn` of `strandline/<generation>`). The library does not reject a repeated `txn`. So each
commit is based on a freshly loaded table and may only become that table's next version: of two finishers one wins, and
the other one loads again and finds the batch delivered.

After a crash: the `txn` says what is delivered. Unclaimed files are left to the table's own vacuum, because a commit
that names them may still land.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.scrub import first_line
from strandline.retry import ATTEMPTS
from strandline.sinks import contract
from strandline.sinks.contract import Batch, Producer, Result
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


class DeltaSink(FileSink):
    """Changes as rows of the Delta table at `uri`, a folder or `s3://bucket/prefix`; a missing table
    is created."""

    kind: ClassVar[str] = "delta"

    def open(self, producer: Producer) -> DeltaDelivery:
        return DeltaDelivery(self.storage(), producer)


@dataclass(frozen=True)
class DeltaDelivery:
    storage: Storage
    producer: Producer

    def is_delivered(self, batch: Batch) -> bool:
        return self._is_delivered(self._load_table(), batch)

    def cuts(self) -> None:
        return None

    def lane(self, batch: Batch) -> FileLane:
        """A lane that writes files with the table's columns. The table is created, or gets missing columns, first."""
        if batch.is_first:
            with translate_errors(self.storage):
                self.storage.check_put_new()
        wanted = stored_schema(batch)
        table = self._load_table()
        if table is None or missing_columns(table, wanted):
            self._land_commit(
                lambda table: table is not None and not missing_columns(table, wanted),
                lambda table: self._prepare_table(table, wanted),
            )
            table = self._load_table()
        if table is None:
            raise self._replaced_conflict()
        columns = fit_columns(table, wanted, self.storage.uri)
        return FileLane(self.storage, batch, _folder(batch), "part", is_staged=False, schema=columns)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        files = [file for file, _ in collect_files(results)]
        crash_point("sink.files_written")
        self._land_commit(
            lambda table: self._is_delivered(table, batch), lambda table: self._claim_files(table, batch, files)
        )
        crash_point("sink.committed")
        if batch.is_replay:
            clear_unfinished(self.storage, _folder(batch))

    def position(self, vnodes: int) -> Mapping[int, int]:
        held = self._held_seq(self._load_table())
        return {} if held is None else dict.fromkeys(range(vnodes), held)

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
    def _app_id(self) -> str:
        return f"strandline/{self.producer.generation}"

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage.delta_options) or None

    def _held_seq(self, table: DeltaTable | None) -> int | None:
        return None if table is None else table.transaction_version(self._app_id)

    def _is_delivered(self, table: DeltaTable | None, batch: Batch) -> bool:
        return contract.is_delivered(self._held_seq(table), batch, self.producer, self.storage.uri)

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
        mark = Transaction(self._app_id, batch.upto)
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[mark], max_commit_retries=0),
        )

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
