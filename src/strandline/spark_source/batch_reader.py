"""`spark.read`: the merged rows of a table at one seq, a range of vnodes for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from strandline.model.condition import Predicate
from strandline.model.keys import hash_keys, vnode_of
from strandline.model.types import conform_column
from strandline.spark_source.filters import take_filters
from strandline.spark_source.options import Place
from strandline.spark_source.rows import Output, read_slice
from strandline.spark_source.slices import Slice, SlicePartition, cut, table_sizes
from strandline.tables.merge import TableAt


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in tasks. The seq is fixed, so tasks agree whatever is written meanwhile."""

    def __init__(self, place: Place, generation: str, seq: int, schema: StructType) -> None:
        self.place = place
        self.generation = generation
        self.seq = seq
        self.output = Output(schema)
        self.predicate: Predicate | None = None

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take the filters that the table can apply; returns the others. Called before `partitions`."""
        schema = self.place.open(self.generation).definition.schema
        self.predicate, left = take_filters(filters, schema)
        return left

    def partitions(self) -> list[InputPartition]:
        merge = self.place.open(self.generation).merge(self.seq)
        self.output.check(merge.definition.schema, self.place.table)
        _, sizes = table_sizes(merge)
        only = _find_vnode(merge, self.predicate)
        slices = cut(sizes) if only is None else [Slice(only, only + 1, len(sizes))]
        # Spark makes a partition of its own out of no partitions.
        return [SlicePartition(part, self.seq) for part in slices] or [InputPartition(None)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return iter(())
        table = self.place.open(self.generation)
        return read_slice(table, table.merge(self.seq), partition.part, self.output, self.predicate)


def _find_vnode(merge: TableAt, predicate: Predicate | None) -> int | None:
    """The vnode of the one key that a condition asks for."""
    definition = merge.definition
    key = predicate.key_values(definition.key) if predicate else None
    if key is None:
        return None
    columns = [
        conform_column(pa.chunked_array([pa.array([value])]), definition.schema.field(name).type)
        for name, value in zip(definition.key, key, strict=True)
    ]
    return vnode_of(int(hash_keys(columns)[0].as_py()), merge.baseline.vnodes)
