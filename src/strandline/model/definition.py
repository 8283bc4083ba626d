"""The definition of a table as a frozen value, and its form in the configuration of the table's log."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from strandline.errors import Corrupt, Invalid, NotFound
from strandline.model import types as schemas
from strandline.model.change import HASH, OP, PACKED, ROW, SEQ, VNODE
from strandline.model.name_map import NameMap
from strandline.model.names import caseless_name, check_columns, name_list
from strandline.model.schema_text import require_schema
from strandline.model.settings import TableSettings
from strandline.model.stored_names import (
    ColumnRename,
    find_former_names,
    find_stored_names,
    rename_field,
    stored_schema,
    tag_fields,
)

FORMAT = 2  # of lakes and tables; 1 had commit files without digests and was in no release
RENAMED_FORMAT = 3  # of tables with a renamed column, which earlier programs would read under other names
PACKED_FORMAT = 4  # of tables whose log has had packs, which earlier programs would read as one commit each
MAX_VNODES = 4096

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}\Z")


def check_name(name: object) -> str:
    """A table's name: letters, digits and '_', so that it is a plain word in paths, SQL and addresses."""
    if not isinstance(name, str) or not NAME.match(name):
        raise Invalid(
            f"table name {name!r} is not allowed",
            hint="A name starts with a letter and holds letters, digits and '_', at most 128.",
            table=str(name),
        )
    return name


