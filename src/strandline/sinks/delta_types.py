"""Whether a Delta table can take the files of a batch: its columns by name and type. Tables with features that need a
writer to look at each row, such as constraints, are refused, because files are added unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Invalid
from strandline.model.types import storage_schema, type_text
from strandline.sinks.contract import Batch

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Features that do not concern a writer that adds files, or whose use `_list_demands` finds elsewhere.
_BEARABLE = {
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
    "invariants", "timestampNtz", "v2Checkpoint",
}  # fmt: skip
_ON_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_MAPPING = "delta.columnMapping.mode"


def stored_schema(batch: Batch) -> pa.Schema:
    """The columns of a new table, all nullable, since a delete has only its key."""
    return pa.schema([column.with_nullable(True) for column in storage_schema(batch.file_schema)])


def check_table(table: DeltaTable, uri: str) -> None:
    """`Invalid` when the table asks more of a writer than to add files, or is partitioned."""
    metadata = table.metadata()
    if metadata.partition_columns:
        raise Invalid(
            f"the Delta table at {uri} is partitioned by {', '.join(metadata.partition_columns)}; a sink writes to"
            " tables without partitions",
            hint="Send to another table.",
            path=uri,
            columns=list(metadata.partition_columns),
        )
    demands = _list_demands(table)
    if demands:
        raise Invalid(
            f"the Delta table at {uri} uses {', '.join(demands)}, which a sink cannot honour",
            hint="Drop that from the table, or send to another one.",
            path=uri,
            features=demands,
        )


def _list_demands(table: DeltaTable) -> list[str]:
    configuration = table.metadata().configuration
    text = table.schema().to_json()
    return [
        *sorted(set(table.protocol().writer_features or ()) - _BEARABLE),
        *sorted(name for name in configuration if name.startswith("delta.constraints.")),
        *([_MAPPING] if configuration.get(_MAPPING, "none") != "none" else []),
        *(name for name in _ON_COLUMNS if f'"{name}"' in text),
    ]


def missing_columns(table: DeltaTable, wanted: pa.Schema) -> pa.Schema:
    """The columns that the table lacks."""
    there = set(pa.schema(table.schema()).names)
    return pa.schema([column for column in wanted if column.name not in there])


def fit_columns(table: DeltaTable, wanted: pa.Schema, uri: str) -> pa.Schema:
    """The columns for files of the table: the `wanted` ones, with the table's own types where it has them."""
    check_table(table, uri)
    there = {column.name: column for column in pa.schema(table.schema())}
    by_case = {name.lower(): name for name in there}
    columns = []
    for column in wanted:
        found = there.get(column.name)
        if found is None:
            if column.name.lower() in by_case:
                other = by_case[column.name.lower()]
                raise Invalid(
                    f"column {column.name!r} is called {other!r} in the Delta table at {uri}",
                    hint="Send to another table.",
                    column=column.name,
                )
            found = column
        elif not holds(found.type, column.type):
            held = type_text(found.type)
            raise Invalid(
                f"column {column.name!r} is {type_text(column.type)} here and {held} in the Delta table at {uri}",
                hint="Leave the column out (columns=[…]), widen it there, or send to another table.",
                column=column.name,
            )
        columns.append(pa.field(column.name, found.type, found.nullable))
    for column in there.values():
        if not column.nullable and column.name not in wanted.names:
            raise Invalid(
                f"the Delta table at {uri} requires a value in the column {column.name!r}, and the sink has none",
                hint="Make the column nullable there, or send to another table.",
                column=column.name,
            )
    return pa.schema(columns)


def holds(there: pa.DataType, brought: pa.DataType) -> bool:
    """Whether the type `there` can hold every value of `brought` exactly."""
    if pt.is_integer(brought) and pt.is_integer(there):
        return bool(brought.bit_width <= there.bit_width)
    if pt.is_integer(brought) and pt.is_floating(there):
        # The bits of the significand.
        return bool(brought.bit_width < (53 if pt.is_float64(there) else 24))
    if pt.is_floating(brought) and pt.is_floating(there):
        return bool(brought.bit_width <= there.bit_width)
    if pt.is_decimal(brought) and pt.is_decimal(there):
        return bool(brought.scale <= there.scale and brought.precision - brought.scale <= there.precision - there.scale)
    if pt.is_list(brought) and pt.is_list(there):
        return _holds_part(there.value_field, brought.value_field)
    if pt.is_map(brought) and pt.is_map(there):
        return holds(there.key_type, brought.key_type) and _holds_part(there.item_field, brought.item_field)
    if pt.is_struct(brought) and pt.is_struct(there):
        names = [part.name for part in brought]
        return names == [part.name for part in there] and all(map(_holds_part, there, brought))
    return bool(brought == there)


def _holds_part(there: pa.Field, brought: pa.Field) -> bool:
    return (there.nullable or not brought.nullable) and holds(there.type, brought.type)
