"""An Iceberg table that mirrors a table: its data files, as `mirror` reads them, and whether it is still the sink's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import Conflict, Invalid
from strandline.model.types import conform_batches
from strandline.sinks.contract import WHOLE, Batch, Held, Producer
from strandline.sinks.iceberg_types import stored_type, widens, with_field_ids
from strandline.storage.parquet import reader

MARKS = "strandline.mark."
"""The prefix of the properties that hold marks: a generation and a seq follow, the value is a note in JSON."""


class OldIcebergFile:
    """A data file of a table, written by a sink or by others. `data` is pyiceberg's value for it."""

    def __init__(self, table: Any, task: Any) -> None:
        self.data = task.file
        self._table = table
        if task.delete_files:
            raise self._unusable_file("has rows that a delete file hides")

    @property
    def size(self) -> int:
        return int(self.data.file_size_in_bytes)

    @property
    def rows(self) -> int:
        return int(self.data.record_count)

    def bounds(self, column: str) -> tuple[Any, Any]:
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import IntegerType, LongType, StringType

        known = self._table.schema().find_field(column)
        if not isinstance(known.field_type, IntegerType | LongType | StringType):
            return None, None
        found = [(bounds or {}).get(known.field_id) for bounds in (self.data.lower_bounds, self.data.upper_bounds)]
        # A column that was widened since may have bounds of the narrow type.
        kind = IntegerType() if isinstance(known.field_type, LongType) and {len(b) for b in found if b} == {4} else None
        low, high = (None if bound is None else from_bytes(kind or known.field_type, bound) for bound in found)
        return low, high

    def batches(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Not with pyiceberg's own reader: it reads a null list of structs as an empty list.
        stream = self._table.io.new_input(self.data.file_path).open()
        with pq.ParquetFile(stream, page_checksum_verification=True) as file:
            inside = [name for name in self._known_columns(file.schema_arrow, columns) if name in columns.names]
            yield from conform_batches(reader.batches(file, inside), columns)

    def _known_columns(self, schema: pa.Schema, columns: pa.Schema) -> Iterator[str]:
        """The table's columns in the file; `Invalid` when one was renamed or changed its type."""
        names = {column.field_id: column.name for column in self._table.schema().fields}
        numbers = {name: mapped.field_id for mapped in self._table.name_mapping() or () for name in mapped.names}
        for each in schema:
            own = (each.metadata or {}).get(b"PARQUET:field_id")
            name = names.get(int(own) if own else numbers.get(each.name))
            if name is None or name not in columns.names:
                continue  # dropped, or not wanted
            kind, now = stored_type(each.type), stored_type(columns.field(name).type)
            if name != each.name or not (kind == now or widens(kind, now)):
                raise self._unusable_file(f"has the column {each.name!r} ({kind}), which is now {name!r} ({now})")
            yield name

    def _unusable_file(self, why: str) -> Invalid:
        return Invalid(
            f"{self.data.file_path} {why}, so its rows cannot be replaced",
            hint="Write the Iceberg table's files again, e.g. in Spark: CALL system.rewrite_data_files(…)",
            path=self.data.file_path,
        )


def list_files(table: Any) -> list[OldIcebergFile]:
    """The live data files of a table at its newest version."""
    return [OldIcebergFile(table, task) for task in table.scan().plan_files()]


def file_columns(table: Any) -> pa.Schema:
    """The columns of a table's data files, with their ids."""
    columns = pa.schema([pa.field(f.name, stored_type(f.type), f.nullable) for f in table.schema().as_arrow()])
    return with_field_ids(columns, table)


def check_owner(table: Any, batch: Batch, producer: Producer, where: str) -> None:
    """Refuse a table that belongs to others or to a later life, or that others have changed."""
    who = producer.consumer
    notes = {name: json.loads(text) for name, text in table.properties.items() if name.startswith(MARKS)}
    mine = [note for note in notes.values() if (note["lake"], note["consumer"]) == (producer.lake_id, who)]
    if any(note.get("life", 0) > producer.life for note in mine):
        raise Conflict(
            f"sink {who!r} has begun a new generation, which writes {where} now",
            hint="Nothing was changed there.",
            consumer=who,
        )
    marks = [note for name, note in notes.items() if name.startswith(f"{MARKS}{producer.generation}.")]
    rows = sum(file.rows for file in list_files(table))
    if batch.is_first and not marks:
        if rows and not mine:
            raise Invalid(
                f"{where} has rows that sink {who!r} did not send, and a mirror would replace them",
                hint="Send to another table, empty that one first, or send the changes: mode='changes'.",
                consumer=who,
            )
        return
    expected = max(marks, key=lambda note: (int(note["seq"]), note.get("round", WHOLE))).get("rows") if marks else None
    if expected is not None and rows != expected:
        raise Conflict(
            f"{where} has {rows:,} rows, and sink {who!r} left {expected:,} rows there: somebody else changed it",
            hint=f"Nothing was changed there. To write the table again: strandline mark reset {who}",
            consumer=who,
            expected=expected,
            found=rows,
        )
    more = [name for name in table.schema().as_arrow().names if name not in batch.columns.names]
    if more and not batch.replaces_all:
        raise Invalid(
            f"{where} has the column {more[0]!r}, which sink {who!r} does not send",
            hint=f"Drop it there, or write the table again: strandline mark reset {who}",
            column=more[0],
        )


def mark_text(held: Held) -> str:
    """The end of a mark's name in the table's properties."""
    return str(held.seq) if held.has_history else f"{held.seq}-{held.round}"


def parse_mark(text: str) -> Held:
    """What the end of a mark's name says."""
    seq, _, number = text.partition("-")
    return Held(int(seq), int(number) if number else WHOLE)