@dataclass(frozen=True)
class TableDef:
    """A table's definition. `schemas[-1]` is the current schema; a file's name holds the id of its own schema. All of
    them have the present names of columns; `renames` tells the names inside files and those of earlier schemas. `names`
    are the names of columns in the files that were loaded. `is_packed`: the log has or had packs."""

    key: tuple[str, ...]
    cluster_by: tuple[str, ...]
    vnodes: int
    version: str | None
    schemas: tuple[pa.Schema, ...]
    time: str | None = None
    settings: TableSettings = field(default_factory=TableSettings)
    names: NameMap = field(default_factory=NameMap)
    renames: tuple[ColumnRename, ...] = ()
    is_packed: bool = False

    @staticmethod
    def declare(
        schema: pa.Schema | str,
        *,
        key: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        vnodes: int = 16,
        version: str | None = None,
        time: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> TableDef:
        columns = schemas.canonical_schema(require_schema(schema))
        for role, names in (("key", key), ("cluster_by", cluster_by)):
            _check_columns(columns, role, names)
        for name in key:
            if columns.field(name).type not in schemas.KEY_TYPES:
                raise Invalid(
                    f"key column {name!r} is {schemas.type_text(columns.field(name).type)}, which cannot be a key",
                    hint="Keys are integers, strings, binary, booleans, dates or timestamps.",
                    column=name,
                )
        if version is not None:
            _check_columns(columns, "version", [version])
            if not key or version in key or columns.field(version).type not in schemas.VERSION_TYPES:
                raise Invalid(
                    f"version column {version!r} must be an integer, date or timestamp outside the key",
                    column=version,
                )
        if (
            isinstance(vnodes, bool)
            or not isinstance(vnodes, int)
            or not 1 <= vnodes <= MAX_VNODES
            or vnodes & (vnodes - 1)
        ):
            raise Invalid(f"vnodes is {vnodes!r}; expected a power of two from 1 to {MAX_VNODES}")
        required = {*key, *([version] if version else [])}
        columns = pa.schema([f.with_nullable(False) if f.name in required else f for f in columns])
        definition = TableDef(tuple(key), tuple(cluster_by), vnodes, version, (columns,))
        return definition.with_settings({**(settings or {}), **({} if time is None else {"time": time})})

    def with_settings(self, settings: Mapping[str, Any]) -> TableDef:
        """The same table with other settings (see `TableSettings`). A table without a `time` column may get one."""
        rest = dict(settings)
        time = rest.pop("time", self.time)
        if time != self.time:
            if time not in self.schema.names:
                known = ", ".join(self.schema.names)
                raise Invalid(f"time is {time!r}; expected a column name, one of: {known}", column=str(time))
            if self.time is not None:
                raise Invalid(f"the time column is {self.time!r} and cannot change: rows expire by it", column=time)
            kind = self.schema.field(time).type
            if kind not in schemas.TIME_TYPES:
                raise Invalid(f"time column {time!r} is {kind}; expected a date or a timestamp", column=time)
        changed = replace(self, time=time, settings=self.settings.changed(rest))
        if changed.settings.retention is not None:
            changed.check_expires()
        return changed

    def check_expires(self) -> None:
        """`Invalid` unless rows of this table can expire."""
        if self.time is None:
            raise Invalid(
                "rows expire by a time column, and this table names none",
                hint="Name one: configure(time='column').",
            )
        if self.version is not None:
            raise Invalid("a table with a version column cannot expire rows: an expired version still has to win")

    def with_names(self, names: NameMap) -> TableDef:
        """The same table, which also knows these names in files."""
        return replace(self, names=self.names.union(names))

    @property
    def schema(self) -> pa.Schema:
        return self.schemas[-1]

    @cached_property
    def stale_schemas(self) -> frozenset[int]:
        """The ids of the schemas that have a column dropped since."""
        now = set(self.schema.names)
        return frozenset(i for i, columns in enumerate(self.schemas) if not now.issuperset(columns.names))

    @cached_property
    def stored(self) -> dict[str, str]:
        """The name inside files of each column that was renamed."""
        return find_stored_names(self.renames)

    def stored_names(self, columns: Iterable[str]) -> list[str]:
        """The names of columns inside files."""
        return [self.stored.get(name, name) for name in columns]

    @property
    def schema_id(self) -> int:
        return len(self.schemas) - 1

    def at_schema(self, schema_id: int) -> TableDef:
        """The table with the columns of an earlier schema, under the names of that time."""
        kept = self.schemas[: schema_id + 1]
        for rename in reversed(self.renames):
            if rename.schema_id > schema_id:
                kept = tuple(rename_field(columns, rename.new, rename.old) for columns in kept)
        earlier = tuple(rename for rename in self.renames if rename.schema_id <= schema_id)
        return replace(self, schemas=kept, renames=earlier)

    @property
    def is_keyed(self) -> bool:
        return bool(self.key)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that name a row: the key, or the hidden (`_seq`, `_row`) of a table without one."""
        return self.key or (SEQ, ROW)

    def clustering(self, columns: Collection[str]) -> tuple[str, ...]:
        """The cluster columns for rows that have these columns; none when one is missing or cannot be ordered."""
        is_known = all(name in columns and not pt.is_nested(self.schema.field(name).type) for name in self.cluster_by)
        return self.cluster_by if is_known else ()

    def evolve(self, wanted: pa.Schema) -> TableDef:
        changed = schemas.evolve_schema(self.schema, wanted)
        for name in changed.names:
            if name not in self.schema.names:
                self._check_unused(name)
        for name in self.key:
            if changed.field(name).type != self.schema.field(name).type:
                raise Invalid(f"key column {name!r} cannot change its type: files are placed by its hash", column=name)
        return self if changed == self.schema else replace(self, schemas=(*self.schemas, changed))

    def _check_unused(self, name: str, *, of: str | None = None) -> None:
        """`Invalid` when another column than `of` has or had this name. Files may hold that column under it, and sinks
        may name it in a mask."""
        now = set(self.schema.names)
        once = {column: column for earlier in self.schemas for column in earlier.names if column not in now}
        for earlier, column in {**once, **find_former_names(self.renames)}.items():
            if caseless_name(earlier) != caseless_name(name) or column == of:
                continue
            if column in now:
                why = f"column {name!r} was renamed to {column!r}; its earlier name stays its own"
                raise Invalid(why, hint=f"Use {column!r} for it, or another name for another column.", column=name)
            raise Invalid(f"column {name!r} was dropped; files still hold it", hint="Use another name.", column=name)

    def add_column(self, name: str, kind: pa.DataType) -> TableDef:
        """The same table with one more column, which is null in older rows."""
        if name in self.schema.names:
            raise Invalid(f"there is a column {name!r} already", hint=self._columns_hint(), column=name)
        return self.evolve(pa.schema([pa.field(name, kind)]))

    def open_as(self, wanted: TableDef, settings: Collection[str]) -> TableDef:
        """The same table with the columns that only `wanted` has; `Invalid` names the first difference that cannot be
        made up for. Of the settings only those named in `settings` have to agree. The layout (`vnodes`) may differ."""
        facts = [("key", self.key, wanted.key), ("version column", self.version, wanted.version)]
        facts += [("cluster_by", self.cluster_by, wanted.cluster_by)] if wanted.cluster_by else []
        facts += [("time column", self.time, wanted.time)] if wanted.time is not None else []
        have, want = self.settings.shown(), wanted.settings.shown()
        facts += [(f"setting {name}", have[name], want[name]) for name in settings]
        for what, found, asked in facts:
            if found != asked:
                raise Invalid(
                    f"the table has the {what} {_shown(found)}, not {_shown(asked)}",
                    hint="Open it without that: lake.table(name). Settings are changed with configure(…).",
                )
        fields = []
        for column in wanted.schema:
            at = self.schema.get_field_index(column.name)
            now = column if at < 0 else self.schema.field(at)
            if column.nullable and not now.nullable:
                raise Invalid(f"column {column.name!r} is required in the table, and not here", column=column.name)
            # A table that was widened since is wide enough.
            fields.append(now if now.type in schemas.wider_types(column.type) else column)
        return self.evolve(pa.schema(fields))

    def drop_column(self, name: str) -> TableDef:
        """The same table without a column. Older files keep the column, so its name cannot be used again."""
        self._check_plain(name, "dropped")
        rest = pa.schema([column for column in self.schema if column.name != name])
        return replace(self, schemas=(*self.schemas, rest))

    def rename_column(self, old: str, new: str) -> TableDef:
        """The same table with another name for a column. Files keep the name that they have; no other column gets
        it."""
        self._check_plain(old, "renamed")
        if old == new:
            raise Invalid(f"column {old!r} has that name already", column=old)
        if new in self.schema.names:
            raise Invalid(f"there is a column {new!r} already", hint=self._columns_hint(), column=new)
        check_columns(new if name == old else name for name in self.schema.names)
        self._check_unused(new, of=old)
        before = tuple(rename_field(columns, old, new) for columns in self.schemas)
        renames = (*self.renames, ColumnRename(len(self.schemas), old, new))
        return replace(
            self,
            schemas=(*before, before[-1]),
            names=self.names.rename(old, new),
            renames=renames,
        )

    def _columns_hint(self) -> str:
        return f"Columns: {', '.join(self.schema.names)}"

    def _check_plain(self, name: str, what: str) -> None:
        """`NotFound` for an unknown column, and `Invalid` for one that the table itself needs."""
        if name not in self.schema.names:
            raise NotFound(f"there is no column {name!r}", hint=self._columns_hint(), column=name)
        for role, names in (
            ("key", self.key),
            ("cluster_by", self.cluster_by),
            ("version column", [self.version]),
            ("time column", [self.time]),
        ):
            if name in names:
                raise Invalid(
                    f"column {name!r} cannot be {what}: it is the table's {role}",
                    hint="A table keeps it for life. Make another table, and load the rows there.",
                    column=name,
                )

    def log_schema(self, schema_id: int) -> pa.Schema:
        """The columns inside a log file. A delete has nulls outside of its key."""
        hidden = [pa.field(OP, pa.string(), False), pa.field(HASH, pa.int64(), False)]
        if not self.is_keyed:
            hidden.append(pa.field(ROW, pa.int64(), False))
        columns = self.schemas[schema_id]
        inside = pa.schema(hidden + [f if f.name in self.key else f.with_nullable(True) for f in columns])
        return tag_fields(inside, self.stored)

    @property
    def log_schemas(self) -> list[pa.Schema]:
        return [self.log_schema(i) for i in range(len(self.schemas))]

    def baseline_schema(self, schema_id: int) -> pa.Schema:
        """The columns inside a baseline file."""
        hidden = [] if self.is_keyed else [pa.field(SEQ, pa.int64(), False), pa.field(ROW, pa.int64(), False)]
        return tag_fields(pa.schema([*self.schemas[schema_id], *hidden]), self.stored)

    def log_delta_schema(self) -> pa.Schema:
        packed = [pa.field(PACKED, pa.int64())] if self.is_packed else []
        return pa.schema([*packed, *stored_schema(self.log_schema(self.schema_id)), pa.field(SEQ, pa.int64())])

    def baseline_delta_schema(self) -> pa.Schema:
        # Nullable: some engines check a column's declaration against files that are older than the column.
        return pa.schema([*stored_schema(self.baseline_schema(self.schema_id)), pa.field(VNODE, pa.int32())])

    @property
    def format(self) -> int:
        """The oldest format that says how to read this table."""
        return PACKED_FORMAT if self.is_packed else RENAMED_FORMAT if self.renames else FORMAT

    def to_configuration(self) -> dict[str, str]:
        facts = {
            "key": list(self.key),
            "cluster_by": list(self.cluster_by),
            "vnodes": self.vnodes,
            "version": self.version,
            "schemas": [schemas.to_text(s) for s in self.schemas],
            "time": self.time,
            "care": self.settings.to_dict(),
            **({} if self.names == NameMap() else {"names": self.names.to_dict()}),
            **({"renames": [list(astuple(each)) for each in self.renames]} if self.renames else {}),
            **({"packed": True} if self.is_packed else {}),
        }
        return {
            "strandline.format": str(self.format),
            "strandline.table": json.dumps(facts),
            "delta.enableExpiredLogCleanup": "false",
            "delta.setTransactionRetentionDuration": "interval 30 days",
            # Checkpoints list removed files for that long. Nothing here reads that list, and packs remove many files.
            "delta.deletedFileRetentionDuration": "interval 1 hour",
        }

    @staticmethod
    def from_configuration(configuration: Mapping[str, str], where: str) -> TableDef:
        try:
            check_format(int(configuration["strandline.format"]), where, newest=PACKED_FORMAT)
            facts = json.loads(configuration["strandline.table"])
            return TableDef(
                tuple(facts["key"]),
                tuple(facts["cluster_by"]),
                facts["vnodes"],
                facts["version"],
                tuple(schemas.relax_schema(schemas.from_text(text)) for text in facts["schemas"]),
                facts.get("time"),
                TableSettings.from_dict(facts.get("care", {})),
                NameMap.from_dict(facts["names"]) if "names" in facts else NameMap(),
                tuple(ColumnRename(*each) for each in facts.get("renames", ())),
                bool(facts.get("packed")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{where} does not describe a Strandline table: {error!r}", path=where) from error


def check_format(found: int, where: str, *, newest: int = FORMAT) -> None:
    if found < FORMAT:
        raise Invalid(
            f"{where} has format {found}, from before the first release; this version reads format {FORMAT}",
            hint="Export its tables with the version that made it, and load them into a new lake.",
            format=found,
        )
    if found > newest:
        raise Invalid(
            f"{where} has format {found}; this version of Strandline reads up to {newest}",
            hint="Upgrade: pip install -U strandline",
            format=found,
        )


def _shown(fact: object) -> str:
    return ", ".join(fact) if fact and isinstance(fact, tuple) else repr(fact) if fact else "none"


def _check_columns(columns: pa.Schema, role: str, names: Sequence[str]) -> None:
    for name in name_list(role, names):
        if not isinstance(name, str) or name not in columns.names:
            shown = repr(name) if isinstance(name, str) else f"{type(name).__name__} {name!r}"
            raise Invalid(
                f"{role} names {shown}, which is no column",
                hint=f"Columns: {', '.join(columns.names)}",
                column=str(name),
            )
    if len(set(names)) != len(names):
        raise Invalid(f"{role} names a column twice: {', '.join(names)}")
