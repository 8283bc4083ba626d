"""Send a table to Iceberg, each batch as one snapshot.

The lanes write Parquet files into the table's own folder, where no reader looks before a snapshot names them. `finish`
adds them and moves the producer's mark, a property of the Iceberg table, in one commit, which the catalog takes only
if no snapshot came in between. So a batch that is repeated, by the same process or by two at once, is added once.

After a crash: the mark tells whether the batch landed. Files of an attempt that did not land are never part of the
table, and are left to Iceberg's own removal of orphan files: whether a commit will not land after all, nobody knows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pyarrow as pa

from strandline import secret
from strandline.crash import crash_point
from strandline.errors import Conflict, Invalid, Unavailable
from strandline.retry import ATTEMPTS
from strandline.sinks.base import Batch, Lane, Producer, Result, is_delivered
from strandline.sinks.files import FileLane, claimed
from strandline.sinks.iceberg_catalog import Settings, data_place, described, open_catalog, talking
from strandline.sinks.iceberg_rows import rewrite
from strandline.sinks.iceberg_types import fit, stored_schema

CHANGES, UPSERT = "changes", "upsert"
_NEW_TABLE = {
    "format-version": "2",
    # A table that gets a snapshot at each tick would otherwise keep a manifest for each, and every metadata file.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table. `catalog` is what `pyiceberg.catalog.load_catalog` takes: `type`, `uri`, `warehouse`, …

    `mode="changes"` appends every change with its `_op` and `_seq`; `mode="upsert"` keeps the current rows, at a cost
    that grows with the table. `options` are settings of the object store, where those of the catalog do not serve."""

    kind: ClassVar[str] = "iceberg"
    is_ordered: ClassVar[bool] = False

    catalog: Mapping[str, Any]
    table: str
    mode: str = field(default=CHANGES, kw_only=True)
    options: Mapping[str, str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in (CHANGES, UPSERT):
            raise Invalid(f"mode is {self.mode!r}; expected 'changes' or 'upsert'")
        if not isinstance(self.table, str) or len(self._identifier) < 2 or not all(self._identifier):
            raise Invalid(f"table is {self.table!r}; expected a namespace and a name", hint="Such as: 'ns.messages'")
        object.__setattr__(self, "catalog", Settings(self.catalog, "Iceberg catalog"))
        object.__setattr__(self, "options", Settings(self.options or {}, "object store's options"))

    @property
    def _identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @property
    def destination(self) -> str:
        mode = "" if self.mode == CHANGES else f", {self.mode}"
        return f"Iceberg table {self.table} ({described(self._catalog)}{mode})"

    @property
    def lanes(self) -> int:
        return 1

    @property
    def _catalog(self) -> Settings:
        assert isinstance(self.catalog, Settings)
        return self.catalog

    def to_dict(self) -> dict[str, Any]:
        assert isinstance(self.options, Settings)
        return {
            "catalog": self._catalog.kept(),
            "table": self.table,
            "mode": self.mode,
            "options": self.options.kept(),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        return cls(facts["catalog"], facts["table"], mode=facts["mode"], options=facts["options"])

    def open(self, producer: Producer) -> IcebergDelivery:
        return IcebergDelivery(self, producer, open_catalog(self._catalog, self.destination))


class IcebergDelivery:
    """A catalog that is open for one producer. Every decision is made on metadata that was just loaded."""

    def __init__(self, sink: IcebergSink, producer: Producer, catalog: Any) -> None:
        self._sink = sink
        self._producer = producer
        self._catalog = catalog
        self._life: Any = None  # the uuid of the table that the lanes wrote for

    def is_delivered(self, batch: Batch) -> bool:
        return self._holds(self._load(), batch)

    def lane(self, batch: Batch) -> Lane:
        table, columns = self._prepared(batch)
        self._life = table.metadata.table_uuid
        storage, folder, _ = data_place(table, self._options())
        if self._sink.mode == CHANGES:
            return FileLane(storage, batch, folder, batch.id, is_staged=False, schema=columns)
        changed = pa.schema([*batch.outgoing][:2] + [*columns])
        return FileLane(storage, batch, _changes_below(folder, batch), "part", is_staged=False, schema=changed)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        crash_point("sink.files_written")
        files = [file.path for file, _ in claimed(results)]
        self._land(batch, files)
        crash_point("sink.committed")
        if self._sink.mode == UPSERT and files:
            self._sweep(batch)

    def position(self, vnodes: int) -> Mapping[int, int]:
        held = self._held(self._load())
        return {} if held is None else dict.fromkeys(range(vnodes), held)

    def close(self) -> None:
        self._catalog.close()

    # --- the table ----------------------------------------------------------------------------------------------

    def _talking(self) -> AbstractContextManager[None]:
        return talking(self._sink.destination, self._sink._catalog)

    def _load(self) -> Any | None:
        """The table at its newest, or None when there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self._talking():
            try:
                return self._catalog.load_table(self._sink._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def _prepared(self, batch: Batch) -> tuple[Any, pa.Schema]:
        """The table, with every column of the batch, and the columns of the files to write."""
        is_upsert = self._sink.mode == UPSERT
        columns = batch.columns if is_upsert else batch.outgoing
        if is_upsert and not batch.key:
            raise Invalid(
                f"{self._sink.destination}: table {self._producer.table!r} has no key, so its rows cannot be replaced",
                hint="Use mode='changes'.",
                consumer=self._producer.consumer,
            )
        for attempt in _attempts():
            table = self._load() or self._created(columns)
            self._check(table, is_upsert=is_upsert)
            fitting = fit(columns, table, self._sink.destination)
            if not len(fitting.lacking):
                return table, fitting.files
            attempt(lambda: self._evolve(table, fitting.lacking))
        raise attempt.failure()

    def _created(self, columns: pa.Schema) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError

        identifier = self._sink._identifier
        schema = stored_schema(columns)
        with self._talking():
            try:
                try:
                    return self._catalog.create_table(identifier, schema, properties=_NEW_TABLE)
                except NoSuchNamespaceError:
                    for depth in range(1, len(identifier)):
                        self._catalog.create_namespace_if_not_exists(identifier[:depth])
                    return self._catalog.create_table(identifier, schema, properties=_NEW_TABLE)
            except TableAlreadyExistsError:
                return self._catalog.load_table(identifier)
