"""The tables in one folder or bucket: open, create, drop and rename them.

Jobs and queries take this class. `consumers.context.Context` adds the state of consumers, `lake.Lake` the verbs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from strandline.crash import crash_point
from strandline.engines.duck import Duck
from strandline.errors import Invalid, NotFound
from strandline.model.definition import TableDef, check_name
from strandline.storage.open import open_storage
from strandline.tables.baseline import Baseline
from strandline.tables.catalog import Catalog, Entry
from strandline.tables.log import Log, lost_table
from strandline.tables.readers import NoReaders, Readers
from strandline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tables:
    """The tables below `root`. Opening writes nothing. Safe to share between threads."""

    table_type: ClassVar[type[TableStore]] = TableStore
    """The class of opened tables."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.storage = open_storage(root, storage_options)
        self.spark = spark
        self.duck = Duck(self.storage, cache_bytes)
        self.catalog = Catalog(self.storage)
        if not self.catalog.refresh().exists:
            self.catalog.check_whole()
        self._opened: dict[str, TableStore] = {}
        self._lock = threading.Lock()

    def tables(self) -> list[str]:
        """The names of the lake's tables."""
        return sorted(self.catalog.refresh().tables)

    def table(self, name: str) -> TableStore:
        """The table of that name; `NotFound` names the existing ones."""
        return self.open_table(self.catalog.refresh().get(check_name(name)))

    def create(self, name: str, definition: TableDef) -> TableStore:
        """A new, empty table."""

        def prepare(entry: Entry) -> None:
            Log.create(self.storage, f"{entry.folder}/log", name, definition)
            Baseline.create(self.storage, f"{entry.folder}/baseline", name, definition)

        return self.open_table(self.catalog.add(check_name(name), prepare))

    def open_or_create(self, name: str, definition: TableDef, settings: Collection[str] = ()) -> TableStore:
        """The table of that name, with the columns of `definition`; a new one when it is missing. `Invalid` when it
        differs otherwise; of the settings, only those named in `settings` have to agree."""
        while name not in self.catalog.refresh().tables:
            try:
                return self.create(name, definition)
            except Invalid:
                # Another process may have made it a moment ago.
                if name not in self.catalog.refresh().tables:
                    raise
        table = self.table(name)
        try:
            table.log.redefine("EVOLVE", lambda found: found.open_as(definition, settings))
        except Invalid as error:
            error.fields.setdefault("table", name)
            raise
        return table

    def drop_table(self, name: str) -> Entry:
        """Drop a table. Its files stay until vacuum; a table created later under the name starts empty."""
        entry = self.catalog.refresh().get(check_name(name))
        self.catalog.check_whole()
        Log(self.storage, f"{entry.folder}/log").mark_dropped()
        self.catalog.drop(entry)
        with self._lock:
            self._opened.pop(entry.generation, None)
        return entry

    def undrop_table(self, entry: Entry) -> TableStore:
        """Bring a dropped table back under the name of `entry`, with its log, baseline and generation; `NotFound` when
        its files are gone. After a crash in between, the table is still dropped and can be brought back."""
        self.catalog.check_free(check_name(entry.name))
        self.catalog.check_whole()
        try:
            Log(self.storage, f"{entry.folder}/log").mark_undropped()
        except NotFound as error:
            raise NotFound(
                f"the files of table {entry.name!r} are deleted: it cannot be brought back",
                hint="Restore it from a backup.",
                table=entry.name,
            ) from error
        crash_point("undrop.log_opened")
        self.catalog.undrop(entry)
        return self.open_table(entry)

    def rename(self, name: str, to: str) -> TableStore:
        """Give a table another name; its rows, seqs and files stay as they are."""
        entry = self.catalog.refresh().get(check_name(name))
        self.catalog.rename(entry, check_name(to))
        return self.table(to)

    def open_table(self, entry: Entry) -> TableStore:
        """The table of a catalog entry; all callers share one object, which keeps the fold of its log."""
        with self._lock:
            table = self._opened.get(entry.generation)
            if table is None or table.entry != entry:
                try:
                    table = self._make_table(entry)
                except NotFound as error:
                    raise lost_table(self.storage, f"{entry.folder}/log") from error
                table.look()
                self._opened[entry.generation] = table
            return table

    def _make_table(self, entry: Entry) -> TableStore:
        return self.table_type(entry, self.storage, self.duck, self.spark, readers=self._readers_of(entry))

    def _readers_of(self, entry: Entry) -> Readers:
        """The readers of a table's log."""
        return NoReaders()
