"""The data source: what Spark makes of `format("strandline")` and its options."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import strandline
from strandline.errors import Invalid
from strandline.spark_source import options as known
from strandline.spark_source.batch_reader import TableReader
from strandline.spark_source.batch_writer import TableWriter
from strandline.spark_source.options import Place, check_names
from strandline.spark_source.rows import change_schema, pick_columns, spark_ddl
from strandline.spark_source.stream_reader import ChangeReader
from strandline.spark_source.stream_writer import BatchStreamWriter

# The folder or the zip file that holds the package.
_PACKAGE = os.path.dirname(os.path.dirname(strandline.__file__))


def _make_load() -> Callable[[str, bytes], Any]:
    def load(package: str, state: bytes) -> Any:
        """A function inside of a function travels with its code, so it may run before the package is found."""
        import importlib
        import pickle
        import sys

        try:
            module = importlib.import_module("strandline.spark_source.source")
        except ModuleNotFoundError:
            sys.path.append(package)
            module = importlib.import_module("strandline.spark_source.source")
        source = object.__new__(module.StrandlineSource)
        source.__dict__.update(pickle.loads(state))
        return source

    return load


class StrandlineSource(DataSource):  # type: ignore[misc]
    """A table of a lake. Spark makes one in a process of its own for each load and each write."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.place = Place.of(options)
        table = self.place.open()
        self.generation = table.entry.generation
        at = options.get("at")
        self.seq = table.merge(int(at) if at and at.isdecimal() else at or None).seq
        """A DataFrame stays at the seq that it was loaded at."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, bytes]]:
        """Spark plans a stream in a Python to which it sends this source, but not the package. It is on the same
        machine as this process, which names the package's place there."""
        return _make_load(), (_PACKAGE, pickle.dumps(self.__dict__))

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> str:
        """The columns of the table, for a stream with those of a change. Spark does not say which of both it
        plans: only a stream has the option `start`."""
        definition = self.place.open(self.generation).definition
        columns = definition.schema if self.options.get("start") is None else change_schema(definition)
        return spark_ddl(pick_columns(columns, self.options.get("columns")))

    def reader(self, schema: StructType) -> TableReader:
        check_names(self.options, known.READ, "spark.read of")
        return TableReader(self.place, self.generation, self.seq, schema)

    def streamReader(self, schema: StructType) -> ChangeReader:
        check_names(self.options, known.READ_STREAM, "spark.readStream of")
        return ChangeReader(self.place, self.generation, schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        check_names(self.options, known.WRITE, "df.write to")
        if overwrite:
            raise Invalid(
                f"table {self.place.table!r} takes mode('append') only, which inserts and replaces rows by their key",
                hint="To empty a table, drop it and create it again. To go back to earlier rows: table.restore(at).",
                table=self.place.table,
            )
        return TableWriter(self.place, self.generation, schema, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        check_names(self.options, known.WRITE_STREAM, "df.writeStream to")
        if overwrite:
            raise Invalid(
                f"table {self.place.table!r} takes outputMode('append') or outputMode('update'), not 'complete'",
                hint="With 'update', each row replaces the one with its key.",
                table=self.place.table,
            )
        return BatchStreamWriter(self.place, self.generation, schema, self.options)
