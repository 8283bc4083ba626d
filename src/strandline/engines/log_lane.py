"""The lane that writes changes to a log: rows of a Spark partition become log files.

Spark has put all rows of a key into the same partition, so the lane sees equal keys together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.key_sort import BUDGET_BYTES, KeySort
from strandline.engines.lanes import receipt, report_failures
from strandline.errors import Invalid
from strandline.model.arrow_check import Fault, find_invalid, find_unreadable, python_value
from strandline.model.change import HASH, OP, UPSERT
from strandline.model.definition import TableDef
from strandline.model.keys import same_as_next, shift_for
from strandline.model.rows import check_json, drop_json_nulls
from strandline.model.types import conform
from strandline.storage.open import Storage
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile, new_file_name

# A file of so many bytes of rows ends with its vnode; smaller vnodes share a file.
_SHARED_BYTES = 4 << 20


@dataclass(frozen=True)
class LogLane:
    """Write rows with their `_hash` as log files sorted by (vnode, key); refuse null keys and, unless ordered, equal
    keys.

    `is_ordered`: of the rows of one key, the last one wins. Without `op`, each row has its own in `_op`."""

    storage: Storage
    folder: str
    definition: TableDef
    op: str | None
    is_ordered: bool
    budget_bytes: int = BUDGET_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return report_failures(map(receipt, self._write(self._check_rows(batches))))

    def _write(self, rows: Iterator[pa.Table]) -> Iterator[DataFile]:
        if not self.definition.is_keyed:
            place = zlib.crc32(uuid4().bytes)
            yield from self._write_files(self._build_changes(_place_rows(piece, place)) for piece in rows)
            return
        version = [self.definition.version] if self.definition.version and self.op == UPSERT else []
        order = [*self.definition.key, *version]
        with KeySort(self.definition.vnodes, order, budget_bytes=self.budget_bytes) as sort:
            for piece in rows:
                sort.add(piece)
            lots = (self._keep_last_per_key(self._build_changes(lot)) for lot in sort.lots())
            for shared in _share_files(lots, shift_for(self.definition.vnodes)):
                yield from self._write_files(iter(shared))

    def _write_files(self, changes: Iterator[pa.Table]) -> Iterator[DataFile]:
        return writer.write_files(
            self.storage,
            self.folder,
            lambda: new_file_name(self.definition.schema_id),
            (batch for rows in changes for batch in rows.to_batches()),
            self.definition.log_schema(self.definition.schema_id),
        )

    def _check_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = drop_json_nulls(pa.Table.from_batches([batch]), self.definition.schema)
            self._check_required(rows)
            if self.op is not None:
                self._raise_fault(find_invalid(rows), rows)
            yield rows

    def _build_changes(self, rows: pa.Table) -> pa.Table:
        """Rows in the columns of the log."""
        if self.op is not None:
            rows = rows.append_column(OP, pa.repeat(self.op, rows.num_rows))
        rows = conform(rows, self.definition.log_schema(self.definition.schema_id))
        check_json(rows, 0)
        if self.op is not None:
            self._raise_fault(find_unreadable(rows), rows)
        return rows

    def _check_required(self, rows: pa.Table) -> None:
        required = (
            self.definition.key if self.op != UPSERT else [f.name for f in self.definition.schema if not f.nullable]
        )
        for name in required:
            if rows.column(name).null_count:
                row = pc.index(pc.is_null(rows.column(name)), pa.scalar(True)).as_py()
                self._raise_fault(Fault(row, name, name, "a value is required, found null"), rows)

    def _raise_fault(self, fault: Fault | None, rows: pa.Table) -> None:
        """Raise a fault. A row of a DataFrame has no number, so the message names its key."""
        if fault is not None:
            key = {name: python_value(rows.column(name)[fault.row]) for name in self.definition.key}
            where = f" in the row {key}" if key else ""
            raise Invalid(f"column {fault.path!r}: {fault.why}{where}", column=fault.column)

    def _keep_last_per_key(self, rows: pa.Table) -> pa.Table:
        same = same_as_next(rows, self.definition.key)
        if not pc.any(same, min_count=0).as_py():
            return rows
        version = [self.definition.version] if self.definition.version and self.op == UPSERT else []
        # Of the rows of one key the highest version wins; equal versions are a tie.
        tied = same_as_next(rows, [*self.definition.key, *version])
        if not self.is_ordered and pc.any(tied, min_count=0).as_py():
            row = rows.filter(tied).slice(0, 1).to_pylist()[0]
            raise Invalid(
                f"the DataFrame holds the key { {k: row[k] for k in self.definition.key} } more than once",
                hint="Choose which row wins: upsert(df, order_by='column'), where the highest value wins.",
                column=self.definition.key[0],
            )
        return rows.filter(pc.invert(same))


def _place_rows(rows: pa.Table, place: int) -> pa.Table:
    """Rows without a key, which share the hash of their lane."""
    return rows.append_column(HASH, pa.repeat(pa.scalar(place, pa.int64()), rows.num_rows))


def _share_files(lots: Iterator[pa.Table], shift: int) -> Iterator[list[pa.Table]]:
    """The rows of each file. A large vnode has files of its own, as in a baseline."""
    held: list[pa.Table] = []
    size, last = 0, -1
    for lot in lots:
        vnodes = lot.column(HASH).to_numpy() >> shift
        starts = np.flatnonzero(np.diff(vnodes, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(vnodes)], strict=True):
            if held and vnodes[start] == last:
                # Another lot of the same vnode: its keys begin again.
                yield held
                held, size = [], 0
            held.append(lot.slice(start, end - start))
            size += held[-1].nbytes
            last = vnodes[start]
            if size >= _SHARED_BYTES:
                yield held
                held, size = [], 0
    if held:
        yield held
