"""A table outside the lake whose columns have other names here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.jobs.column_names import name_columns, new_map
from strandline.jobs.import_sources import ImportSource
from strandline.model.name_map import NameMap, Rule
from strandline.model.names import require_utf8_names


@dataclass(frozen=True)
class RenamedSource:
    """`inner` with the columns `schema`, in the same order; `names` are the names that differ."""

    inner: ImportSource
    schema: pa.Schema
    names: NameMap

    @staticmethod
    @require_utf8_names()
    def by_rule(inner: ImportSource, rule: Rule | None) -> RenamedSource:
        columns = name_columns(inner.schema.names, rule=rule)
        schema = pa.schema([field.with_name(name) for field, name in zip(inner.schema, columns, strict=True)])
        return RenamedSource(inner, schema, new_map(inner.schema.names, columns, rule))

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def rows(self) -> int:
        return self.inner.rows

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        sources = self.inner.schema.names
        if len(set(sources)) < len(sources):
            # Equal names cannot be asked for by name; a place tells them apart.
            for batch in self.inner.batches():
                renamed = batch.rename_columns(self.schema.names)
                yield renamed if columns is None else renamed.select(list(columns))
            return
        by_column = dict(zip(self.schema.names, sources, strict=True))
        by_source = dict(zip(sources, self.schema.names, strict=True))
        for batch in self.inner.batches(None if columns is None else [by_column[name] for name in columns]):
            yield batch.rename_columns([by_source[name] for name in batch.schema.names])
