"""The rows of a slice, read by DuckDB inside a Spark task, as the Arrow batches that Spark expects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.engines.scan import listed, spark_dtype, spark_schema
from strandline.errors import Conflict, Invalid
from strandline.model.change import HASH, OP, ROW, SEQ, UPSERT
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.types import conform, storage_schema
from strandline.spark_source.slices import Slice
from strandline.storage.parquet import writer
from strandline.tables.fold import changes_sql
from strandline.tables.log import LogState
from strandline.tables.merge import TableAt, duck_sql, make_own_fold
from strandline.tables.store import TableStore

CHANGE = pa.schema([pa.field(OP, pa.string(), False), pa.field(SEQ, pa.int64(), False)])
"""The columns of a change, beside those of the table."""


def spark_ddl(schema: pa.Schema) -> str:
    """A table's columns as Spark's DDL."""
    columns = [spark_schema(pa.schema([each])) + ("" if each.nullable else " NOT NULL") for each in schema]
    return ", ".join(columns)


def change_schema(definition: TableDef) -> pa.Schema:
    """The columns of the change feed: a delete has only its key."""
    columns = [each if each.name in definition.key else each.with_nullable(True) for each in definition.schema]
    return pa.schema([*columns, *CHANGE])


@dataclass(frozen=True)
class Output:
    """The columns that Spark wants, under its names and types."""

    schema: StructType
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.schema.fieldNames()))

    def check(self, columns: pa.Schema, table: str) -> None:
        """`Conflict` when a table with these columns cannot give the wanted ones."""
        for each in self.schema.fields:
            found = columns.field(each.name).type if each.name in columns.names else None
            if found is None:
                raise Conflict(
                    f"table {table!r} has no column {each.name!r}, which this query reads",
                    hint=f"Start the query again. Columns: {', '.join(columns.names)}",
                    table=table,
                    column=each.name,
                )
            if spark_dtype(found) != each.dataType.simpleString():
                raise Conflict(
                    f"column {each.name!r} of table {table!r} is {spark_dtype(found)}, and this query reads it as"
                    f" {each.dataType.simpleString()}",
                    hint="Start the query again: it then takes the type of the table.",
                    table=table,
                    column=each.name,
                )

    def batches(self, relation: Any, columns: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a DuckDB relation. `columns` are the table's."""
        ours = storage_schema(pa.schema([columns.field(name) for name in self.names]))
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        with relation.to_arrow_reader(batch_rows) as reader:
            for batch in reader:
                table = conform(pa.Table.from_batches([batch]), ours)
                renamed = [_rename_inner(column, each.type) for column, each in zip(table.columns, wanted, strict=True)]
                yield from pa.Table.from_arrays(renamed, schema=wanted).to_batches()


def pick_columns(columns: pa.Schema, wanted: str | None) -> pa.Schema:
    """The columns that the option `columns` names, as a list with commas; all of them by default."""
    names = [name.strip() for name in wanted.split(",")] if wanted else columns.names
    for name in names:
        if name not in columns.names:
            raise Invalid(
                f"option columns names {name!r}, which is no column",
                hint=f"Columns: {', '.join(columns.names)}",
                column=name,
            )
    return pa.schema([columns.field(name) for name in names])


def read_slice(
    table: TableStore, merge: TableAt, part: Slice, output: Output, predicate: Predicate | None, op_seq: bool = False
) -> Iterator[pa.RecordBatch]:
    """The merged rows of a slice; with `op_seq` also as changes: each an upsert at the seq of the read, or in a table
    without a key at its own."""
    definition = merge.definition
    columns = change_schema(definition) if op_seq else definition.schema
    output.check(columns, table.name)
    limited = merge.part(range(part.first, part.end))
    names = [name for name in output.names if not op_seq or name not in CHANGE.names]
    with table.duck.transaction() as cursor:
        fold = make_own_fold(cursor, limited, part.hashes)
        rows = duck_sql(limited, fold, names, predicate, hidden=True, hashes=part.hashes)
        seq = f"CAST({merge.seq} AS BIGINT) AS {SEQ}" if definition.is_keyed else SEQ
        shown = [{OP: f"'{UPSERT}' AS {OP}", SEQ: seq}.get(name) if op_seq else None for name in output.names]
        exprs = [expr or listed([name]) for expr, name in zip(shown, output.names, strict=True)]
        relation = cursor.sql(f"SELECT {', '.join(exprs)} FROM ({rows})")
        yield from output.batches(relation, columns, limited.batch_rows())


def read_changes(
    table: TableStore, log: LogState, after: int, upto: int, part: Slice, output: Output
) -> Iterator[pa.RecordBatch]:
    """The changes in `(after, upto]` of a slice, in the order of their seqs."""
    definition = log.definition
    columns = change_schema(definition)
    output.check(columns, table.name)
    files = log.files(after, upto)
    names = [name for name in output.names if name not in CHANGE.names]
    inside = list(definition.key) or [ROW]
    changes = changes_sql(log, files, list(dict.fromkeys([*names, *inside, HASH, OP])), None)
    where = f"{part.hashes} AND {SEQ} > {after} AND {SEQ} <= {upto}"
    sql = f"SELECT {listed(output.names)} FROM ({changes}) WHERE {where} ORDER BY {listed([SEQ, *inside])}"
    with table.duck.transaction() as cursor:
        batch_rows = writer.batch_rows([file for _, file in files])
        yield from output.batches(cursor.sql(sql), columns, batch_rows)


def _rename_inner(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column under the type of Spark, which names the inner fields of lists and maps otherwise."""
    if column.type == kind:
        return column
    return pa.chunked_array([_rename_array(chunk, kind) for chunk in column.chunks], type=kind)


def _rename_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind or not pt.is_nested(kind):
        return array if array.type == kind else array.cast(kind)
    if array.offset:
        # Children are addressed from the beginning of their buffers.
        array = pa.concat_arrays([array.slice(0, 0), array])
    nulls = array.buffers()[0]
    if pt.is_struct(kind):
        children = [_rename_array(array.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [nulls], array.null_count, children=children)
    if pt.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        inner = pa.Array.from_buffers(
            entries,
            len(array.keys),
            [None],
            children=[_rename_array(array.keys, kind.key_type), _rename_array(array.items, kind.item_type)],
        )
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[inner])
    values = _rename_array(array.values, kind.value_type)
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[values])
