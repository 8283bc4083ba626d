"""The columns of a DataFrame that is written, checked against the table, and its rows as changes of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from strandline.engines.scan import spark_type
from strandline.errors import Invalid
from strandline.model.arrow_check import find_invalid, find_unreadable, python_value
from strandline.model.change import DELETE, HASH, OP, ROW, UPSERT, Op
from strandline.model.definition import TableDef
from strandline.model.keys import hash_keys
from strandline.model.types import conform, conform_column, storage_type
from strandline.spark_source.task_rows import sort_rows
from strandline.tables.writing import fits_type

_ROW_SHIFT = 33  # as in Spark's monotonically_increasing_id


@dataclass(frozen=True)
class Incoming:
    """Rows to write. `op` is None when each row has its own in `_op`; `lacking` are the table's columns that the
    DataFrame does not have."""

    definition: TableDef
    table: str
    op: Op | None
    order_by: str | None
    lacking: tuple[str, ...]
    may_lose: bool

    @staticmethod
    def of(definition: TableDef, table: str, schema: StructType, options: Mapping[str, str]) -> Incoming:
        """The rows of a DataFrame with these columns; `Invalid` when the table cannot take them."""
        found = {each.name: each.dataType.simpleString() for each in schema.fields}
        order_by = options.get("orderBy")
        has_op = OP in found and OP not in definition.schema.names
        _check_order(definition, table, order_by, found, has_op=has_op)
        missing = options.get("missing", "refuse")
        if missing not in ("refuse", "null"):
            raise Invalid(
                f"option missing is {missing!r}; expected refuse or null",
                hint="To keep the values of the table: table.upsert(df, missing='keep').",
                table=table,
            )
        if len(found) < len(schema.fields):
            raise Invalid("the DataFrame has two columns of one name", table=table)
        for name in found:
            if name not in definition.schema.names and name != order_by and not (has_op and name == OP):
                hint = f"Columns: {', '.join(definition.schema.names)}"
                if name == "_seq":
                    hint = "Leave it out, or with several changes of a key: .option('orderBy', '_seq')."
                raise Invalid(f"the DataFrame's column {name!r} is not in table {table!r}", hint=hint, column=name)
        lacking = []
        for each in definition.schema:
            if each.name in found:
                _check_type(each, found[each.name])
            elif not each.nullable:
                raise Invalid(f"the DataFrame has no column {each.name!r}; a value is required", column=each.name)
            else:
                lacking.append(each.name)
        op: Op | None = None if has_op else UPSERT
        return Incoming(definition, table, op, order_by, tuple(lacking), missing == "null")

    @property
    def operation(self) -> str:
        """The name of the commit in the table's history."""
        return "UPSERT" if self.op else "WRITE"

    def changes(self, batches: Iterator[pa.RecordBatch], task: int) -> Iterator[pa.RecordBatch]:
        """The rows of one task as a lane of the log takes them."""
        rows = self._check_ops(pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        if not self.definition.is_keyed:
            yield from self._number_rows(rows, task)
            return
        if self.order_by is None or (self.op and self.order_by == self.definition.version):
            for table in map(self._add_hash, rows):
                yield from table.combine_chunks().to_batches()
            return
        # The lane's own sort by key keeps this order among equal keys.
        for batch in sort_rows(map(self._add_hash, rows), [*self.definition.key, self.order_by]):
            yield batch if self.order_by in self.definition.schema.names else batch.drop_columns(self.order_by)

    def _number_rows(self, rows: Iterator[pa.Table], task: int) -> Iterator[pa.RecordBatch]:
        start = task << _ROW_SHIFT
        for table in map(self._complete, rows):
            numbers = pa.array(range(start, start + table.num_rows), pa.int64())
            start += table.num_rows
            yield from table.append_column(ROW, numbers).combine_chunks().to_batches()

    def _complete(self, rows: pa.Table) -> pa.Table:
        """Rows with nulls in the columns that the DataFrame lacks."""
        for name in self.lacking:
            kind = storage_type(self.definition.schema.field(name).type)
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows

    def _add_hash(self, rows: pa.Table) -> pa.Table:
        columns = self.definition.schema
        self._require_values(rows, self.definition.key)
        keys = [conform_column(rows.column(name), columns.field(name).type) for name in self.definition.key]
        return self._complete(rows).append_column(HASH, hash_keys(keys))

    def _check_ops(self, batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows; with `_op`, upserts are checked as the lane checks them otherwise, and deletes keep their key."""
        for rows in batches:
            if self.op is not None:
                yield rows
                continue
            is_delete = pc.equal(rows.column(OP), DELETE)
            known = pc.or_(is_delete, pc.equal(rows.column(OP), UPSERT))
            if not pc.all(pc.fill_null(known, False), min_count=0).as_py():
                row = pc.index(pc.fill_null(known, False), pa.scalar(False)).as_py()
                raise Invalid(
                    f"column '_op' holds {rows.column(OP)[row].as_py()!r}; expected 'upsert' or 'delete'",
                    column=OP,
                    table=self.table,
                )
            upserts = rows.filter(pc.invert(is_delete))
            self._check_upserts(upserts)
            yield upserts
            yield self._keep_keys(rows.filter(is_delete))

    def _check_upserts(self, rows: pa.Table) -> None:
        own = rows.select([name for name in rows.column_names if name in self.definition.schema.names])
        required = [each.name for each in self.definition.schema if not each.nullable]
        self._require_values(own, required)
        fault = find_invalid(own)
        if fault is None:
            columns = pa.schema([self.definition.schema.field(name) for name in own.column_names])
            fault = find_unreadable(conform(own, columns))
        if fault is not None:
            raise self._fault_error(own, fault.row, fault.path, fault.why)

    def _require_values(self, rows: pa.Table, names: Sequence[str]) -> None:
        for name in names:
            if rows.column(name).null_count:
                row = pc.index(pc.is_null(rows.column(name)), pa.scalar(True)).as_py()
                raise self._fault_error(rows, row, name, "a value is required, found null")

    def _fault_error(self, rows: pa.Table, row: int, path: str, why: str) -> Invalid:
        key = {name: python_value(rows.column(name)[row]) for name in self.definition.key}
        return Invalid(f"column {path!r}: {why} in the row {key}", column=path.split(".")[0], table=self.table)

    def _keep_keys(self, rows: pa.Table) -> pa.Table:
        kept = {*self.definition.key, OP, self.order_by}
        for at, name in enumerate(rows.column_names):
            if name not in kept:
                rows = rows.set_column(at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type))
        return rows


def _check_order(
    definition: TableDef, table: str, order_by: str | None, found: Mapping[str, str], *, has_op: bool
) -> None:
    if has_op and not definition.is_keyed:
        raise Invalid(
            f"table {table!r} has no key: its rows cannot be deleted, so it takes no column '_op'",
            hint="Leave it out: df.drop('_op').",
            table=table,
        )
    if order_by is None:
        return
    if order_by not in found:
        raise Invalid(f"option orderBy is {order_by!r}; the DataFrame has: {', '.join(found)}", column=order_by)
    if not definition.is_keyed:
        raise Invalid(f"table {table!r} has no key: orderBy chooses among rows of one key", table=table)
    if found[order_by].split("<")[0] in ("struct", "array", "map", "variant"):
        raise Invalid(
            f"option orderBy names the column {order_by!r} of type {found[order_by]}; expected one of plain values",
            hint="A number, text or time decides which row of a key wins.",
            column=order_by,
            table=table,
        )
    if has_op and definition.version is not None:
        raise Invalid(
            f"table {table!r} has the version column {definition.version!r}: with '_op', orderBy is not allowed",
            hint="Write at most one change of each key at a time.",
            table=table,
        )


def _check_type(field: pa.Field, found: str) -> None:
    if not fits_type(found, field.type):
        raise Invalid(
            f"the DataFrame's column {field.name!r} is {found}; the table's is {spark_type(field.type)}",
            hint="Cast it first, so that you decide what happens to values that do not fit.",
            column=field.name,
        )
