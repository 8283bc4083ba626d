"""The options of `format("strandline")`, checked, and the table that they name.

Option names are those of Spark: their case does not matter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.errors import Invalid, NotFound, StrandlineError
from strandline.tables.collection import Tables
from strandline.tables.store import TableStore

_PLACE = ("lake", "table")
_STORAGE = "storage."
READ = ("at", "columns")
READ_STREAM = ("start", "columns", "maxRowsPerTrigger", "maxBytesPerTrigger", "pin")
WRITE = ("token", "missing", "orderBy")
WRITE_STREAM = ("missing", "orderBy")
# Options that Spark itself adds to a stream.
_OF_SPARK = ("checkpointlocation", "queryname")
# Each Python process of Spark has a DuckDB of its own; it spills to disk beyond this.
_CACHE_BYTES = 1 << 30

_opened: dict[Place, Tables] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Place:
    """Where a table is. The storage options may hold secrets."""

    lake: str
    table: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @staticmethod
    def of(options: Mapping[str, str]) -> Place:
        """The place that options name; a relative path becomes an absolute one, since executors run elsewhere."""
        lake, table = (_require(options, name) for name in _PLACE)
        lake = lake if ":" in lake.split("/")[0] else os.path.abspath(lake)
        storage = {name[len(_STORAGE) :]: value for name, value in options.items() if name.startswith(_STORAGE)}
        return Place(lake, table, tuple(sorted(storage.items())))

    def open(self, generation: str | None = None) -> TableStore:
        """The table; `NotFound` when it is not the one of that generation. A process keeps its lakes open."""
        try:
            table = self._tables(is_fresh=False).table(self.table)
        except StrandlineError:
            # The folder may hold another lake by now.
            table = self._tables(is_fresh=True).table(self.table)
        if generation not in (None, table.entry.generation):
            raise NotFound(
                f"table {self.table!r} was dropped and created again since this query was planned",
                hint="Load it again.",
                table=self.table,
            )
        return table

    def _tables(self, *, is_fresh: bool) -> Tables:
        lake = Place(self.lake, "", self.storage_options)
        with _opening:
            if is_fresh or lake not in _opened:
                options = dict(self.storage_options) or None
                _opened[lake] = Tables(self.lake, storage_options=options, cache_bytes=_CACHE_BYTES)
            return _opened[lake]


def _require(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise Invalid(
            f'format("strandline") needs the option {name!r}',
            hint='Name the table: .option("lake", "/path or s3://bucket/prefix").option("table", "name")',
        )
    return value


def check_names(options: Mapping[str, str], known: Sequence[str], use: str) -> None:
    """`Invalid` for an option that `use` does not know."""
    allowed = {name.lower() for name in (*_PLACE, *known)} | set(_OF_SPARK)
    for name in options:
        if name.lower() not in allowed and not name.startswith(_STORAGE):
            raise Invalid(
                f'{use} format("strandline") has no option {name!r}',
                hint=f"Options: {', '.join((*_PLACE, *known, 'storage.…'))}",
            )


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """An option that is a number of 1 or more; None when it is not given."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"option {name} is {text!r}; expected a whole number, 1 or more")
    return int(text)
