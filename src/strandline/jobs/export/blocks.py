"""Bring rows together by their cluster keys, and move each wide value only once.

Spark's shuffle and sort move whole rows: 128 KB for each of the 136 rows of a conversation. So a task first gathers its
rows compactly (`Group`) and sorts them by cluster key. It passes on one Arrow block per key, which has each wide value
once. Spark shuffles and sorts the blocks, and the lane that writes files opens them one key at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from strandline.engines.lanes import ExportLane, ReadLane
from strandline.engines.scan import spark_schema
from strandline.model.types import conform_column, storage_schema
from strandline.storage.parquet import writer
from strandline.storage.parquet.rowgroup import Budget
from strandline.storage.parquet.runs import hashable, run_starts

BLOCK = "_sl_block"
_SENT_BYTES = 8 << 20
_HELD_BYTES = 32 << 20
_BUDGET = Budget(group_raw_bytes=1 << 62)


@dataclass(frozen=True)
class GatherLane:
    """Rows to blocks. With `read`, the batches name files and `read` reads their rows."""

    schema: pa.Schema
    cluster_by: Sequence[str]
    read: ReadLane | None

    @property
    def output(self) -> str:
        """The columns of the blocks, for Spark."""
        key = pa.schema([self.schema.field(name) for name in self.cluster_by])
        return f"{spark_schema(key)}, `{BLOCK}` binary"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = batches if self.read is None else self.read.read_coded(batches)
        for group in writer.groups((_conform_batch(batch, self.schema) for batch in rows), self.schema, (), _BUDGET):
            yield from self._blocks(group.coded_table())

    def _blocks(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        rows = _sort_rows(rows, self.cluster_by, self.schema)
        keys = storage_schema(pa.schema([self.schema.field(name) for name in self.cluster_by]))
        columns = [conform_column(rows.column(f.name), f.type).combine_chunks() for f in keys]
        starts = run_starts(columns)
        sent: list[bytes] = []
        first = 0
        for at, (start, end) in enumerate(zip(starts, [*starts[1:], rows.num_rows], strict=True)):
            sent.append(_pack_rows(rows.slice(start, end - start)))
            if at + 1 == len(starts) or sum(map(len, sent)) > _SENT_BYTES:
                at_rows = pa.array(starts[first : at + 1], pa.int64())
                yield pa.record_batch(
                    [*(c.take(at_rows) for c in columns), pa.array(sent, pa.binary())], [*keys.names, BLOCK]
                )
                first, sent = at + 1, []


@dataclass(frozen=True)
class BlockLane:
    """Blocks, sorted by cluster key, to the files of an export."""

    lane: ExportLane
    cluster_by: Sequence[str]
    order: Sequence[str]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.lane.write(_conform_batch(batch, self.lane.schema) for batch in self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of one key at a time, in order; a key with very many rows comes in several pieces."""
        held: list[pa.Table] = []
        held_bytes, held_key = 0, None
        for batch in batches:
            keys = zip(*(hashable(batch.column(name)) for name in self.cluster_by), strict=True)
            for key, block in zip(keys, batch.column(BLOCK), strict=True):
                if held and (key != held_key or held_bytes > _HELD_BYTES):
                    yield from _sort_rows(_join_tables(held), self.order, self.schema).to_batches()
                    held, held_bytes = [], 0
                packed = block.as_buffer()
                held.append(pa.ipc.open_stream(packed).read_all())
                held_bytes, held_key = held_bytes + packed.size, key
        if held:
            yield from _sort_rows(_join_tables(held), self.order, self.schema).to_batches()


def _conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` in its types; dictionaries stay dictionaries."""
    columns = []
    for field in schema:
        values = batch.column(field.name)
        if not pt.is_dictionary(values.type):
            values = conform_column(pa.chunked_array([values]), field.type).chunk(0)
        columns.append(values)
    return pa.record_batch(columns, list(schema.names))


def _sort_rows(rows: pa.Table, order: Sequence[str], schema: pa.Schema) -> pa.Table:
    keys = storage_schema(pa.schema([schema.field(name) for name in order]))
    columns = [conform_column(rows.column(field.name), field.type) for field in keys]
    by = [(name, "ascending") for name in order]
    laid = rows.take(pc.sort_indices(pa.table(columns, keys.names), sort_keys=by))
    return laid.combine_chunks()


def _join_tables(parts: Sequence[pa.Table]) -> pa.Table:
    columns = []
    for name in parts[0].column_names:
        chunks = [chunk for part in parts for chunk in part.column(name).chunks]
        if any(pt.is_dictionary(chunk.type) for chunk in chunks):
            chunks = [chunk if pt.is_dictionary(chunk.type) else chunk.dictionary_encode() for chunk in chunks]
        columns.append(pa.chunked_array(chunks))
    return pa.table(columns, parts[0].column_names).unify_dictionaries().combine_chunks()


def _pack_rows(rows: pa.Table) -> bytes:
    """The rows as Arrow bytes, with only the dictionary values that they use."""
    columns = []
    for column in rows.combine_chunks().itercolumns():
        values = column.chunk(0)
        if pt.is_dictionary(values.type):
            codes = pc.fill_null(values.indices, -1).to_numpy()
            used, places = np.unique(codes[codes >= 0], return_inverse=True)
            fresh = np.full(len(codes), -1, np.int32)
            fresh[codes >= 0] = places
            indices = pa.array(fresh, mask=fresh < 0)
            values = pa.DictionaryArray.from_arrays(indices, values.dictionary.take(pa.array(used)))
        columns.append(values)
    batch = pa.record_batch(columns, rows.column_names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
