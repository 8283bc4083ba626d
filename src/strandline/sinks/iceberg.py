"""Send a table to Iceberg, each batch as one snapshot: a mirror of the table, or its changes.

The lanes write Parquet files into the table's own folder, where readers ignore them until a snapshot names them.
`finish` adds them and moves the producer's mark, a property of the Iceberg table, in one commit. The catalog accepts it
only if no snapshot came in between. So a repeated batch, by the same process or by two at once, is added once.

After a crash: the mark tells whether the batch landed. The files of a failed attempt are left to Iceberg's own removal
of orphan files, because its commit may still land.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, StrandlineError, Unavailable
from strandline.model.change import OP, SEQ
from strandline.retry import ATTEMPTS
from strandline.sinks import mirror
from strandline.sinks.contract import (
    MIRROR,
    Batch,
    Held,
    Lane,
    Producer,
    Result,
    check_mode,
    is_delivered,
    spread_position,
)
from strandline.sinks.files import FileLane, collect_files
from strandline.sinks.iceberg_catalog import (
    TIMEOUT_S,
    CatalogSettings,
    data_place,
    describe_catalog,
    open_catalog,
    translate_errors,
)
from strandline.sinks.iceberg_rows import (
    MARKS,
    OldIcebergFile,
    check_owner,
    file_columns,
    list_files,
    mark_text,
    parse_mark,
)
from strandline.sinks.iceberg_types import fit_columns, stored_schema, with_field_ids
from strandline.sinks.mirror import NewFiles, rewrite
from strandline.storage.open import Storage
from strandline.storage.parquet import writer

T = TypeVar("T")
_NEW_TABLE = {
    "format-version": "2",
    # A table that gets a snapshot at each tick would otherwise keep a manifest for each, and every metadata file.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


@dataclass(frozen=True, init=False)
class IcebergSink:
    """An Iceberg table. `catalog` is what `pyiceberg.catalog.load_catalog` takes: `type`, `uri`, `warehouse`, …

    `mode="mirror"` keeps it equal to the table; it belongs to the sink. `mode="changes"` appends every change with its
    `_op` and `_seq`. Without a mode a new sink is a mirror if it can be one; a sink on record keeps its mode. `options`
    are settings of the object store, if the catalog's settings do not suffice."""

    kind: ClassVar[str] = "iceberg"
    access: ClassVar[tuple[str, ...]] = ("catalog", "options")
    is_ordered: ClassVar[bool] = False

    catalog: CatalogSettings
    table: str
    mode: str | None
    options: CatalogSettings

    def __init__(
        self,
        catalog: Mapping[str, Any],
        table: str,
        *,
        mode: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(table, str) or "." not in table or not all(table.split(".")):
            raise Invalid(f"table is {table!r}; expected a namespace and a name", hint="Such as: 'ns.messages'")
        object.__setattr__(self, "catalog", CatalogSettings(catalog, "Iceberg catalog"))
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "mode", check_mode(mode))
        object.__setattr__(self, "options", CatalogSettings(options or {}, "object store's options"))

    @property
    def identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @property
    def destination(self) -> str:
        mode = ", mirror" if self.keeps_rows else ""
        return f"Iceberg table {self.table} ({describe_catalog(self.catalog)}{mode})"

    @property
    def lanes(self) -> int:
        return 1

    @property
    def keeps_rows(self) -> bool:
        return self.mode == MIRROR

    def to_dict(self) -> dict[str, Any]:
        kept = {"catalog": self.catalog.to_dict(), "options": self.options.to_dict()}
        return {**kept, "table": self.table, "mode": self.mode}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        return cls(facts["catalog"], facts["table"], mode=facts["mode"], options=facts["options"])

    def open(self, producer: Producer) -> IcebergDelivery:
        return IcebergDelivery(self, producer, open_catalog(self.catalog, self.destination))


