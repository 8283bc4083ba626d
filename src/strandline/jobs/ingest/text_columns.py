"""Columns of a text file beside those that it has for the table: columns to leave out, and columns of its folders."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.foreign_types import leave_out
from strandline.jobs.ingest.source import Source
from strandline.jobs.partitions import add_partitions, check_partition, partition_fields
from strandline.model.rows import check_rows


class TextColumns:
    """`schema` has the columns with which a file is read: columns to skip and those of its folders are text in it."""

    def __init__(self, source: Source, schema: pa.Schema, names: ColumnMatcher) -> None:
        self._source = source
        self._table = schema
        parts = {name: text for name, text in source.partitions.items() if name not in source.skip}
        columns = names.require(list(parts), source.uri, file=source.uri) if parts else []
        self._partitions = dict(zip(columns, parts.values(), strict=True))
        own = [pa.field(f.name, pa.string()) if f.name in self._partitions else f for f in schema]
        self.schema = pa.schema([*own, *(pa.field(label, pa.string()) for label in names.skipped)])

    @property
    def folders(self) -> list[str]:
        """The columns of its folders."""
        return list(self._partitions)

    def is_read(self, name: str) -> bool:
        """Whether a column of the table comes from the text of the file, not from its folders."""
        return name not in self._partitions and name in self._table.names

    def finish(self, rows: pa.Table) -> pa.Table:
        """The rows of the table, from rows of `schema`. `Invalid` when a folder contradicts its file."""
        if not self._partitions:
            return rows.select(self._table.names)
        for name, text in self._partitions.items():
            # A file without the column has null in all rows.
            if rows.column(name).null_count < rows.num_rows:
                check_partition(rows.column(name), name, text, self._source.uri)
        own = rows.select([name for name in self._table.names if name not in self._partitions])
        return next(check_rows(add_partitions(own, self._partitions, self._table, self._source.uri), self._table))


def add_folders(schema: pa.Schema, source: Source, others: Sequence[Source]) -> pa.Schema:
    """The columns of a new table: those of a text file, and those that the folders of all files hold, without those to
    leave out."""
    own = set(schema.names)
    folders = [f for f in partition_fields(each.partitions for each in [source, *others]) if f.name not in own]
    fields = [*schema, *folders]
    kept = set(leave_out(list(dict.fromkeys(field.name for field in fields)), source.skip, source.uri))
    return pa.schema([field for field in fields if field.name in kept])
