"""The commits of a Delta table that mirrors a table: files leave and come, and the positions of the sink move, in one
commit.

`deltalake` cannot remove single files, so the commit file is written here, as the Delta protocol describes: created
with put-if-absent under the number after the loaded version. It records positions (`txn`): the seq of the sink's
life and, in a backfill, the round; the life itself; and the number of rows after the commit. So a commit of an earlier
life is refused, and rows that somebody else added or removed are noticed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.errors import Conflict, Invalid
from strandline.model.change import OP, SEQ
from strandline.model.types import conform_batches, needs_ntz, storage_schema
from strandline.sinks.contract import Batch, Producer
from strandline.sinks.delta_types import check_table, fit_columns, missing_columns
from strandline.sinks.mirror import NewFiles, Rewrite, rewrite
from strandline.storage.open import Storage
from strandline.storage.parquet import reader
from strandline.storage.snapshot import DataFile, protocol

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OldDeltaFile:
    """A data file of a Delta table, as its log describes it."""

    storage: Storage
    data: DataFile
    rows: int | None
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def size(self) -> int:
        return self.data.size

    def bounds(self, column: str) -> tuple[Any, Any]:
        return self.facts.get(f"min.{column}"), self.facts.get(f"max.{column}")

    def batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        with reader.open_file(self.storage, self.data.path) as file:
            inside = [name for name in columns.names if name in file.schema_arrow.names]
            yield from conform_batches(reader.batches(file, inside), columns)


@dataclass(frozen=True)
class DeltaMirror:
    """The mirror of one sink at one place."""

    storage: Storage
    producer: Producer

    @property
    def seq_id(self) -> str:
        return f"strandline/{self.producer.generation}"

    @property
    def round_id(self) -> str:
        return f"strandline/round/{self.producer.generation}"

    def list_marks(self, batch: Batch) -> dict[str, int]:
        """The transactions that say what the table holds after a batch."""
        return {self.seq_id: batch.upto, **({self.round_id: batch.end_round} if batch.is_backfill else {})}

    @property
    def _life_id(self) -> str:
        return f"strandline/mirror/{self.producer.sink}"

    @property
    def _rows_id(self) -> str:
        return f"strandline/rows/{self.producer.generation}"

    def check_owner(self, table: DeltaTable, batch: Batch) -> None:
        """Refuse a table that belongs to others or to a later life, or that others have changed."""
        check_table(table, self.storage.uri)
        life, who = table.transaction_version(self._life_id), self.producer.consumer
        if {OP, SEQ} <= set(pa.schema(table.schema()).names):
            raise Invalid(
                f"the Delta table at {self.storage.uri} has the columns {OP} and {SEQ}: it holds changes, not rows",
                hint="Send the mirror to another place, or go on with mode='changes'.",
                consumer=who,
                path=self.storage.uri,
            )
        if life is not None and life > self.producer.life:
            raise Conflict(
                f"sink {who!r} has begun a new generation, which writes the Delta table at {self.storage.uri} now",
                hint="Nothing was changed there.",
                consumer=who,
            )
        if batch.is_first:
            if life is None and table.get_add_actions().num_rows:
                raise Invalid(
                    f"the Delta table at {self.storage.uri} has rows that sink {who!r} did not send, and a mirror would"
                    " replace them",
                    hint="Send to another place, empty that table first, or send the changes: mode='changes'.",
                    consumer=who,
                    path=self.storage.uri,
                )
            return
        rows, expected = count_rows(self.list_files(table)), table.transaction_version(self._rows_id)
        if rows != expected:
            has = "files without a row count" if rows is None else f"{rows:,} rows"
            raise Conflict(
                f"the Delta table at {self.storage.uri} has {has}, and sink {who!r} left {expected or 0:,} rows there:"
                " somebody else changed it",
                hint=f"Nothing was changed there. To write the table again: strandline mark reset {who}",
                consumer=who,
                expected=expected,
                found=rows,
            )

    def columns_for(self, table: DeltaTable, batch: Batch) -> pa.Schema:
        """The columns of the files of a batch. `Invalid` when the table has others than the batch."""
        wanted = mirrored_schema(batch)
        if batch.replaces_all:
            return wanted
        more = [name for name in pa.schema(table.schema()).names if name not in wanted.names]
        if more:
            raise Invalid(
                f"the Delta table at {self.storage.uri} has the column {more[0]!r}, which sink"
                f" {self.producer.consumer!r} does not send",
                hint=f"Drop it there, or write the table again: strandline mark reset {self.producer.consumer}",
                column=more[0],
            )
        return fit_columns(table, wanted, self.storage.uri)

    def list_files(self, table: DeltaTable) -> list[OldDeltaFile]:
        """The live files of the table; `Invalid` when one has a deletion vector, whose rows would come back."""
        if (
            "deletionVectors" in (table.protocol().reader_features or ())
            and pa.table(table.deletion_vectors()).num_rows
        ):
            raise Invalid(
                f"the Delta table at {self.storage.uri} has deletion vectors, which a mirror cannot honour",
                hint=f"Write the table again: strandline mark reset {self.producer.consumer}",
                path=self.storage.uri,
            )
        found = []
        for facts in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            data = DataFile(facts["path"], facts["size_bytes"], {}, facts["modification_time"], "", 0)
            found.append(OldDeltaFile(self.storage, data, facts.get("num_records"), facts))
        return found

    def commit(self, table: DeltaTable, batch: Batch, files: Sequence[DataFile], folder: str) -> bool:
        """Make a batch count: its files, or the changes in them, and its positions. False when another commit took the
        number."""
        self.check_owner(table, batch)
        columns = self.columns_for(table, batch)
        old = self.list_files(table)
        done = self._apply_batch(
            old, batch, files, NewFiles(self.storage, folder, "part", columns, batch.cluster_by, batch.key)
        )
        gone = {file.data.path for file in done.removed}
        rows = count_rows([file for file in old if file.data.path not in gone]) or 0
        now_ms = int(time.time() * 1000)
        actions: list[dict[str, Any]] = [
            {"commitInfo": _describe_commit(batch, done, self.producer, now_ms)},
            *self._list_positions(batch, rows + sum(file.rows for file in done.added), now_ms),
            *(file.data.remove(now_ms) for file in done.removed),
            *(file.add() for file in done.added),
        ]
        if batch.replaces_all and columns != pa.schema(table.schema()):
            actions[1:1] = [*_list_upgrades(table, columns), {"metaData": _describe_table(table, columns)}]
        version = table.version() + 1
        data = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        return self.storage.put_new(f"_delta_log/{version:020d}.json", data.encode())

    def _apply_batch(
        self, old: Sequence[OldDeltaFile], batch: Batch, files: Sequence[DataFile], new: NewFiles
    ) -> Rewrite:
        now_ms = int(time.time() * 1000)
        plain = [DataFile(f.path, f.size, {}, now_ms, f.stats_text, f.raw_bytes, f.crc) for f in files]
        if batch.is_rows:
            return Rewrite(list(old) if batch.is_first else [], plain)
        if batch.key:
            return rewrite(old, new, batch, [file.path for file in files])
        done = rewrite(old, new, batch, ())
        return Rewrite(done.removed, [*done.added, *plain])

    def _list_positions(self, batch: Batch, rows: int, now_ms: int) -> list[dict[str, Any]]:
        positions = {**self.list_marks(batch), self._life_id: self.producer.life, self._rows_id: rows}
        return [{"txn": {"appId": id_, "version": at, "lastUpdated": now_ms}} for id_, at in positions.items()]


def mirrored_schema(batch: Batch) -> pa.Schema:
    """The columns of a mirror, all nullable."""
    return pa.schema([column.with_nullable(True) for column in storage_schema(batch.columns)])


def lacks_columns(table: DeltaTable | None, batch: Batch) -> bool:
    """Whether a table must be created or get columns before the files of a batch are written."""
    return table is None or (not batch.replaces_all and len(missing_columns(table, mirrored_schema(batch))) > 0)


def count_rows(files: Sequence[OldDeltaFile]) -> int | None:
    """The number of rows; None when a file does not tell it."""
    counts = [file.rows for file in files]
    return None if None in counts else sum(count or 0 for count in counts)


def write_checkpoint(table: DeltaTable | None, every: int) -> None:
    """Write a checkpoint after so many commits. A failure only costs readers time."""
    if table is None or table.version() % every:
        return
    try:
        table.create_checkpoint()
    except Exception as error:
        _log.warning("no checkpoint of %s this time: %s", table.table_uri, error)


def _describe_commit(batch: Batch, done: Rewrite, producer: Producer, now_ms: int) -> dict[str, Any]:
    """The facts of a commit, for people."""
    return {
        "timestamp": now_ms,
        "operation": "WRITE" if batch.is_rows else "MERGE",
        "operationParameters": {"mode": "Overwrite" if batch.replaces_all else "Append"},
        "operationMetrics": {"numRemovedFiles": str(len(done.removed)), "numAddedFiles": str(len(done.added))},
        "engineInfo": "strandline",
        "strandline.consumer": producer.consumer,
        "strandline.seq": batch.upto,
    }


def _list_upgrades(table: DeltaTable, columns: pa.Schema) -> list[dict[str, Any]]:
    """The protocol that new columns need; nothing when the table has it."""
    known, wanted = table.protocol(), protocol(with_ntz=needs_ntz(columns))
    more = set(wanted.get("writerFeatures", ())) - set(known.writer_features or ())
    if not more:
        return []
    features = {
        "readerFeatures": sorted({*(known.reader_features or ()), *more}),
        "writerFeatures": sorted({*(known.writer_features or ("appendOnly", "invariants")), *more}),
    }
    return [{"protocol": {**wanted, **features}}]


def _describe_table(table: DeltaTable, columns: pa.Schema) -> dict[str, Any]:
    """The table's metadata with other columns."""
    from deltalake import Schema

    known = table.metadata()
    return {
        "id": str(known.id),
        **({"name": known.name} if known.name else {}),
        **({"description": known.description} if known.description else {}),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(columns).to_json(),
        "partitionColumns": [],
        "configuration": dict(known.configuration),
        **({"createdTime": known.created_time} if known.created_time else {}),
    }