class IcebergDelivery:
    """A catalog that is open for one producer. Every decision is made on metadata that was just loaded."""

    def __init__(self, sink: IcebergSink, producer: Producer, catalog: Any) -> None:
        self._sink = sink
        self._producer = producer
        self._catalog = catalog
        self._root: str | None = None  # the folder of the table's files when the lanes began

    def is_delivered(self, batch: Batch) -> bool:
        return self._is_delivered(self._load_table(), batch)

    def cuts(self) -> None:
        return None

    def lane(self, batch: Batch) -> Lane:
        table, columns = self._prepare_table(batch)
        storage, folder, self._root = self._data_place(table)
        budget = mirror.budget_for(batch.size) if self._sink.keeps_rows else writer.DEFAULT
        if self._sink.keeps_rows and not _is_plain(batch):
            # Nullable, because a delete has only its key.
            changed = [
                batch.file_schema.field(OP),
                batch.file_schema.field(SEQ),
                *(c.with_nullable(True) for c in columns),
            ]
            folder, columns = f"{folder}/{mirror.CHANGED_BELOW}", pa.schema(changed)
        return FileLane(storage, batch, folder, batch.id, is_staged=False, schema=columns, budget=budget)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        crash_point("sink.files_written")
        files = [file.path for file, _ in collect_files(results)]
        _retry_until_landed(lambda: self._land_batch(batch, files))
        crash_point("sink.committed")
        if self._sink.keeps_rows and files:
            self._delete_changes(batch)

    def position(self, vnodes: int) -> Mapping[int, int]:
        return spread_position(self._held(self._load_table()), vnodes, self._producer, self._sink.destination)

    def close(self) -> None:
        self._catalog.close()

    # --- the table ----------------------------------------------------------------------------------------------

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self._sink.destination, self._sink.catalog)

    def _load_table(self) -> Any | None:
        """The table at its newest version; None when there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self._translate_errors():
            try:
                return self._catalog.load_table(self._sink.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def _data_place(self, table: Any) -> tuple[Storage, str, str]:
        return data_place(table, self._sink.options.resolve())

    def _prepare_table(self, batch: Batch) -> tuple[Any, pa.Schema]:
        """The table, with every column of the batch, and the columns for its files."""
        return _retry_until_landed(lambda: self._fit_table(batch))

    def _fit_table(self, batch: Batch) -> tuple[Any, pa.Schema]:
        columns = batch.columns if self._sink.keeps_rows else batch.file_schema
        table = self._load_table() or self._create_table(columns)
        self._check_table(table)
        if self._sink.keeps_rows:
            check_owner(table, batch, self._producer, self._sink.destination)
        found = fit_columns(columns, table, self._sink.destination)
        if len(found.lacking):
            # A separate commit, harmless alone: the columns stay empty until rows come.
            with self._translate_errors(), table.update_schema() as update:
                update.union_by_name(found.lacking)
        return table, with_field_ids(found.files, table)

    def _create_table(self, columns: pa.Schema) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError

        identifier, schema = self._sink.identifier, stored_schema(columns)
        with self._translate_errors():
            try:
                try:
                    return self._catalog.create_table(identifier, schema, properties=_NEW_TABLE)
                except NoSuchNamespaceError:
                    for depth in range(1, len(identifier)):
                        self._catalog.create_namespace_if_not_exists(identifier[:depth])
                    return self._catalog.create_table(identifier, schema, properties=_NEW_TABLE)
            except TableAlreadyExistsError:
                return self._catalog.load_table(identifier)

    def _check_table(self, table: Any) -> None:
        """Refuse a table that this sink cannot write to."""
        if not table.spec().is_unpartitioned():
            why = f"is partitioned by {', '.join(part.name for part in table.spec().fields)}"
        elif table.metadata.format_version > 2:
            why = f"has format version {table.metadata.format_version}"
        elif self._sink.keeps_rows and {OP, SEQ} & set(table.schema().column_names):
            why = f"has the columns {OP} and {SEQ}: it holds changes, not rows"
        else:
            return
        raise Invalid(
            f"{self._sink.destination} {why}",
            hint="Send to another table: unpartitioned, of format version 2. A missing table is created.",
            consumer=self._producer.consumer,
        )

    # --- the mark -----------------------------------------------------------------------------------------------

    @property
    def _mark_prefix(self) -> str:
        """The prefix of the mark's properties; the seq follows, and the round of a backfill; the highest counts.

        A batch without rows makes no snapshot, so the catalog does not notice a commit in between. If all seqs shared
        one property, such a batch, landing late, would set the mark back."""
        return f"{MARKS}{self._producer.generation}."

    def _find_marks(self, table: Any) -> dict[Held, str]:
        names = [name for name in table.properties if name.startswith(self._mark_prefix)]
        return {parse_mark(name.removeprefix(self._mark_prefix)): name for name in names}

    def _held(self, table: Any | None) -> Held | None:
        return None if table is None else max(self._find_marks(table), default=None)

    def _is_delivered(self, table: Any | None, batch: Batch) -> bool:
        return is_delivered(self._held(table), batch, self._producer, self._sink.destination)

    def _land_batch(self, batch: Batch, files: Sequence[str]) -> None:
        """Commit the batch unless the table has it. The commit is based on the metadata of that check."""
        table = self._load_table()
        if table is None and batch.is_first and not files:
            table, _ = self._prepare_table(batch)
        if self._is_delivered(table, batch):
            return
        if table is None or (files and self._data_place(table)[2] != self._root):
            raise Conflict(
                f"{self._sink.destination} was dropped while sink {self._producer.consumer!r} wrote to it",
                hint="Nothing was added. If it may be created anew: strandline tick",
                consumer=self._producer.consumer,
            )
        self._commit_batch(table, batch, files)

    def _commit_batch(self, table: Any, batch: Batch, files: Sequence[str]) -> None:
        from pyiceberg.table.update import AssertTableUUID

        with self._translate_errors():
            _forget_snapshots(table)
            transaction = table.transaction()
            rows = None
            if self._sink.keeps_rows:
                rows = self._replace_rows(table, transaction, batch, files)
            elif files:
                self._change_files(table, transaction, batch, (), files)
            old = list(self._find_marks(table).values())
            transaction.set_properties({f"{self._mark_prefix}{mark_text(batch.end)}": self._mark_note(batch, rows)})
            if old:
                transaction.remove_properties(*old)
            # Not `commit_transaction`: after a conflict it adds the files again, although this batch may have landed;
            # and when it gives up it deletes the manifests of a commit that may have landed.
            table._do_commit(
                updates=transaction._updates,
                requirements=(*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid)),
            )

    def _replace_rows(self, table: Any, transaction: Any, batch: Batch, files: Sequence[str]) -> int:
        """Apply a batch to a mirror; returns how many rows it has then."""
        check_owner(table, batch, self._producer, self._sink.destination)
        storage, folder, _ = self._data_place(table)
        old = list_files(table)
        if batch.is_rows and not batch.is_first:
            removed, added = [], list(files)
        elif batch.is_rows:
            removed, added = old, list(files)
            gone = [name for name in table.schema().as_arrow().names if name not in batch.columns.names]
            if gone:
                with transaction.update_schema(allow_incompatible_changes=True) as update:
                    for name in gone:
                        update.delete_column(name)
        else:
            new = NewFiles(storage, folder, batch.id, file_columns(table), batch.cluster_by, batch.key)
            done = rewrite(old, new, batch, files if batch.key else ())
            removed = done.removed
            added = [file.path for file in done.added] + ([] if batch.key else list(files))
        left = sum(file.rows for file in old) - sum(file.rows for file in removed)
        if not removed and not added:
            return left
        return left + self._change_files(table, transaction, batch, removed, added)

    def _change_files(
        self, table: Any, transaction: Any, batch: Batch, removed: Sequence[OldIcebergFile], added: Sequence[str]
    ) -> int:
        """Remove and add data files, in one snapshot; returns the number of added rows."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        root, metadata = self._data_place(table)[2], transaction.table_metadata
        if metadata.name_mapping() is None:
            transaction.set_properties(
                {"schema.name-mapping.default": metadata.schema().name_mapping.model_dump_json()}
            )
        data = [parquet_file_to_data_file(table.io, metadata, f"{root}/{path}") for path in added]
        update = transaction.update_snapshot(self._snapshot_summary(batch))
        with update.overwrite() if removed else update.fast_append() as snapshot:
            if removed:
                # Selects the manifests to search, not the rows to delete.
                snapshot.delete_by_predicate(AlwaysTrue())
            for file in removed:
                snapshot.delete_data_file(file.data)
            for file in data:
                snapshot.append_data_file(file)
        return sum(file.record_count for file in data)

    def _snapshot_summary(self, batch: Batch) -> dict[str, str]:
        """The properties of a snapshot, for people."""
        return {"strandline.consumer": self._producer.consumer, "strandline.seq": str(batch.upto)}

    def _mark_note(self, batch: Batch, rows: int | None) -> str:
        who = self._producer
        facts = {
            "seq": batch.upto,
            "round": batch.end_round,
            "batch": batch.id,
            "lake": who.lake_id,
            "consumer": who.consumer,
            "life": who.life,
        }
        more = {} if rows is None else {"rows": rows}
        return json.dumps({**facts, "table": who.table, "table_generation": who.table_generation, **more})

    def _delete_changes(self, batch: Batch) -> None:
        """Delete the change files of a delivered batch, also those of failed attempts."""
        table = self._load_table()
        if table is None:
            return
        storage, folder, _ = self._data_place(table)
        # The batch counts, even if they cannot be deleted.
        with suppress(StrandlineError, OSError):
            below = storage.list(f"{folder}/{mirror.CHANGED_BELOW}")
            storage.delete([file.path for file in below if f"/{batch.id}-" in file.path])


def _is_plain(batch: Batch) -> bool:
    """Whether the rows of a batch go to a mirror as they are: they have new keys, or none."""
    return batch.is_rows or not batch.key


def _forget_snapshots(table: Any) -> None:
    """Drop the snapshots without a reference from memory: a transaction copies them all, some twenty times."""
    needed = {ref.snapshot_id for ref in table.metadata.refs.values()}
    kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id in needed]
    table.metadata = table.metadata.model_copy(update={"snapshots": kept, "snapshot_log": []})


def _retry_until_landed(act: Callable[[], T]) -> T:
    """What `act` returns. `act` loads the table at each call, so it can be called again when it is unknown whether the
    last commit landed."""
    deadline_s = time.monotonic() + TIMEOUT_S
    for attempt in range(ATTEMPTS - 1):
        try:
            return act()
        except Unavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(random.uniform(0.5, 1) * min(2.0, 0.05 * 2**attempt))
    return act()
